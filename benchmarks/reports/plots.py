"""The plots of a run: size against steps/s, workers and PS against throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reports import bars, report

__all__ = ["draw"]

Record = Mapping[str, Any]


def draw(records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Draw what there are measurements for.

    Args:
        records: Of one run.
        folder: For the PNG files.
        name: They are called NAME-sizes.png and NAME-scaling.png.

    Returns:
        The files.
    """
    # matplotlib is an extra, and the workers import this package without it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = []
    plain = [record for record in records if not record.get("profile")]
    for kind, plot in (("sizes", _sizes), ("scaling", _scaling)):
        figure = plot(pyplot, plain)
        if figure is not None:
            made.append(folder / f"{name}-{kind}.png")
            figure.savefig(made[-1], dpi=110)
            pyplot.close(figure)
    return made


def _dense(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if "peer" in r and "case" in r and r["case"]["kind"] == "dense"]


def _tidy(panel: Any) -> None:
    panel.grid(alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, panels: Sequence[Any], columns: int) -> None:
    """One legend below all panels."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="lower center", ncols=columns, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1), h_pad=2)


def _sizes(pyplot: Any, records: Sequence[Record]) -> Any:
    """Steps/s by number of parameters: a panel for each rule and number of PS."""
    turns = [r for r in _dense(records) if r["case"]["variables"] == 10 and r["case"]["workers"] <= 2]
    # One worker at the smallest size, two at all others.
    turns = [r for r in turns if (r["case"]["workers"] == 1) == (r["case"]["size"] == bars.SIZES[0])]
    if not turns:
        return None
    counts = sorted({r["case"]["ps"] for r in turns})
    rules = [rule for rule in ("sgd", "adam") if any(r["case"]["rule"] == rule for r in turns)]
    figure, rows = pyplot.subplots(len(counts), len(rules), figsize=(12, 1 + 4.4 * len(counts)), squeeze=False)
    for ps, row in zip(counts, rows, strict=True):
        for rule, panel in zip(rules, row, strict=True):
            mine = [r for r in turns if r["case"]["ps"] == ps and r["case"]["rule"] == rule]
            for peer in report.peers_in(mine):
                rates: dict[int, list[float]] = {}
                for record in (r for r in mine if r["peer"] == peer.key):
                    rates.setdefault(record["case"]["size"], []).append(record["rate"])
                sizes = sorted(rates)
                panel.plot(
                    sizes, [median(rates[size]) for size in sizes], marker="o", markersize=4, color=peer.color,
                    linestyle="-" if peer.program == "globalstep" else "--", label=peer.label,
                )  # fmt: skip
            panel.set_xscale("log")
            panel.set_yscale("log")
            present = sorted({r["case"]["size"] for r in mine})
            panel.set_xticks(present, [bars.in_words(size) for size in present])
            panel.minorticks_off()
            panel.set_title(f"steps/s, {'SGD' if rule == 'sgd' else 'Adam'}, {ps} PS", loc="left", fontsize=10)
            _tidy(panel)
    for panel in rows[-1]:
        panel.set_xlabel("float32 parameters (1 worker at 1 k, else 2)")
    _legend(figure, list(rows.flat), 5)
    return figure


def _scaling(pyplot: Any, records: Sequence[Record]) -> Any:
    """Steps/s by number of workers, with 1 and 2 PS, at 1 M parameters."""
    turns = [
        r for r in _dense(records)
        if r["case"]["size"] == 1_000_000 and r["case"]["variables"] == 10 and r["case"]["rule"] == "sgd"
    ]  # fmt: skip
    counts = sorted({r["case"]["ps"] for r in turns})
    workers = sorted({r["case"]["workers"] for r in turns})
    if len(workers) < 2:
        return None
    figure, (panels,) = pyplot.subplots(1, len(counts), figsize=(6 * len(counts), 4.6), squeeze=False, sharey=True)
    for ps, panel in zip(counts, panels, strict=True):
        mine = [r for r in turns if r["case"]["ps"] == ps]
        for peer in report.peers_in(mine):
            rates = {
                count: [r["rate"] for r in mine if r["peer"] == peer.key and r["case"]["workers"] == count]
                for count in workers
            }
            present = [count for count in workers if rates[count]]
            if len(present) < 2:
                continue
            panel.plot(
                present, [median(rates[count]) for count in present], marker="o", markersize=4, color=peer.color,
                linestyle="-" if peer.program == "globalstep" else "--", label=peer.label,
            )  # fmt: skip
        panel.set_xticks(workers)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("workers")
        panel.set_title(f"steps/s of all workers, 1 M parameters, SGD, {ps} PS", loc="left", fontsize=10)
        _tidy(panel)
    _legend(figure, list(panels), 5)
    return figure

"""From the measurements of saving to a table and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["plot", "table"]

Record = Mapping[str, Any]

_PLAIN, _ALONE, _BUSY = "#8a8a8a", "#1f6fb4", "#a9cbe8"


def _counts(records: Sequence[Record]) -> list[int]:
    return sorted({record["ps"] for record in records})


def _rounds(records: Sequence[Record], ps: int) -> list[Record]:
    return [record for record in records if record["ps"] == ps and record["round"] >= 0]


def _milliseconds(values: Sequence[float]) -> str:
    return f"{median(values) * 1e3:,.1f} ({min(values) * 1e3:,.1f} to {max(values) * 1e3:,.1f})"


def _times(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _rates(rounds: Sequence[Record], secs: Callable[[Record], float]) -> list[float]:
    """MB/s of each round."""
    return [record["bytes"] / secs(record) / 1e6 for record in rounds]


_RATES: dict[str, Callable[[Record], float]] = {
    "plain write and fsync": lambda record: float(record["plain_secs"]),
    "save, nobody pushes": lambda record: float(record["alone_secs"]),
    "save during pushes": lambda record: float(record["busy"]["save_secs"]),
}


def _rows(records: Sequence[Record], ps: int) -> dict[str, str]:
    """What the table says of a number of PS: medians, with the rounds' range."""
    rounds = _rounds(records, ps)
    (first,) = [record["busy"] for record in records if record["ps"] == ps and record["round"] < 0]
    plain, alone, busy = (_rates(rounds, secs) for secs in _RATES.values())
    return {
        "one copy in memory, ms": _milliseconds([r["memory_secs"] for r in rounds]),
        "a push while nobody saves, ms": _milliseconds([r["quiet_push_secs"] for r in rounds]),
        "longest push while nobody saves, ms": _milliseconds([r["longest_quiet_push_secs"] for r in rounds]),
        "**longest push during a save**, ms": _milliseconds([r["busy"]["longest_push_secs"] for r in rounds]),
        "... in copies of the same round (aim: under 2)": _times(
            [r["busy"]["longest_push_secs"] / r["memory_secs"] for r in rounds]
        ),
        "... during the very first save, ms": f"{first['longest_push_secs'] * 1e3:,.1f}",
        "the consistent snapshot, as the saving program waits for it, ms": _milliseconds(
            [r["alone_cut_secs"] for r in rounds]
        ),
        "plain write and fsync, MB/s": f"{median(plain):,.0f} ({min(plain):,.0f} to {max(plain):,.0f})",
        "**save**, nobody pushes, MB/s": f"{median(alone):,.0f} ({min(alone):,.0f} to {max(alone):,.0f})",
        "... of the plain write in the same round (aim: 0.9)": _times(
            [mine / other for mine, other in zip(alone, plain, strict=True)]
        ),
        "save during pushes, MB/s": f"{median(busy):,.0f} ({min(busy):,.0f} to {max(busy):,.0f})",
        "memory of the PS tasks at most, of their values (limit: 2.2)": _times(
            [1 + (r["peak_bytes"] - r["held_bytes"]) / r["bytes"] for r in rounds]
        ),
    }


def table(records: Sequence[Record], where: Record) -> str:
    """Write the results as Markdown.

    Args:
        records: All measurements.
        where: Of which machine.

    Returns:
        Provenance and table.
    """
    counts = _counts(records)
    columns = [_rows(records, ps) for ps in counts]
    head = ["", *(f"{ps} PS" for ps in counts)]
    lines = [head, ["---", *["---:"] * len(counts)]]
    lines += [[name, *(column[name] for column in columns)] for name in columns[0]]
    return (
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, {where['file_system']}, load average "
        f"{where['load_before']} before and {where['load_after']} after; Python {where['python']}, grpcio "
        f"{where['grpcio']}, numpy {where['numpy']}; {where['megabytes']} MB of float32, {where['rounds']} rounds: "
        "median (least to most).\n\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
    )


def plot(records: Sequence[Record], path: Path) -> None:
    """Draw the pushes around one save, for each number of PS, and the MB/s.

    Args:
        records: All measurements.
        path: The PNG file to write.
    """
    # matplotlib is an extra, and the worker imports this package without it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = _counts(records)
    figure, panels = pyplot.subplots(1, len(counts) + 1, figsize=(5 * len(counts) + 4, 4.2), squeeze=False)
    for panel, ps in zip(panels[0], counts, strict=False):
        _pushes(panel, _rounds(records, ps))
        panel.set_title(f"each push around a save, {ps} PS", loc="left", fontsize=10)
    _bars(panels[0][-1], records, counts)
    for at, panel in ((0.02, panels[0][0]), (0.66, panels[0][-1])):
        figure.legend(
            *panel.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(at, 0), ncols=3, frameon=False,
            fontsize=8,
        )  # fmt: skip
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _pushes(panel: Any, rounds: Sequence[Record]) -> None:
    """Draw the round whose longest push is the median one."""
    middle = sorted(rounds, key=lambda record: record["busy"]["longest_push_secs"])[(len(rounds) - 1) // 2]
    busy = middle["busy"]
    panel.axvspan(0, busy["save_secs"] * 1e3, color="#f3e3d3", label="save")
    begins, secs = zip(*busy["pushes"], strict=True)
    panel.scatter([at * 1e3 for at in begins], [took * 1e3 for took in secs], s=7, color=_ALONE, label="push")
    panel.axhline(middle["memory_secs"] * 1e3, color="#d9752b", linewidth=1, label="one copy in memory")
    panel.set_yscale("log")
    panel.set_xlabel("began, ms after the begin of the save")
    panel.set_ylabel("ms")
    panel.grid(axis="y", alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def _bars(panel: Any, records: Sequence[Record], counts: Sequence[int]) -> None:
    """Draw MB/s: the medians, with whiskers from the least to the most of the rounds."""
    for at, ((label, secs), color) in enumerate(zip(_RATES.items(), (_PLAIN, _ALONE, _BUSY), strict=True)):
        rates = [_rates(_rounds(records, ps), secs) for ps in counts]
        middles = [median(rate) for rate in rates]
        panel.bar(
            [group + (at - 1) * 0.27 for group in range(len(counts))], middles, 0.25, label=label, color=color,
            yerr=[
                [middle - min(rate) for middle, rate in zip(middles, rates, strict=True)],
                [max(rate) - middle for middle, rate in zip(middles, rates, strict=True)],
            ],
            error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
        )  # fmt: skip
    panel.set_xticks(range(len(counts)), [f"{ps} PS" for ps in counts])
    panel.set_title("MB/s", loc="left", fontsize=10)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    panel.tick_params(axis="x", length=0)
    panel.spines[["top", "right"]].set_visible(False)

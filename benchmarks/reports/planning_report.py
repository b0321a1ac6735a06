"""What was foretold beside what was measured: a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["plot", "table"]

Record = Mapping[str, Any]

_COLORS = {"grpc": "#9ec9e8", "tcp": "#4f93c6", "shm": "#1f6fb4"}
#: What a prediction is to be within.
_AIM = 0.25


def _by_case(records: Sequence[Record]) -> list[tuple[Mapping[str, Any], dict[str, float]]]:
    """Each case with the medians of its rounds; a ratio is taken within a round."""
    cases: list[Mapping[str, Any]] = []
    for record in records:
        if record["case"] not in cases:
            cases.append(record["case"])
    cases.sort(key=lambda case: (case["megabits"] > 0, case["transport"], case["size"], case["ps"], case["workers"]))
    found = []
    for case in cases:
        mine = [record for record in records if record["case"] == case]
        numbers = {
            name: median(record[name] for record in mine)
            for name in ("free_cores", "measured", "predicted", "measured_staleness", "predicted_staleness")
        }
        numbers["ratio"] = median(record["predicted"] / record["measured"] for record in mine)
        found.append((case, numbers))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(records: Sequence[Record], where: Record) -> str:
    """Write the results as Markdown.

    Args:
        records: All runs.
        where: Of which machine.

    Returns:
        Provenance, how far off it was, and the table.
    """
    found = _by_case(records)
    ratios = [numbers["ratio"] for _, numbers in found]
    within = sum(1 / (1 + _AIM) <= ratio <= 1 + _AIM for ratio in ratios)
    absent = f" No throttled links: {where['absent']}." if where["absent"] else ""
    off = median(max(ratio, 1 / ratio) for ratio in ratios)
    head = (
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, load average {where['load_before']} before and "
        f"{where['load_after']} after; Python {where['python']}, grpcio {where['grpcio']}; rounds of "
        f"{where['secs']:g} s a run: {where['rounds']}, medians.{absent}\n\n"
        f"{within} of {len(ratios)} within a factor of {1 + _AIM:g}; the median one is off by a factor of {off:.2f}, "
        f"the worst by {max(max(ratio, 1 / ratio) for ratio in ratios):.2f}.\n"
    )
    columns = [
        *("transport", "rule", "parameters", "PS", "workers", "computing, ms", "link, Mbit/s", "cores left"),
        *("measured, steps/s", "predicted", "ratio", "staleness, measured", "predicted"),
    ]
    lines = [head, f"| {' | '.join(columns)} |", "| --- | --- |" + " ---: |" * (len(columns) - 2)]
    for case, numbers in found:
        lines.append(
            f"| {case['transport']} | {case['optimizer']} | {case['size']:,} | {case['ps']} | {case['workers']} "
            f"| {1e3 * case['step_secs']:g} | {case['megabits'] or ''} | {numbers['free_cores']:.1f} "
            f"| {_number(numbers['measured'])} | {_number(numbers['predicted'])} | {numbers['ratio']:.2f} "
            f"| {numbers['measured_staleness']:.1f} | {numbers['predicted_staleness']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def plot(records: Sequence[Record], path: Path) -> None:
    """Draw each case as a point: what was measured, and what was foretold.

    Args:
        records: All runs.
        path: The PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.4))
    found = _by_case(records)
    rates = [numbers[name] for _, numbers in found for name in ("measured", "predicted")]
    ends = (min(rates) / 1.3, max(rates) * 1.3)
    left.plot(ends, ends, color="#888888", linewidth=1)
    left.fill_between(
        ends,
        [end / (1 + _AIM) for end in ends],
        [end * (1 + _AIM) for end in ends],
        color="#eeeeee",
        label="within 25%",
    )
    most = max(max(n["measured_staleness"], n["predicted_staleness"]) for _, n in found) + 0.3
    right.plot((0, most), (0, most), color="#888888", linewidth=1)
    kinds = sorted({(case["megabits"] > 0, case["transport"], case["ps"]) for case, _ in found})
    for throttled, transport, ps in kinds:
        mine = [
            numbers
            for case, numbers in found
            if (case["megabits"] > 0, case["transport"], case["ps"]) == (throttled, transport, ps)
        ]
        label = f"{transport}, {ps} PS" + (", throttled links" if throttled else "")
        style = {
            "marker": "o" if ps == 1 else "s",
            "facecolors": "none" if throttled else _COLORS[transport],
            "edgecolors": "#d9752b" if throttled else _COLORS[transport],
            "s": 34,
        }
        left.scatter([n["measured"] for n in mine], [n["predicted"] for n in mine], label=label, **style)
        right.scatter([n["measured_staleness"] for n in mine], [n["predicted_staleness"] for n in mine], **style)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_title("steps/s", loc="left", fontsize=10)
    right.set_title("mean staleness, steps", loc="left", fontsize=10)
    for panel in (left, right):
        panel.set_xlabel("measured")
        panel.set_ylabel("predicted")
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

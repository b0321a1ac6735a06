"""From measurements to tables and the pages of docs/."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.harness.contestants import PEERS, Peer
from benchmarks.harness.laps import STAGES
from benchmarks.reports import bars

__all__ = ["cases_in", "peers_in", "profile_table", "publish", "tables", "write"]

Record = Mapping[str, Any]
_R = TypeVar("_R", bound=Mapping[str, Any])


def peers_in(records: Sequence[Record]) -> list[Peer]:
    """The peers that were measured, in order."""
    measured = {record.get("peer") for record in records}
    return [peer for peer in PEERS if peer.key in measured]


def cases_in(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The cases that were measured, in the order of measuring, those of 2 PS after those of 1."""
    found: list[dict[str, Any]] = []
    for record in records:
        if "peer" in record and "case" in record and record["case"] not in found:
            found.append(record["case"])
    return sorted(found, key=lambda case: int(case["ps"]))


def _medians(records: Sequence[Record], case: Mapping[str, Any], what: str) -> dict[str, float]:
    """Peer -> median of one number in a case."""
    turns: dict[str, list[float]] = {}
    for record in records:
        if "peer" in record and record.get("case") == case:
            turns.setdefault(record["peer"], []).append(record[what])
    return {key: median(values) for key, values in turns.items()}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table whose first `left` columns are text."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def provenance(machine: Record) -> str:
    """Where, when and how it was measured."""
    missing = "".join(f" {name}: {why}." for name, why in machine.get("absent", {}).items())
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("peer_versions", {}).items())
    environment = " All peers have globalstep's environment." if machine.get("tuned_peers") else ""
    return (
        f"{machine['date']}; {machine['cpu']}, {machine['cores']} cores, load average {machine['load_before']} before "
        f"and {machine['load_after']} after; Python {machine['python']}, grpcio {machine['grpcio']}, "
        f"protobuf {machine['protobuf']}, numpy {machine['numpy']}, numba {machine['numba']}"
        f"{'; peers: ' + versions if versions else ''}; "
        f"{machine['rounds']} interleaved rounds of {machine['secs_per_turn']:g} s a turn, medians."
        f"{environment}{missing}\n"
    )


def _bars(records: Sequence[Record]) -> str:
    rows = []
    for verdict in bars.verdicts(records):
        ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        reached = {True: "yes", False: "**no**", None: "unknown"}[verdict.reached]
        sign = "at most " if verdict.at_most else ""
        rows.append(
            [verdict.what, str(verdict.ps), verdict.mine, verdict.against, ratio, f"{sign}{verdict.bar:g}", reached]
        )
    return _table(["workload", "PS", "globalstep", "beside", "ratio", "bar", "reached"], rows, 2)


def tables(records: Sequence[Record], machine: Record) -> str:
    """Write the results as Markdown: the bars, everybody's rates, and what was lost.

    Args:
        records: Of one run.
        machine: Of the run, see bench.py.
    """
    plain = [record for record in records if not record.get("profile")]
    out = f"{provenance(machine)}\nThe bars (a ratio is the median of the rounds' own ratios):\n\n{_bars(plain)}"
    measured = peers_in([record for record in plain if "case" in record])
    rows = []
    for case in cases_in(plain):
        rates = _medians(plain, case, "rate")
        unit = 8192 / 1e3 if case["kind"] == "embedding" else 1.0
        cells = [_number(rates[peer.key] * unit) if peer.key in rates else "" for peer in measured]
        label = bars.case_label(case) + (" (k rows/s)" if case["kind"] == "embedding" else "")
        rows.append([label, str(case["ps"]), *cells])
    if rows:
        head = ["workload", "PS", *(peer.label for peer in measured)]
        out += f"\nSteps/s of all workers together (k rows/s where it says so):\n\n{_table(head, rows, 2)}"
    return out + _lost(plain)


def _lost(records: Sequence[Record]) -> str:
    """Say which peers' steps are not what was pushed."""
    lost: dict[str, list[int]] = {}
    for record in records:
        if "lost_steps" in record:
            sums = lost.setdefault(record["program"], [0, 0])
            sums[0] += record["lost_steps"]
            sums[1] += record["steps"]
    if not lost:
        return ""
    said = ", ".join(f"{name} {missing:,} of {steps:,}" for name, (missing, steps) in lost.items())
    return f"\nSteps that were pushed and that global_step does not have: {said}.\n"


def profile_table(records: Sequence[Record], machine: Record) -> str:
    """Write where a step's time goes on both sides, as Markdown.

    Args:
        records: Of one run; those of profiling are taken.
        machine: Of the run.
    """
    profiled = [record for record in records if record.get("profile")]
    if not profiled:
        return ""
    rows = []
    for case in cases_in(profiled):
        steps = _medians(profiled, case, "step_us")
        cpu, ps_cpu = _medians(profiled, case, "worker_cpu_us"), _medians(profiled, case, "ps_cpu_us")
        applied = _medians(profiled, case, "apply_us")
        for peer in (peer for peer in PEERS if peer.key in steps):
            mine = [r for r in profiled if r.get("peer") == peer.key and r.get("case") == case]
            stages = [
                _number(median(r["stages_us"][stage] for r in mine)) if stage in mine[0]["stages_us"] else ""
                for stage in STAGES
            ]
            rows.append(
                [
                    bars.case_label(case), str(case["ps"]), peer.label, _number(steps[peer.key]), *stages,
                    _number(applied[peer.key]) if applied[peer.key] else "",
                    _number(cpu[peer.key]), _number(ps_cpu[peer.key]),
                ]
            )  # fmt: skip
    head = ["workload", "PS", "peer", "step", *STAGES, "PS: applying", "processor, worker", "processor, PS"]
    return f"{provenance(machine)}\nMicroseconds a step:\n\n{_table(head, rows, 3)}"


def write(
    results: Path,
    name: str,
    records: Sequence[_R],
    description: dict[str, Any],
    table: Callable[[Sequence[_R], dict[str, Any]], str],
) -> None:
    """Write what was measured as JSON lines, and its table, which is printed too.

    Args:
        results: Folder of the results; made if need be.
        name: Of both files.
        records: What was measured.
        description: Of the machine; the load is added to it as it is now.
        table: Makes the table of both.
    """
    description["load_after"] = round(os.getloadavg()[0], 1)
    results.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(item) for item in ({"machine": description}, *records)]
    (results / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    text = table(records, description)
    (results / f"{name}.md").write_text(text)
    print(text)


def publish(results: Path, name: str, root: Path) -> None:
    """Put results into benchmarks/figures.md, and pictures into the documentation.

    Args:
        results: Folder of the results.
        name: Which; the page has a place marked "<!-- NAME: begin -->" to "<!-- NAME: end -->".
        root: The repository.

    Raises:
        ValueError: If the page has no such place.
    """
    page = root / "benchmarks" / "figures.md"
    text = page.read_text()
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} must contain {begin.strip()!r} and {end!r} once each.")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + begin + "\n" + (results / f"{name}.md").read_text() + "\n" + end + after)
    for picture in (results / f"{name}.png", *results.glob(f"{name}-*.png")):
        if picture.exists():
            shutil.copy(picture, root / "docs" / "img" / picture.name)

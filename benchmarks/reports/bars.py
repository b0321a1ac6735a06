"""What globalstep is to reach, as ratios to its peers within one run, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.harness.workload import Case

__all__ = [
    "SIZES",
    "Verdict",
    "case_label",
    "cases",
    "chosen",
    "compared",
    "in_words",
    "judge",
    "rates",
    "ratios",
    "verdicts",
]

Record = Mapping[str, Any]

SIZES = (1_000, 100_000, 1_000_000, 10_000_000, 25_000_000)
_TABLE_ROWS = 1_000_000
#: 200 Variables of 5 k each beside one Variable of as many.
MANY = tuple(Case("dense", 1_000_000, variables=variables) for variables in (200, 1))
#: How many clients count.
CLIENTS = (1, 4)


@dataclass(frozen=True)
class Verdict:
    """One line of the table of bars.

    Attributes:
        what: The workload.
        ps: How many PS.
        mine: What was measured of globalstep, with its unit.
        against: Who or what it is compared with, and what that reached.
        ratio: Median of the rounds' ratios; None where the other is absent.
        bar: What the ratio is to be.
        at_most: Whether it is to be no more than the bar, instead of no less.
    """

    what: str
    ps: int
    mine: str
    against: str
    ratio: float | None
    bar: float
    at_most: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether the bar is reached; None where that is not known."""
        if self.ratio is None:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


def in_words(size: int) -> str:
    """A number of parameters as people say it.

    >>> in_words(1000), in_words(100_000), in_words(10_000_000)
    ('1 k', '0.1 M', '10 M')
    """
    return f"{size / 1e6:g} M" if size >= 100_000 else f"{size / 1e3:g} k"


def dense_cases(ps: int) -> Iterator[Case]:
    """The sizes, each with its rules; the smallest has one worker and SGD alone."""
    for size in SIZES:
        if size == 1_000:
            yield Case("dense", size, workers=1, ps=ps)
        else:
            for rule in ("sgd", "adam"):
                yield Case("dense", size, rule=rule, ps=ps)


def cases(ps: int) -> list[Case]:
    """All cases whose peers take turns, with so many PS."""
    out = list(dense_cases(ps))
    out += [Case("embedding", _TABLE_ROWS, rule=rule, ps=ps) for rule in ("sgd", "adagrad")]
    out += [Case("counter", workers=workers, ps=ps) for workers in CLIENTS]
    return out


def chosen(counts: Sequence[int], kinds: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    """Give the cases of some numbers of PS and some kinds; of the dense ones those of some sizes."""
    found = [case for ps in counts for case in cases(ps) if case.kind in kinds]
    return [case for case in found if case.kind != "dense" or case.size in sizes]


def case_label(case: Mapping[str, Any]) -> str:
    """A case in words, without its number of PS.

    >>> case_label(Case("dense", 1000, workers=1).as_dict())
    '1 k, SGD, 1 worker'
    """
    workers = f"{case['workers']} worker{'s' if case['workers'] > 1 else ''}"
    rule = {"sgd": "SGD", "adam": "Adam", "adagrad": "Adagrad"}[case["rule"]]
    if case["kind"] == "dense":
        if case["variables"] == 10:
            return f"{in_words(case['size'])}, {rule}, {workers}"
        count = case["variables"]
        each = in_words(case["size"] // count)
        return f"{count} Variable{'s' if count > 1 else ''} of {each}, {rule}, {workers}"
    if case["kind"] == "embedding":
        return f"embedding, {rule}, {workers}"
    if case["kind"] == "counter":
        return f"global_step, {case['workers']} client{'s' if case['workers'] > 1 else ''}"
    return "digits"


def rates(records: Sequence[Record], case: Case | None, key: str) -> dict[int, float]:
    """A peer's rate in each round of a case; of the only one that there is in `records` where it is None."""
    wanted = None if case is None else case.as_dict()
    return {r["round"]: r["rate"] for r in records if r.get("peer") == key and wanted in (None, r.get("case"))}


def _best(records: Sequence[Record], case: Case, keys: Sequence[str]) -> str | None:
    """The fastest of some peers in a case; None where none of them was measured."""
    found = {key: median(turns.values()) for key in keys if (turns := rates(records, case, key))}
    return max(found, key=lambda key: found[key]) if found else None


def ratios(mine: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Give the ratio of each round that both have, in order."""
    return [mine[number] / other[number] for number in sorted(mine.keys() & other.keys())]


def judge(mine: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Median of the ratios of the rounds that both have; None where there is none."""
    found = ratios(mine, other)
    return median(found) if found else None


def compared(mine: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Say how two peers do in a case: their rates, the median of the rounds' ratios, and its quarters.

    >>> compared({0: 30.0, 1: 20.0, 2: 10.0}, dict.fromkeys(range(3), 10.0))
    '      20.0       10.0  2.000  (1.000 to 3.000)'
    """
    found = ratios(mine, other)
    low, middle, high = quantiles(found, n=4) if len(found) > 1 else found * 3
    return f"{median(mine.values()):10.1f} {median(other.values()):10.1f}  {middle:5.3f}  ({low:5.3f} to {high:5.3f})"


_NAMES = {"tensorflow": "TF1", "torch-shm": "torch rpc (shm)", "torch-tcp": "torch rpc (tcp)"}
_TORCH = ("torch-shm", "torch-tcp")


def _bars_of(case: Case) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """(globalstep's form, whom to compare with: the best of them, bar) of a case."""
    small = case.size <= 100_000
    if case.kind == "dense" and case.variables == 10:
        over_torch = {1_000: 2.5, 100_000: 2.0}.get(case.size, 1.5)
        yield "auto", ("tensorflow",), 3.0 if case.size <= 1_000_000 else 2.5
        yield "auto", _TORCH, over_torch
        yield "grpc", ("tensorflow",), 2.5 if small else 0.9
        yield "tcp", ("torch-tcp",), 3.0 if small else 1.3
    elif case.kind == "embedding":
        yield "auto", ("tensorflow",), 3.0
        yield "auto", _TORCH, 2.0
    elif case.kind == "counter":
        yield "auto", ("tensorflow",), 4.0


def _of_case(records: Sequence[Record], case: Case) -> Iterator[Verdict]:
    unit = 8192 / 1e6 if case.kind == "embedding" else 1.0
    called = "M rows/s" if case.kind == "embedding" else "/s"
    for form, keys, bar in _bars_of(case):
        mine = rates(records, case, form)
        if not mine:
            continue
        rival = _best(records, case, keys)
        other = rates(records, case, rival) if rival else {}
        name = _NAMES[rival or keys[0]]
        what = case_label(case.as_dict()) + ("" if form == "auto" else f", transport={form}")
        yield Verdict(
            what, case.ps, _amount(median(mine.values()) * unit, called),
            f"{name} {_amount(median(other.values()) * unit, called)}" if other else f"{name}: absent",
            judge(mine, other), bar,
        )  # fmt: skip


def _amount(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{'' if unit == '/s' else ' '}{unit}"


def _many(records: Sequence[Record], ps: int) -> Iterator[Verdict]:
    many, one = (Case("dense", 1_000_000, variables=case.variables, ps=ps) for case in MANY)
    for key in ("auto",):
        mine, other = rates(records, many, key), rates(records, one, key)
        if mine and other:
            yield Verdict(
                case_label(many.as_dict()), ps, _amount(median(mine.values()), "/s"),
                f"one Variable of 1 M {_amount(median(other.values()), '/s')}", judge(mine, other), 0.85,
            )  # fmt: skip


def _kernel(records: Sequence[Record]) -> Iterator[Verdict]:
    rounds = [r for r in records if "ps_gb_per_sec" in r]
    if not rounds:
        return
    mine = {r["round"]: r["ps_gb_per_sec"] for r in rounds}
    other = {r["round"]: r["c_gb_per_sec"] for r in rounds if "c_gb_per_sec" in r}
    against = f"C {_amount(median(other.values()), 'GB/s')}" if other else "C: no gcc"
    yield Verdict(
        f"fused Adam on {in_words(rounds[0]['elements'])} floats in the PS", 1,
        _amount(median(mine.values()), "GB/s"), against, judge(mine, other), 0.85,
    )  # fmt: skip


def _digits(records: Sequence[Record]) -> Iterator[Verdict]:
    for what, field in (("digits job, time to 97%", "secs"), ("... with the start of all processes", "total_secs")):
        found: dict[str, dict[int, float]] = {}
        for record in records:
            if record.get("job") == "digits" and field in record:
                # A job that never got there has no rate.
                rate = 1.0 / record[field] if record["reached"] else 0.0
                found.setdefault(record["peer"], {})[record["round"]] = rate
        mine = found.get("session", {})
        for keys in (("tensorflow",), _TORCH):
            present = [key for key in keys if found.get(key)]
            if not mine:
                continue
            rival = max(present, key=lambda key: median(found[key].values())) if present else None
            other = {n: rate for n, rate in found[rival].items() if rate} if rival else {}
            name = _NAMES[rival or keys[0]]
            against = f"{name} {1 / median(other.values()):.2f} s" if other else f"{name}: absent"
            shown = f"{1 / median(mine.values()):.2f} s" if median(mine.values()) else "not reached"
            yield Verdict(what, 1, shown, against, judge(mine, other), 1.0)


def _memory(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in (r for r in records if "limit_bytes" in r):
        held = record["held_bytes"] / 1e6
        yield Verdict(
            f"memory of the PS, {record['what']}", record["ps"], f"{record['peak_bytes'] / 1e6:,.0f} MB",
            f"values + slots {held:,.0f} MB, limit {record['limit_bytes'] / 1e6:,.0f} MB",
            record["peak_bytes"] / record["limit_bytes"], 1.0, at_most=True,
        )  # fmt: skip


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Judge whatever was measured.

    Args:
        records: Of one run.

    Returns:
        One line for each bar, in the order of the issue's table; both numbers of PS together.
    """
    counts = sorted({r["case"]["ps"] for r in records if "peer" in r and "case" in r})
    by_ps: list[list[Verdict]] = []
    for ps in counts:
        out: list[Verdict] = []
        for case in cases(ps):
            if case.kind == "embedding" and case.rule == "sgd":
                out += _many(records, ps)
            out += _of_case(records, case)
        by_ps.append(out)
    order: dict[str, int] = {}
    for verdict in (verdict for out in by_ps for verdict in out):
        order.setdefault(verdict.what, len(order))
    both = sorted((verdict for out in by_ps for verdict in out), key=lambda verdict: order[verdict.what])
    tails: Sequence[Callable[[Sequence[Record]], Iterator[Verdict]]] = (_kernel, _digits, _memory)
    return both + [verdict for tail in tails for verdict in tail(records)]

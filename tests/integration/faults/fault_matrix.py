"""The fault matrix: which fault at which task at which moment, and what then happens.

The tests in tests/integration/faults/test_fault_matrix.py (every cell, in one process) and
test_fault_matrix_processes.py (kill and SIGSTOP of real processes) run what is listed here, and
docs/conf.py puts its table into docs/design/testing.md: `python tests/integration/faults/fault_matrix.py` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from globalstep.runtime.faults import AFTER, APPLY, BEFORE, CUT, REPLY, SEND

PAGE = Path(__file__).resolve().parents[3] / "docs" / "design" / "testing.md"

#: PS 0 is the sequencer, PS 1 the other participant of every push.
SUBJECTS = {"ps:0": "PS 0", "ps:1": "PS 1", "chief": "chief", "worker": "worker"}
FAULTS = {
    "kill": "kill -9",
    "stop": "SIGSTOP, then SIGCONT",
    "cut": "connection cut",
    "lost": "reply lost",
    "doubled": "request doubled",
    "late": "request delayed past its deadline",
}
MOMENTS = {
    "before": "before the apply",
    "between": "between two shards' applies",
    "increment": "before the increment",
    "save": "during a save",
    "restore": "during a restore",
}
#: Faults of a message, and not of a process.
MESSAGE_FAULTS = ("lost", "doubled", "late")


@dataclass(frozen=True)
class Cell:
    """One cell: the points at which its fault is made to happen, and what follows.

    Attributes:
        subject: Key of SUBJECTS.
        fault: Key of FAULTS.
        moment: Key of MOMENTS.
        points: Pairs of method and point (see globalstep.runtime.faults); empty where there is no such cell.
        law: Rows of the table "Points of failure" in docs/design/push-protocol.md.
        mends: Who mends it, and how.
        lost: What is lost.
        impossible: Why there is no such cell; "" where there is one.
    """

    subject: str
    fault: str
    moment: str
    points: tuple[tuple[str, str], ...] = ()
    law: str = ""
    mends: str = ""
    lost: str = "nothing"
    impossible: str = ""

    @property
    def name(self) -> str:
        """What tests call it."""
        return f"{self.subject}-{self.fault}-{self.moment}"


#: (subject, moment) -> points of a fault that strikes the process or its connection there.
_STRIKES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("ps:0", "before"): (("push", BEFORE), (APPLY, BEFORE)),
    ("ps:0", "between"): ((APPLY, AFTER), ("push", AFTER)),
    ("ps:0", "increment"): (("pull", BEFORE),),
    ("ps:0", "save"): ((CUT, BEFORE), ("push", AFTER), ("write_snapshot", BEFORE), ("write_snapshot", AFTER)),
    ("ps:0", "restore"): (("begin", AFTER), ("declare", BEFORE), ("push", AFTER), ("open", BEFORE), ("open", AFTER)),
    ("ps:1", "before"): (("stage", BEFORE), ("stage", AFTER)),
    ("ps:1", "between"): (("commit", BEFORE), (APPLY, BEFORE)),
    ("ps:1", "increment"): ((APPLY, AFTER), ("commit", AFTER)),
    ("ps:1", "save"): ((CUT, BEFORE), ("commit", AFTER), ("write_snapshot", BEFORE), ("write_snapshot", AFTER)),
    ("ps:1", "restore"): (("begin", AFTER), ("declare", BEFORE), ("commit", BEFORE), ("open", BEFORE)),
    ("chief", "before"): (("stage", SEND), ("push", SEND)),
    ("chief", "between"): (("push", REPLY), ("commit", SEND)),
    ("chief", "increment"): (("commit", REPLY), ("pull", SEND)),
    ("chief", "save"): (("commit", SEND), ("write_snapshot", SEND), ("write_snapshot", REPLY)),
    ("chief", "restore"): (("begin", REPLY), ("declare", SEND), ("commit", SEND), ("open", SEND), ("open", REPLY)),
    ("worker", "before"): (("stage", SEND), ("push", SEND)),
    ("worker", "between"): (("push", REPLY), ("commit", SEND)),
    ("worker", "increment"): (("commit", REPLY), ("pull", SEND)),
    ("worker", "save"): (("stage", SEND), ("commit", SEND)),
    ("worker", "restore"): (("stage", SEND),),
}

#: (subject, moment) -> requests that get lost on their way back, doubled or late; by fault where they differ.
_MESSAGES: dict[tuple[str, str], tuple[str, ...] | dict[str, tuple[str, ...]]] = {
    ("ps:0", "before"): {"doubled": ("push",), "late": ("push",)},
    ("ps:0", "between"): ("push",),
    ("ps:0", "increment"): {"doubled": ("pull",), "late": ("pull",)},
    ("ps:0", "save"): ("push", "write_snapshot"),
    ("ps:0", "restore"): ("begin", "declare", "push", "open"),
    ("ps:1", "before"): ("stage",),
    ("ps:1", "between"): {"doubled": ("commit",), "late": ("commit",)},
    ("ps:1", "increment"): ("commit",),
    ("ps:1", "save"): ("commit", "write_snapshot"),
    ("ps:1", "restore"): ("begin", "declare", "commit", "open"),
    ("chief", "before"): ("stage",),
    ("chief", "between"): {"lost": ("push",), "doubled": ("push", "commit"), "late": ("push", "commit")},
    ("chief", "increment"): {"lost": ("commit",), "doubled": ("pull",), "late": ("pull",)},
    ("chief", "save"): ("push", "write_snapshot"),
    ("chief", "restore"): ("begin", "declare", "stage", "open"),
    ("worker", "before"): ("stage",),
    ("worker", "between"): {"lost": ("push",), "doubled": ("push", "commit"), "late": ("push", "commit")},
    ("worker", "increment"): {"lost": ("commit",), "doubled": ("pull",), "late": ("pull",)},
    ("worker", "save"): ("stage", "commit"),
    ("worker", "restore"): {"doubled": ("stage",), "late": ("stage",)},
}

_IMPOSSIBLE = {
    ("ps:0", "lost", "before"): "PUSH is the only request then; when its reply is under way, PS 0 has applied",
    ("ps:0", "lost", "increment"): "a PULL of nothing is the only request then, and no client waits for its reply",
    ("ps:1", "lost", "between"): "COMMIT is the only request then; when its reply is under way, PS 1 has applied",
    ("worker", "lost", "restore"): "a worker's requests are refused then, and a lost refusal is asked for again",
}

_LAW = {
    ("ps:0", "before"): "P1, P2",
    ("ps:0", "between"): "P3",
    ("ps:0", "increment"): "P6",
    ("ps:1", "before"): "P1",
    ("ps:1", "between"): "P4",
    ("ps:1", "increment"): "P5",
    "before": "P1, P2",
    "between": "P3, P4",
    "increment": "P5, P6",
    "save": "Save",
    "restore": "Restore",
}

_BACK = "what came after the newest checkpoint"


def _follows(subject: str, fault: str, moment: str) -> tuple[str, str, str]:
    """Give (law, who mends, what is lost)."""
    law = _LAW.get((subject, moment)) or _LAW[moment]
    if fault == "kill" and subject.startswith("ps"):
        law = f"{law}; {'P8' if subject == 'ps:0' else 'P7'}"
        if moment == "restore":
            return law, "the chief begins a higher incarnation and restores again", "nothing more"
        if moment == "save":
            return law, "the save fails; the chief restores the newest checkpoint on all shards", f"the save, {_BACK}"
        return law, "the chief restores the newest checkpoint on all shards, in a new incarnation", _BACK
    if fault == "kill" and subject == "chief":
        if moment == "restore":
            return f"{law}; P9", "the next chief finds no open incarnation, and begins a higher one", "nothing more"
        if moment == "save":
            return f"{law}; P9", "the next chief takes over; what the save left is no checkpoint", "the save"
        law = f"{law}; P9"
    if moment == "restore" and subject == "worker":
        if fault == "kill":
            return f"{law}; P10", "no task: it takes no part, and its push is in no incarnation", "its push"
        if fault == "cut":
            return f"{law}; P10", "the worker asks again, is refused by the new life, and joins it", "nothing more"
        return (
            f"{law}; P10",
            "all shards refuse what belongs to the old life; the worker joins the new one",
            "nothing more",
        )
    if fault == "kill" and moment == "before":
        return law, "each shard's settler has the push fenced and drops its part", "the push, unknown to its client"
    if fault == "kill" and moment in ("between", "save"):
        return law, "the next push of any client brings the entries along, or SETTLE fetches them", "nothing"
    if fault == "kill":
        return law, "any later message brings the floors", "nothing"
    if fault == "stop":
        if subject.startswith("ps"):
            return law, "its callers wait; their deadlines are longer", "nothing"
        if moment == "before":
            return law, "SETTLE fences the push; its worker wakes, gets ABANDONED and pushes anew", "nothing"
        if moment == "save":
            return law, "pushes go on; the save is written when it wakes", "nothing"
        if moment == "restore":
            return law, "no client is served until it wakes and goes on", "nothing"
        return law, "others bring the entries along; it wakes and finds its push done", "nothing"
    if moment == "restore":
        again = "the chief asks again, as often as it takes; the PS knows the request by incarnation, owner or push id"
        return law, again, "nothing"
    if moment == "save":
        return (
            law,
            "the snapshot is known by its id; a part is written again or the save is given up as a whole",
            "at most the save",
        )
    what = {
        "cut": "the client sends it again, over gRPC if a socket broke; its id makes it one",
        "lost": "the client asks again and gets the recorded outcome",
        "doubled": "the second is answered from the table and changes nothing",
        "late": "the client asks again; what comes late finds its id done",
    }
    return law, what[fault], "nothing"


def _points(subject: str, fault: str, moment: str) -> tuple[tuple[str, str], ...]:
    if fault not in MESSAGE_FAULTS:
        points = _STRIKES[subject, moment]
        # Within a critical section nothing but the whole process can fail.
        return tuple(item for item in points if fault in ("kill", "stop") or item[0] not in (APPLY, CUT))
    methods = _MESSAGES[subject, moment]
    if isinstance(methods, dict):
        methods = methods.get(fault, ())
    return tuple((method, REPLY if fault == "lost" else SEND) for method in methods)


def cells() -> Iterator[Cell]:
    """All cells, those that cannot be included."""
    for subject in SUBJECTS:
        for fault in FAULTS:
            for moment in MOMENTS:
                impossible = _IMPOSSIBLE.get((subject, fault, moment), "")
                if impossible:
                    yield Cell(subject, fault, moment, impossible=impossible)
                else:
                    law, mends, lost = _follows(subject, fault, moment)
                    yield Cell(subject, fault, moment, _points(subject, fault, moment), law, mends, lost)


def _where(alike: Iterable[Cell]) -> str:
    """Name the tasks and moments of cells; tasks of the same moments stand together."""
    tasks: dict[str, list[str]] = {}
    for subject, group in groupby(alike, key=lambda cell: cell.subject):
        tasks.setdefault(", ".join(cell.moment for cell in group), []).append(SUBJECTS[subject])
    return "; ".join(f"{', '.join(names)}: {moments}" for moments, names in tasks.items())


def table() -> str:
    """The matrix for people: a row for the cells that have the same outcome; without those that cannot be."""
    outcomes: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells():
        if not cell.impossible:
            outcomes.setdefault((cell.mends, cell.lost), {}).setdefault(cell.fault, []).append(cell)
    parts = ["| fault | task: moment | law | who mends it, how | lost |", "|---|---|---|---|---|"]
    for (mends, lost), by_fault in outcomes.items():
        rows: dict[str, list[str]] = {}
        for fault, alike in by_fault.items():
            rows.setdefault(_where(alike), []).append(fault)
        for where, faults in rows.items():
            law = sorted({row for cell in by_fault[faults[0]] for row in re.split("[,;] ", cell.law)})
            names = "; ".join(FAULTS[fault] for fault in faults)
            parts.append(f"| {names} | {where} | {', '.join(law)} | {mends} | {lost} |")
    return "\n".join(parts) + "\n"


def page(text: str) -> str:
    """Put the table into the page's text."""
    return text.replace("<!-- the matrix -->\n", table())


if __name__ == "__main__":
    print(table(), end="")

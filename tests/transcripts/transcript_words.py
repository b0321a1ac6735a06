"""Messages in words: what a transcript says of a request, and of its answer.

Names in capitals are those of push-protocol.md. What is not in these tables a transcript leaves out: signs of life,
questions how a task is, secrets, times, sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec

__all__ = ["ANSWERS", "REQUESTS", "STEP", "Numbers", "listed", "number", "push_name"]

STEP = "global_step"


class Numbers:
    """Numbers incarnations, and terms of chiefs, from 1, in the order in which a transcript meets them; 0 is none."""

    def __init__(self) -> None:
        #: Name of a push -> what its staged part reads.
        self.staged: dict[str, Any] = {}
        self._lives: dict[int, int] = {0: 0}
        self._terms: dict[int, int] = {0: 0}

    def life(self, incarnation: int) -> int:
        """Number an incarnation."""
        return self._lives.setdefault(incarnation, len(self._lives))

    def term(self, term: int) -> int:
        """Number a term."""
        return self._terms.setdefault(term, len(self._terms))


def push_name(push: Any) -> str:
    """Name a push: a2 is the second one of worker a."""
    return f"{push.client.removeprefix('worker ')}{push.sequence}"


def number(value: Any) -> str:
    """Write a value as short as it may be."""
    return f"{float(np.asarray(value).reshape(-1)[0]):g}"


def listed(items: Iterable[object]) -> str:
    """Join words: "1, 2 and 3"."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


# ---- Requests -----------------------------------------------------------------------------------


def _part(request: Any) -> str:
    """Say what a push, or its part, is to do on a shard."""
    said = []
    for kind, words in ((pb.OP_APPLY, "gradient of"), (pb.OP_ASSIGN, "value of")):
        if names := [op.variable for op in request.ops if op.kind == kind]:
            said.append(f"{words} {listed(names)}")
    if request.reads:
        said.append(f"read {listed(read.variable for read in request.reads)}")
    return ", ".join(said) or "nothing"


def _counts(request: Any) -> list[str]:
    """Say how a push moves steps on."""
    said = []
    for item in request.increments:
        if item.closes:
            said.append(f"make what follows step {request.seen_steps[item.step]} of what is there")
        elif item.unit:
            said.append(f"unit {item.unit} of {item.contributions} after step {request.seen_steps[item.step]}")
        elif item.contributions:
            base = request.seen_steps[item.step]
            said.append(f"one of {item.contributions} contributions after step {base}")
        else:
            said.append(f"step + {item.by}")
    return said


def _floors(floors: Iterable[Any]) -> list[str]:
    return [f"ps {floor.shard} has applied {floor.index}" for floor in floors]


def _stage(request: Any, numbers: Numbers) -> str:
    numbers.staged[push_name(request.id)] = request.reads
    return f"STAGE {push_name(request.id)}: {_part(request)}"


def _push(request: Any, numbers: Numbers) -> str:
    said = ["a snapshot" if request.snapshot else _part(request), *_counts(request)]
    if request.others:
        said.append(f"with ps {listed(sorted(request.others))}")
    return f"PUSH {push_name(request.id)}: {', '.join(said + _floors(request.floors))}"


def _entry(entry: Any, own: Any) -> str:
    """Name an entry by its number, and by whose it is where that is not clear."""
    return str(entry.index) if entry.push == own else f"{entry.index} ({push_name(entry.push)})"


def _commit(request: Any, numbers: Numbers) -> str:
    if not request.entries:
        return f"COMMIT {push_name(request.id)}: no entry"
    found = [_entry(entry, request.id) for entry in request.entries]
    return f"COMMIT {push_name(request.id)}: {'entries' if len(found) > 1 else 'entry'} {listed(found)}"


def _pull(request: Any, numbers: Numbers) -> str:
    what = listed(read.variable for read in request.reads) if request.reads else "nothing"
    if request.HasField("snapshot"):
        return f"PULL {what if request.reads else 'the ledger'} of {push_name(request.snapshot)}"
    if not (request.reads or request.cut_with or request.floors):
        return ""  # it looks whether the task is there
    beside = [f"with ps {listed(sorted(request.cut_with))}"] if request.cut_with else []
    return "; ".join([f"PULL {what}", *beside, *_floors(request.floors)])


def _await_step(request: Any, numbers: Numbers) -> str:
    if request.units:
        return f"AWAIT_STEP: at step {request.base}, wants a unit of {request.units}"
    return f"AWAIT_STEP: what follows step {request.base}"


def _settle(request: Any, numbers: Numbers) -> str:
    asked = [f"what of {listed(map(push_name, request.pushes))}?"] if request.pushes else []
    return "SETTLE: " + "; ".join([f"applied {request.applied}", *asked])


def _begin(request: Any, numbers: Numbers) -> str:
    term = f", term {numbers.term(request.chief_term)}" if request.chief_term else ""
    ledger = ", with the checkpoint's ledger" if request.ledger else ""
    return f"BEGIN life {numbers.life(request.incarnation)}{ledger}{term}"


def _open(request: Any, numbers: Numbers) -> str:
    term = [f"term {numbers.term(request.chief_term)}"] if request.chief_term else []
    return ", ".join(["OPEN", *(f"stop at step {last}" for last in request.last_steps.values()), *term])


def _recover(request: Any, numbers: Numbers) -> str:
    return "; ".join([f"RECOVER life {numbers.life(request.incarnation)}", *_floors(request.floors)])


def _claim(request: Any, numbers: Numbers) -> str:
    how = f" if the chief is silent for {request.after_secs:g} s" if request.after_secs else ""
    return f"CLAIM_CHIEF{how}"


def _finish(request: Any, numbers: Numbers) -> str:
    return f"FINISH{f', term {numbers.term(request.chief_term)}' if request.chief_term else ''}"


REQUESTS: Mapping[str, Callable[[Any, Numbers], str]] = {
    "stage": _stage,
    "push": _push,
    "commit": _commit,
    "pull": _pull,
    "await_step": _await_step,
    "await_slower": lambda request, numbers: "AWAIT_SLOWER",
    "ReleaseSnapshot": lambda request, numbers: f"RELEASE_SNAPSHOT {push_name(request.snapshot)}",
    "Settle": _settle,
    "Begin": _begin,
    "Declare": lambda request, numbers: f"DECLARE {listed(item.name for item in request.variables)}",
    "Open": _open,
    "Recover": _recover,
    "ClaimChief": _claim,
    "Finish": _finish,
    "Leave": lambda request, numbers: "LEAVE",
}

# ---- Answers ------------------------------------------------------------------------------------


def _values(reads: Iterable[Any], found: Iterable[Any], data: memoryview, as_of: int = 0) -> list[str]:
    values = codec.decode_values(found, data)
    said = [f"{read.variable} = {number(value)}" for read, value in zip(reads, values, strict=False)]
    return [*said[:-1], f"{said[-1]} as of entry {as_of}"] if said and as_of else said


def _outcome(outcome: Any) -> list[str]:
    kind = pb.OutcomeKind.Name(outcome.kind).removeprefix("OUTCOME_")
    again = " as before" if outcome.duplicate else ""
    if outcome.kind == pb.OUTCOME_ACCEPTED:
        return [f"{kind}{again}: entry {outcome.index}, step {outcome.steps[STEP]}"]
    return [f"{kind}{again}: step {outcome.steps[STEP]}"] if outcome.steps else [f"{kind}{again}"]


def _decided(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    said = _outcome(reply.outcome)
    for item in reply.pending:
        if item.entries:
            said.append(f"for ps {item.shard}: {listed(_entry(entry, request.id) for entry in item.entries)}")
    return "; ".join(said + _values(request.reads, reply.values, data))


def _committed(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    values = _values(numbers.staged.get(push_name(request.id), ()), reply.values, data, reply.as_of)
    return "; ".join([f"applied {reply.applied}", *values]) if request.entries else ""


def _pulled(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    if reply.ledger:
        return "the ledger"
    if not request.reads and not request.cut_with:
        return ""  # nobody waits for it
    said = _values(request.reads, reply.values, data)
    if reply.last:
        others = sorted((shard, index) for shard, index in reply.last.items() if shard not in _own(reply))
        said += [f"goes with entry {index} of ps {shard}" for shard, index in others]
    elif request.cut_with:
        said.append(f"as of entry {reply.applied}")
    return "; ".join(said)


def _own(reply: Any) -> set[int]:
    """The sequencer, which is asked about itself as well."""
    return {shard for shard, index in reply.last.items() if index == reply.applied and shard == 0}


def _step_of(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    if request.units:
        return f"step {reply.steps[STEP]}, " + (f"unit {reply.unit}" if reply.unit else "no unit")
    if reply.over:
        return f"step {reply.steps[STEP]}"
    due = "; nobody else will come" if reply.due else ""
    return f"{reply.contributions} of {reply.wanted} are there{due}"


def _slower(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    if not reply.over:
        return f"wait: {reply.lead} ahead"
    return f"go on; {reply.free_pushes} more are free"


def _settled(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    told = {push_name(entry.push) for entry in reply.entries}
    never = [push_name(push) for push in request.pushes if push_name(push) not in told]
    said = [f"entry {entry.index} is {push_name(entry.push)}" for entry in reply.entries]
    said += [f"{name} is ABANDONED" for name in never]
    return "; ".join(said)


def _granted(request: Any, reply: Any, data: memoryview, numbers: Numbers) -> str:
    return f"granted: term {numbers.term(reply.chief.term)}" if reply.granted else "not granted"


ANSWERS: Mapping[str, Callable[[Any, Any, memoryview, Numbers], str]] = {
    "push": _decided,
    "commit": _committed,
    "pull": _pulled,
    "await_step": _step_of,
    "await_slower": _slower,
    "Settle": _settled,
    "Recover": lambda request, reply, data, numbers: f"back at entry {reply.applied}",
    "ClaimChief": _granted,
    "ReleaseSnapshot": lambda request, reply, data, numbers: "",
    "Leave": lambda request, reply, data, numbers: "",
}

"""Records what PS tasks were asked and what they answered, and what clients were told, as plain data.

Only what crosses the wire is taken down: each event as the shard got it, and its reply. What a process forgets when it
dies, and which answers left it, are in the record too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock

import numpy as np
import push_protocol as spec
from greenlet import getcurrent
from simulated_disk import Crashed
from simulated_network import Network
from simulated_task import SimulatedTask

from globalstep.errors import AbortedError, LostStateError, OpError, PermissionDeniedError
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.shard import events
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.shard import Shard
from globalstep.wire.declarations import OpKind, OutcomeKind
from globalstep.worker.client.client import ClusterClient

__all__ = ["KINDS", "OUTCOMES", "Seen", "recording"]

KINDS = {
    EntryKind.PUSH: spec.PUSH,
    EntryKind.SNAPSHOT: spec.SNAPSHOT,
    EntryKind.CONTRIBUTION: spec.CONTRIBUTION,
    EntryKind.LAST_CONTRIBUTION: spec.LAST_CONTRIBUTION,
    EntryKind.CLOSING: spec.CLOSING,
}
OUTCOMES = {
    OutcomeKind.ACCEPTED: spec.ACCEPTED,
    OutcomeKind.REFUSED_DONE: spec.REFUSED_DONE,
    OutcomeKind.LATE: spec.LATE,
    OutcomeKind.ABANDONED: spec.ABANDONED,
}
#: What tells nobody of pushes; it may be forgotten when it was answered.
_UNSECURED = {"Leave", "Finish", "Declare"}
_HOW = {OpKind.ASSIGN: "assign", OpKind.ASSIGN_ADD: "add", OpKind.APPLY: "gradient"}


@dataclass
class Seen:
    """One line of a trace.

    Attributes:
        process: Of a PS task, in the order of their starts; of what a client was told, the client.
        kind: Of the event.
        said: What it says, by name.
        reply: What came of it; None where there is nothing to compare.
        error: Or the kind of the error, as of `spec.Refused`; "died" where the process ended over it.
    """

    process: Any
    kind: str
    said: dict[str, Any] = field(default_factory=dict)
    reply: Any = None
    error: str = ""

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.said.items())
        return f"process {self.process}: {self.kind}({said[:400]}) -> {self.error} {self.reply}"


class _Recorder:
    def __init__(self) -> None:
        self.trace: list[Seen] = []
        self._processes: dict[int, tuple[int, Shard]] = {}
        self._numbers = count()
        self._shapes: dict[str, tuple[int, ...]] = {}
        # Thread and process -> the last line that it has written.
        self._last: dict[tuple[Any, int], int] = {}

    def process(self, shard: Shard) -> int:
        """Give the number of the process that a shard is of; it is kept, so that no other one gets its place."""
        found = self._processes.get(id(shard))
        if found is None:
            found = self._processes[id(shard)] = next(self._numbers), shard
        return found[0]

    def handle(self, handle: Any, shard: Shard, event: Any) -> Any:
        """Carry out an event, and write it down."""
        write = getattr(self, f"_{type(event).__name__.lower()}", None)
        if write is None or shard.resources.replaying:
            return handle(shard, event)
        said, reply_of = write(event)
        seen = Seen(self.process(shard), type(event).__name__, said)
        try:
            reply = handle(shard, event)
            seen.reply = reply_of(reply)
            return reply
        except BaseException as error:
            seen.error, seen.reply = _error(error), str(error)
            raise
        finally:
            self._last[getcurrent(), seen.process] = len(self.trace)
            self.trace.append(seen)

    def answered(self, task: Any, answer: Any) -> None:
        """Write down that an answer has left: what was done until then is never forgotten."""
        process = self.process(task.shard)
        last = self._last.get((getcurrent(), process))
        if answer[1] is None and last is not None and self.trace[last].kind not in _UNSECURED:
            self.trace.append(Seen(process, "answered", {"until": last}))

    # ---- Events, each with what reads its reply -----------------------------------------------

    def _begin(self, event: events.Begin) -> Any:
        said = {"incarnation": event.incarnation, "owner": event.owner, "opened": event.opened, "at": event.shard}
        said |= {"shards": event.shards, "sequencer": event.sequencer, "logged": event.log is not NO_LOG}
        said["saved"] = _book(event.ledger) if event.ledger else None
        return said, tuple

    def _declare(self, event: events.Declare) -> Any:
        self._shapes |= {item.name: item.shape for item in event.variables}
        steps = [item.name for item in event.variables if item.is_step]
        return {"incarnation": event.incarnation, "client": event.client, "steps": steps}, lambda _: None

    def _open(self, event: events.Open) -> Any:
        limits = {item.step: item.last_step for item in event.limits}
        return {"incarnation": event.incarnation, "client": event.client, "limits": limits}, dict

    def _finish(self, event: events.Finish) -> Any:
        return {"incarnation": event.incarnation, "client": event.client}, lambda _: None

    def _leave(self, event: events.Leave) -> Any:
        return {"client": event.client}, lambda _: None

    def _lose(self, event: events.Lose) -> Any:
        return {}, lambda _: None

    def _stage(self, event: events.Stage) -> Any:
        return {
            "incarnation": event.incarnation,
            "push": _id(event.push),
            "part": self._part(event.parts),
        }, lambda _: None

    def _push(self, event: events.Push) -> Any:
        said = {"incarnation": event.incarnation, "push": _id(event.push), "part": self._part(event.parts)}
        said |= {"kind": KINDS[event.kind], "others": tuple(event.others), "floors": _floors(event.floors)}
        return said | _asked(event), _admission

    def _commit(self, event: events.Commit) -> Any:
        said = {"incarnation": event.incarnation, "push": _id(event.push), "entries": _entries(event.entries)}
        return said, lambda found: (_answer(found), found.applied, found.signature)

    def _resolve(self, event: events.Resolve) -> Any:
        said = {"incarnation": event.incarnation, "pushes": [_id(push) for push in event.pushes]}
        return said | {"of": event.shard, "applied": event.applied}, _entries

    def _resolved(self, event: events.Resolved) -> Any:
        asked = [_id(push) for push in event.asked]
        return {
            "incarnation": event.incarnation,
            "asked": asked,
            "entries": _entries(event.entries),
        }, lambda found: found

    def _dropshort(self, event: events.DropShort) -> Any:
        return {"incarnation": event.incarnation}, lambda found: found

    def _pull(self, event: events.Pull) -> Any:
        said = {"incarnation": event.incarnation, "client": event.client, "reads": _reads(event.reads)}
        said |= {"floors": _floors(event.floors), "shards": tuple(event.shards)}
        return said, lambda found: (_answer(found).values, found.applied, dict(found.last))

    def _getsteps(self, event: events.GetSteps) -> Any:
        return {"incarnation": event.incarnation, "floors": _floors(event.floors)}, dict

    def _awaitstep(self, event: events.AwaitStep) -> Any:
        return {"incarnation": event.incarnation, "client": event.client}, lambda found: dict(found.steps)

    def _readsnapshot(self, event: events.ReadSnapshot) -> Any:
        def reply(found: Any) -> Any:
            values, ledger = found
            return {name: _tensor(value) for name, value in values.items()}, _book(ledger()) if ledger() else None

        return {"incarnation": event.incarnation, "push": _id(event.snapshot)}, reply

    def _adopt(self, event: events.Adopt) -> Any:
        now = event.incarnation
        said = {"at": now.shard, "incarnation": now.number, "applied": now.applied, "staged": set(map(_id, now.staged))}
        said["phase"] = now.state.name.lower()
        if now.ledger is not None:
            # As STATUS tells them; those of the others come with the event.
            floors = {at: max(index, event.floors.get(at, 0)) for at, index in enumerate(now.ledger.floors)}
            said |= {"index": now.ledger.index, "outcomes": _outcomes(now.ledger), "floors": floors}
        return said, lambda found: found

    def _part(self, parts: Any) -> spec.Part:
        ops = parts.ops
        if not ops and parts.layout is not None and parts.data is not None:
            ops = parts.layout.bind(parts.data)
        return spec.Part(
            tuple(spec.Change(_HOW[op.kind], op.variable, self._dense(op)) for op in ops), _reads(parts.reads)
        )

    def _dense(self, op: Any) -> spec.Tensor:
        """Give an operand as a whole, where it is one of rows."""
        shape = self._shapes[op.variable]
        if op.value is None:
            return _tensor(np.full(shape, op.fill))
        if op.indices is None:
            return _tensor(op.value)
        whole = np.zeros(shape)
        np.add.at(whole, np.asarray(op.indices), np.asarray(op.value, np.float64))
        return _tensor(whole)


def _error(error: BaseException) -> str:
    if isinstance(error, Crashed):
        return "died"
    kinds = ((LostStateError, "LOST"), (AbortedError, "ABORTED"), (PermissionDeniedError, "DENIED"), (OpError, "WRONG"))
    return next((name for kind, name in kinds if isinstance(error, kind)), repr(error))


def _id(push: Any) -> spec.PushId:
    return spec.PushId(*push)


def _tensor(value: Any) -> spec.Tensor:
    return tuple(float(item) for item in np.asarray(value).ravel())


def _tensors(values: Any) -> tuple[spec.Tensor, ...]:
    return tuple(map(_tensor, values))


def _reads(reads: Any) -> tuple[str, ...]:
    return tuple(read.variable for read in reads)


def _asked(event: Any) -> dict[str, Any]:
    increments = tuple(
        spec.Increment(item.step, item.by, item.contributions, max(item.most_of_client, 1), item.unit, item.closes)
        for item in event.increments
    )
    return {"asked": spec.Asked(increments, bool(event.uses), dict(event.seen_steps))}


def _floors(floors: Any) -> dict[int, tuple[int, bytes]]:
    return {at: (floor.index, floor.signature) for at, floor in (floors or {}).items()}


def _entries(entries: Any) -> list[tuple[spec.Entry, bytes]]:
    return [
        (
            spec.Entry(
                entry.index,
                KINDS[entry.kind],
                _id(entry.push),
                entry.previous,
                tuple(number for item in entry.hypers for _, number in sorted(item.values.items())),
                entry.place and spec.Share(*entry.place),
            ),
            entry.signature,
        )
        for entry in entries
    ]


def _admission(found: Any) -> Any:
    outcome, pending = found.outcome, {at: _entries(entries) for at, entries in found.pending.items()}
    kind = OUTCOMES.get(outcome.kind, outcome.kind.name)
    return (kind, outcome.index, dict(outcome.steps)), pending, _answer(found.answer)


def _answer(answer: Any) -> spec.Answer:
    values = answer.values
    if answer.packing is not None:
        data = b"".join(bytes(memoryview(np.ascontiguousarray(piece)).cast("B")) for piece in values)
        values = [
            np.frombuffer(data, dtype, int(np.prod(shape)), offset) for dtype, shape, offset in answer.packing.places
        ]
    return spec.Answer(_tensors(values), answer.as_of)


def _outcomes(ledger: Any) -> dict[spec.PushId, tuple[str, int]]:
    return {
        spec.PushId(name, number): (OUTCOMES.get(outcome.kind, outcome.kind.name), outcome.index)
        for name, client in ledger.table._clients.items()
        for number, outcome in client.outcomes.items()
    }


def _book(dumped: bytes) -> spec.Book:
    """Read the book of a checkpoint."""
    found = json.loads(dumped)
    outcomes, forgotten = {}, {}
    for name, client in found["clients"].items():
        forgotten[name] = client["forgotten"]
        for number, kind, index, steps, _ in client["outcomes"]:
            kind = OUTCOMES.get(OutcomeKind(kind), OutcomeKind(kind).name)
            outcomes[spec.PushId(name, number)] = spec.Outcome(kind, index, steps)
    return spec.Book(found["index"], found["steps"], outcomes=outcomes, forgotten=forgotten)


@contextlib.contextmanager
def recording() -> Iterator[list[Seen]]:
    """Write down what happens within; gives the list that it is written to."""
    recorder = _Recorder()
    trace = recorder.trace
    handle, answer, crash, push, pull = (
        Shard.handle, Network.answer, SimulatedTask.crash, ClusterClient.push, ClusterClient.pull,
    )  # fmt: skip

    def answered(self: Network, call: Any, task: Any, found: Any) -> None:
        recorder.answered(task, found)
        answer(self, call, task, found)

    def crashed(self: SimulatedTask, machine: bool = True) -> None:
        trace.append(Seen(recorder.process(self.shard), "crash"))
        crash(self, machine)

    def pushed(self: ClusterClient, wanted: Any, wait: bool = True, at_once: bool = False) -> Any:
        if at_once:  # by a push that waits, which is written down
            return push(self, wanted, wait, at_once)
        trace.append(Seen(self.client_id, "calls"))
        result = push(self, wanted, wait)
        outcome, contribution = result.outcome, next((one for one in wanted.increments if one.contributions), None)
        said = {"incarnation": self.incarnation, "reads": _reads(wanted.reads), "values": _tensors(result.values)}
        said |= {"outcome": OUTCOMES.get(outcome.kind, ""), "index": outcome.index, "steps": dict(outcome.steps)}
        base = dict(wanted.seen_steps)[contribution.step] if contribution is not None else None
        # One that waits for the slow, or for its step, reads afterwards.
        said |= {"base": base, "waits": base is not None or self.policy.staleness == "wait"}
        trace.append(Seen(self.client_id, "pushed", said))
        return result

    def pulled(self: ClusterClient, reads: Any, *options: Any, **named: Any) -> Any:
        values = pull(self, reads, *options, **named)
        if named.get("at_once"):
            return values
        said = {"incarnation": self.incarnation, "reads": _reads(reads), "values": _tensors(values)}
        trace.append(Seen(self.client_id, "pulled", said))
        return values

    with contextlib.ExitStack() as stack:
        patched = (
            (Shard, "handle", lambda self, event: recorder.handle(handle, self, event)),
            (Network, "answer", answered),
            (SimulatedTask, "crash", crashed),
            (ClusterClient, "push", pushed),
            (ClusterClient, "pull", pulled),
        )
        for owner, name, stand_in in patched:
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield trace

"""Pushes that race: with `RunPolicy(hogwild=True)` those of several connections are applied at the same time.

What a push is stays exact: it is admitted under the shard's lock, once, with an index and the steps after it, and the
optimizers' scalar state moves on there too. Only its changes of values, and its reads of them, happen outside the
lock. So elements that two pushes change at the same time may keep one change alone, as in TensorFlow without
`use_locking`; and what a push or a pull reads may hold parts of pushes that are under way.

What is not a push of gradients to this shard alone goes alone: assigns, snapshots, declarations, pushes over several
shards. It waits until no apply is under way, and none begins before it is done. So a snapshot still holds exactly
the pushes 1..N, each as a whole; and a step that is read counts finished pushes only.

Layer: ps. Threads: any number; a Gate is taken before the shard's lock, and nobody waits at it who holds that one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.ps.ledger.ledger import Entry, EntryKind
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.shard.answers import Admission, Answer
from globalstep.ps.shard.counting import CountingShard
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.store.reading import Room
from globalstep.ps.store.snapshots import no_ledger
from globalstep.runtime.clock import Clock
from globalstep.testing.faults import AFTER, APPLY, BEFORE
from globalstep.wire.declarations import OpKind, OptimizerDecl, OptimizerUse, PushId, Read, VariableDecl

__all__ = ["Gate", "HogwildShard"]

Array = npt.NDArray[Any]


class Gate:
    """Lets many in together, or one alone, in the order in which they came: nobody waits for ever.

    >>> gate = Gate()
    >>> with gate.together():
    ...     pass
    >>> with gate.alone():
    ...     pass
    """

    def __init__(self) -> None:
        # Guards the attributes below, and wakes those who wait for them to change; a leaf.
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._inside: set[object] = set()
        self._taken = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Be inside with others who are so, for a `with` block. Not to be nested."""
        me = object()
        with self._changed:
            self._wait_for_turn(me, lambda: not self._taken)
            self._inside.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._inside.discard(me)
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside alone, for a `with` block."""
        with self._changed:
            self._wait_for_turn(object(), lambda: not self._taken and not self._inside)
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def _wait_for_turn(self, me: object, may_enter: Callable[[], bool]) -> None:
        """Wait until those who came before are inside, and one may enter. Caller holds the condition."""
        self._queue.append(me)
        try:
            while self._queue[0] is not me or not may_enter():
                self._changed.wait()
        finally:
            self._queue.remove(me)
            self._changed.notify_all()  # the next in the queue looks whether it may enter too

    def wait_for_those_inside(self) -> None:
        """Wait until everybody has left who is inside now together with others."""
        with self._changed:
            waited_for = set(self._inside)
            while waited_for & self._inside:
                self._changed.wait()


@dataclass(slots=True)
class _Admitted:
    """A push that was admitted and is yet to be applied."""

    entry: Entry
    parts: PushParts
    #: Right after its admission: the steps, and the pieces of its reads that no gradient changes, by their place.
    steps: Mapping[str, int]
    exact: Mapping[int, Array]


class HogwildShard(CountingShard):
    """A PS task's state where pushes race if the run's policy says so, else as CountingShard. Thread-safe.

    Args:
        clock: As of Shard.
    """

    def __init__(self, clock: Clock) -> None:
        self._gate = Gate()
        # Guarded by the shard's lock: pushes that are let race, with what is to be applied once they are admitted.
        self._racing: dict[PushId, _Admitted | None] = {}
        super().__init__(clock)

    def _alone(self) -> AbstractContextManager[None]:
        """Keep applies out, where there are any that the lock does not keep out.

        Whoever finds another policy behind the lock than here also finds another incarnation, and is refused.
        """
        return self._gate.alone() if self._policy.hogwild else nullcontext()

    # ---- Pushes that race ---------------------------------------------------------------------

    def push(self, incarnation: int, push: PushId, parts: PushParts, *asked: Any, **options: Any) -> Admission:
        """See Shard.push."""
        if not self._policy.hogwild or any(op.kind is not OpKind.APPLY for op in parts.ops):
            return super().push(incarnation, push, parts, *asked, **options)
        with self._gate.together():
            with self._lock:
                retried = push in self._racing
                self._racing.setdefault(push, None)
            try:
                if not retried:
                    admission = super().push(incarnation, push, parts, *asked, **options)
                    admitted = self._racing[push]
                    return admission if admitted is None else self._apply_racing(incarnation, admission, admitted)
            finally:
                if not retried:
                    with self._lock:
                        del self._racing[push]
        # The first copy of this message is at work on it; what it leaves answers this one.
        self._gate.wait_for_those_inside()
        return super().push(incarnation, push, parts, *asked, **options)

    def _apply_entry(
        self, entry: Entry, uses: Sequence[OptimizerUse] = (), ledger_dump: Callable[[], bytes] = no_ledger
    ) -> None:
        if entry.push not in self._racing:
            super()._apply_entry(entry, uses, ledger_dump)
            return
        self._applied = entry.index
        parts = self._staged.pop(entry.push).parts
        plan = parts.layout.plan if parts.layout is not None else None
        ledger = self._sequencing()
        self._move_on(ledger, parts.ops, uses, {(h.optimizer, h.after_increment): h.values for h in entry.hypers})
        pieces = plan.reads if plan is not None else ()
        exact = {at: piece.view.copy() for at, piece in enumerate(pieces) if piece.view.dtype.kind != "f"}
        self._racing[entry.push] = _Admitted(entry, parts, dict(ledger.steps), exact)

    def _apply_racing(self, incarnation: int, admission: Admission, admitted: _Admitted) -> Admission:
        """Make a push's changes and take its reads, while others do."""
        entry, parts = admitted.entry, admitted.parts
        try:
            self.faults.at(BEFORE, APPLY)
            plan, apply_secs = self._make_changes(
                parts, {(item.optimizer, item.after_increment): item.values for item in entry.hypers}
            )
            values = self._read_after(parts, plan)
            if values is not None and plan is not None:
                for at, piece in admitted.exact.items():
                    values[at] = piece
            elif values is not None:
                _set_steps(values, parts.reads, admitted.steps)
            self.faults.at(AFTER, APPLY)
        except BaseException:
            with self._lock:
                # Another push of the same incarnation may have failed before.
                self._check(incarnation, entry.push.client)
                with self.fail_stop.during(entry.push):
                    raise
        with self._lock:
            self._check(incarnation, entry.push.client)
            with self.fail_stop.during(entry.push):
                self._keep(entry, parts, values, plan, apply_secs)
            answer = self._answer(entry.push)
        return dataclasses.replace(
            admission, reads=answer.reads, values=answer.values, packing=answer.packing, apply_secs=answer.apply_secs,
            as_of=answer.as_of,
        )  # fmt: skip

    # ---- What goes alone ----------------------------------------------------------------------

    def admit(self, incarnation: int, push: PushId, kind: EntryKind, *asked: Any, **options: Any) -> Admission:
        """See Shard.admit."""
        if not self._policy.hogwild or push in self._racing:
            return super().admit(incarnation, push, kind, *asked, **options)
        # Pages are taken before others are kept waiting.
        self._make_room([push] if kind is EntryKind.SNAPSHOT else ())
        with self._alone():
            return super().admit(incarnation, push, kind, *asked, **options)

    def commit(self, incarnation: int, push: PushId, entries: Sequence[Entry]) -> Answer:
        """See Shard.commit."""
        if not self._policy.hogwild:
            return super().commit(incarnation, push, entries)
        self._make_room([entry.push for entry in entries if entry.kind is EntryKind.SNAPSHOT])
        with self._alone():
            return super().commit(incarnation, push, entries)

    def settled(self, incarnation: int, asked: Sequence[PushId], entries: Sequence[Entry]) -> int:
        """See Shard.settled."""
        with self._alone():
            return super().settled(incarnation, asked, entries)

    def begin(self, *args: Any, **options: Any) -> tuple[int, str]:
        """See Life.begin."""
        with self._alone():
            return super().begin(*args, **options)

    def declare(
        self,
        incarnation: int,
        client: str,
        variables: Sequence[VariableDecl],
        optimizers: Sequence[OptimizerDecl],
        nothing_new: bool = False,
    ) -> None:
        """See Life.declare."""
        with self._alone():
            super().declare(incarnation, client, variables, optimizers, nothing_new)

    # ---- Reads of steps -----------------------------------------------------------------------

    def pull(
        self,
        incarnation: int,
        client: str,
        reads: Sequence[Read],
        floors: Mapping[int, Floor] | None = None,
        room: Room | None = None,
    ) -> tuple[list[Array], int]:
        """See Cuts.pull."""
        steps = self._finished_steps()
        values, applied = super().pull(incarnation, client, reads, floors, room)
        _set_steps(values, reads, steps)
        return values, applied

    def global_steps(self, incarnation: int, floors: Mapping[int, Floor] | None = None) -> dict[str, int]:
        """See Cuts.global_steps."""
        steps = self._finished_steps()
        return super().global_steps(incarnation, floors) | steps

    def _finished_steps(self) -> dict[str, int]:
        """The steps as they are now, once every push is applied that they count; none where no pushes race."""
        if not self._policy.hogwild:
            return {}
        with self._lock:
            steps = dict(self._ledger.visible) if self._ledger is not None else {}
        self._gate.wait_for_those_inside()
        return steps


def _set_steps(values: Sequence[Array], reads: Sequence[Read], steps: Mapping[str, int]) -> None:
    for value, read in zip(values, reads, strict=True):
        if read.variable in steps:
            np.copyto(value, steps[read.variable], casting="unsafe")

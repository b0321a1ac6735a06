"""Pushes that race: with `RunPolicy(hogwild=True)` those of several connections are applied at the same time.

What a push is stays exact: it is admitted under the shard's lock, once, with an index and the steps after it, and the
optimizers' scalar state moves on there too. Only its changes of values, and its reads of them, happen outside the
lock. So elements that two pushes change at the same time may keep one change alone, as in TensorFlow without
`use_locking`; and what a push or a pull reads may hold parts of pushes that are under way.

What is not a push of gradients to this shard alone goes alone: assigns, snapshots, declarations, pushes over several
shards. It waits until no apply is under way, and none begins before it is done. So a snapshot still holds exactly
the pushes 1..N, each as a whole; and a step that is read counts finished pushes only.

Layer: ps. Threads: any number. Lock order: gate, then shard lock. No thread waits for the gate while it holds the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.ps.shard import events
from globalstep.ps.shard.applying import Applier, Deferred
from globalstep.ps.shard.events import Event
from globalstep.ps.shard.replies import Admission
from globalstep.testing.faults import AFTER, APPLY, BEFORE
from globalstep.wire.declarations import OpKind, Read

if TYPE_CHECKING:
    from globalstep.ps.shard.shard import Shard

__all__ = ["Gate", "Racing"]

Array = npt.NDArray[Any]


class Gate:
    """Lets many in together, or one alone, in the order in which they came: no thread waits for ever.

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
        """Wait until all threads have left that are inside now together with others."""
        with self._changed:
            waited_for = set(self._inside)
            while waited_for & self._inside:
                self._changed.wait()


#: What waits until no push races, and keeps others waiting meanwhile.
_ALONE = frozenset(
    {events.Push, events.Admit, events.Commit, events.Resolved, events.Applied, events.Begin, events.Declare}
)


class Racing:
    """Carries out a shard's events while pushes race. Thread-safe.

    Args:
        shard: Its `carry_out` does what is done under the lock.
        lock: The shard's; taken after the gate.
        applier: Of the shard; it gets the pushes whose changes are made here.
    """

    def __init__(self, shard: Shard, lock: threading.Lock, applier: Applier) -> None:
        self._shard = shard
        self._lock = lock
        self._applier = applier
        self.gate = Gate()

    def handle(self, event: Event[Any]) -> Any:
        """Carry out an event that was prepared; see Shard.handle."""
        carry_out = self._shard.carry_out
        if type(event) is events.Push and _may_race(event):
            return self._push(event)
        if type(event) in _ALONE:
            # Finding another policy under the lock than before is finding another incarnation, which refuses.
            with self.gate.alone():
                return carry_out(event)
        if isinstance(event, events.Pull):
            steps = self._finished_steps()
            values, applied = carry_out(event)
            _set_steps(values, event.reads, steps)
            return values, applied
        if isinstance(event, events.GetSteps):
            steps = self._finished_steps()
            return carry_out(event) | steps
        return carry_out(event)

    def _push(self, event: events.Push) -> Admission:
        """Admit a push under the lock, and make its changes outside of it."""
        deferred = self._applier.deferred
        with self.gate.together():
            with self._lock:
                retried = event.push in deferred
                deferred.setdefault(event.push, None)
            try:
                if not retried:
                    admission = self._shard.carry_out(event)
                    admitted = deferred[event.push]
                    return admission if admitted is None else self._apply(event, admission, admitted)
            finally:
                if not retried:
                    with self._lock:
                        del deferred[event.push]
        # The first copy of this message is at work on it; what it leaves answers this one.
        self.gate.wait_for_those_inside()
        return self._shard.carry_out(event)

    def _apply(self, event: events.Push, admission: Admission, admitted: Deferred) -> Admission:
        """Make a push's changes and take its reads, while others do."""
        entry, parts, now, applier = admitted.entry, admitted.parts, admitted.now, self._applier
        faults, fail_stop = self._shard.resources.faults, self._shard.resources.fail_stop
        try:
            faults.at(BEFORE, APPLY)
            plan, apply_secs = applier.make_changes(now, parts, entry.hyper_map)
            values = applier.read_after(now, parts, plan)
            if values is not None and plan is not None:
                for at, piece in admitted.exact.items():
                    values[at] = piece
            elif values is not None:
                _set_steps(values, parts.reads, admitted.steps)
            faults.at(AFTER, APPLY)
        except BaseException:
            with self._lock:
                # Another push of the same incarnation may have failed before.
                self._shard.now.check(event.incarnation, entry.push.client)
                with fail_stop.during(entry.push):
                    raise
        with self._lock:
            self._shard.now.check(event.incarnation, entry.push.client)
            with fail_stop.during(entry.push):
                applier.keep(now, entry, parts, values, plan, apply_secs)
            admission.answer = applier.answer(now, entry.push)
        return admission

    def _finished_steps(self) -> dict[str, int]:
        """The steps as they are now, once every push is applied that they count."""
        with self._lock:
            ledger = self._shard.now.ledger
            steps = dict(ledger.visible) if ledger is not None else {}
        self.gate.wait_for_those_inside()
        return steps


def _may_race(event: events.Push) -> bool:
    """Whether a push has nothing but gradients, and is no contribution."""
    if any(item.contributions for item in event.increments):
        return False
    return all(op.kind is OpKind.APPLY for op in event.parts.ops)


def _set_steps(values: Sequence[Array], reads: Sequence[Read], steps: Mapping[str, int]) -> None:
    for value, read in zip(values, reads, strict=True):
        if read.variable in steps:
            np.copyto(value, steps[read.variable], casting="unsafe")

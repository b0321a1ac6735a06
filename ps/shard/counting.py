"""Pushes that only count: those of many clients that came together are admitted in one go.

Each is a push like any other, with its id, its place in the sequence, its step and its outcome in the ledger (I1, I2).
What is shared is the critical section and the one change of the step's value, which nobody sees in between.

Layer: ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.witness import Pushed
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, PushId

__all__ = ["CountingPush", "CountingShard"]


@dataclass(slots=True)
class CountingPush:
    """A push of increments, without changes, reads and optimizers."""

    incarnation: int
    push: PushId
    increments: Sequence[Increment]
    seen_steps: Mapping[str, int]


class CountingShard(Shard):
    """A shard that admits such pushes together. Thread-safe.

    Args:
        clock: As of Shard.
    """

    def count(self, pushes: Sequence[CountingPush]) -> list[Outcome | Exception]:
        """Admit pushes, in order, one after another.

        Args:
            pushes: By whichever clients.

        Returns:
            The outcome of each, or what was wrong with it: then it has changed nothing, and the others are as if it
            had not been there.
        """
        done: list[Outcome | Exception] = []
        with self._lock:
            try:
                for item in pushes:
                    try:
                        done.append(self._admitted(item))
                    except Exception as error:
                        done.append(error)
            finally:
                if self._ledger is not None:
                    with self.fail_stop.during("A push that counts"):
                        self._store.set_steps(self._ledger.steps)
        return done

    def _admitted(self, item: CountingPush) -> Outcome:
        """Decide on one, without changing the step's value. Caller holds the lock."""
        self._check(item.incarnation, item.push.client)
        ledger: Ledger = self._sequencing()
        known = self._recorded(ledger, item.push)
        if known is not None:
            return known
        here = (self._shard,)
        self._examine(ledger, item.push, EntryKind.PUSH, here, item.increments, (), no_part=True)
        with self.fail_stop.during(item.push):
            outcome, _ = self._accept(ledger, item.push, EntryKind.PUSH, here, item.increments, item.seen_steps, ())
            if outcome.kind is OutcomeKind.ACCEPTED:
                self._applied = outcome.index
                # The reads of the client's last push have been given out.
                self._drop_kept(item.push.client)
            task = self.presence.task_of(item.push.client)
            asked = item.increments, (), item.seen_steps
            told = Pushed(item.push, EntryKind.PUSH, (), *asked, {}, None, outcome, task)
            self.witness.pushed(item.incarnation, told)
        return outcome

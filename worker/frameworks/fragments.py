"""Fragments of a model: which there are, whose turn it is, and a worker's copy of the whole.

docs/design/fragments.md is the law. No input or output, no clock.

Layer: worker. Source: Streaming DiLoCo, arXiv 2501.18512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from globalstep.wire.declarations import OutcomeKind
from globalstep.worker.frameworks.foreign_loss import Array
from globalstep.worker.running.graph_rounds import TOO_LATE
from globalstep.worker.running.local_optimizers import OwnState

__all__ = ["FragmentCopies", "FragmentTurns", "split_evenly"]

#: Nothing was applied, and the steps taken are as good as before.
_CARRIED = (*TOO_LATE, OutcomeKind.ABANDONED)


def split_evenly(sizes: Mapping[str, int], count: int) -> tuple[tuple[str, ...], ...]:
    """Split a model into fragments of about equally many bytes; each is of whole Variables.

    The largest one that is left goes to the fragment that has the fewest bytes, so layers of one size are dealt out in
    turn.

    Args:
        sizes: Name -> bytes.
        count: How many fragments, at most as many as there are names.

    Returns:
        The names in each, in their order in `sizes`.

    >>> split_evenly({"a": 4, "b": 4, "c": 4, "d": 4, "e": 1}, 2)
    (('a', 'c', 'e'), ('b', 'd'))
    """
    loads = [0] * count
    places: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        # An empty fragment first: none may stay so, even if all Variables that are left have no elements.
        place = min(range(count), key=lambda at: (loads[at], at))
        places[name] = place
        loads[place] += max(1, sizes[name])
    return tuple(tuple(name for name in sizes if places[name] == at) for at in range(count))


@dataclass
class FragmentTurns:
    """Whose turn it is to be synchronized. Not thread-safe.

    Args:
        count: How many fragments there are.
        last: The global step of the last synchronization.
        workers: How many synchronizations all workers make while one makes one: 1 where they make each together.
        own: As they come: how many this worker has made, and its rank. None where workers go by the global step.
    """

    count: int
    last: int
    workers: int
    own: int | None = None

    def next(self, step: int) -> int | None:
        """Say which fragment is to be synchronized; None for all of them, since it may be this worker's last time.

        The next synchronization of a worker makes about `step + workers`, the one after that `step + 2 * workers`.

        Args:
            step: The global step, as this worker knows it.
        """
        if self.last - step < 2 * self.workers:
            return None
        return (step if self.own is None else self.own) % self.count

    def made(self) -> None:
        """Take note that this worker has made a synchronization, whatever came of it."""
        if self.own is not None:
            self.own += 1


@dataclass
class FragmentCopies:
    """A worker's copy of a model, with its inner optimizer's state. Not thread-safe.

    Attributes:
        began: By name: the values on the PS that the Variable's steps began with. Never written into.
        now: The copies.
        seen: By name: the global step as of `began`.
        step: The global step as this worker knows it.
        state: The inner optimizer's.
    """

    began: dict[str, Array]
    now: dict[str, Array]
    seen: dict[str, int]
    step: int
    state: OwnState

    @classmethod
    def of(cls, values: Mapping[str, Array], step: int, state: OwnState) -> FragmentCopies:
        """Begin with the values on the PS."""
        return cls(dict(values), dict(values), dict.fromkeys(values, step), step, state)

    def writable(self) -> FragmentCopies:
        """Give the same, of which copies and state may be changed in place while this one stays."""
        now = {name: np.array(value) for name, value in self.now.items()}
        return FragmentCopies(dict(self.began), now, dict(self.seen), self.step, self.state.copy())

    def differences(self, names: Sequence[str]) -> list[Array]:
        """Give where Variables began minus where they are: what the outer optimizer gets as their gradients."""
        return [np.asarray(self.began[name] - self.now[name]) for name in names]

    def settle(self, kind: OutcomeKind, values: Mapping[str, Array], step: int, alpha: float = 0.0) -> None:
        """Begin anew with Variables that were pushed.

        Args:
            kind: What became of the push.
            values: Their values on the PS after it.
            step: The global step as of these.
            alpha: How much of the copies stays, where the push counted.
        """
        for name, value in values.items():
            now, began = self.now[name], self.began[name]
            if kind in _CARRIED:
                now = now + (value - began)
            elif kind is OutcomeKind.ACCEPTED and alpha:
                share = value.dtype.type(alpha)
                now = share * now + (1 - share) * value
            else:
                now = value
            self.now[name], self.began[name], self.seen[name] = np.array(now), value, step
        self.step = step

"""What comes of a push.

Layer: worker. Threads: plain data.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from globalstep.errors import NotFiniteGradientError
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import Outcome, OutcomeKind

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """When a PS task made its changes of a push, within the time that the push took."""

    shard: int
    #: Seconds since the push began. Clocks of two machines differ: it is put into the middle of the call.
    after_secs: float
    #: Seconds that it took, by the task's own clock.
    secs: float


@dataclass(slots=True)
class PushResult:
    """What came of a push.

    Attributes:
        outcome: Recorded by the sequencer; the same for every retry.
        values: Of the push's reads, in order, as of right after it. Empty when it was refused.
        applied: Of every PS task that it changed something on.
    """

    outcome: Outcome
    values: list[Array] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)


_log = logging.getLogger("globalstep")

_SAY_SECS = 10.0


class DroppedPushes:
    """Counts the pushes of a session that the run's policy dropped, and tells of them. Thread-safe.

    Args:
        task: Who pushes, for messages.
        clock: Tells when something was last said.

    Attributes:
        stale: Dropped because they were too late.
        not_finite: Dropped because a gradient was not finite.
        late: Contributions that did not count, since their step had been made.
    """

    def __init__(self, task: str, clock: Clock) -> None:
        self._task = task or "this session"
        self._clock = clock
        # Guards all numbers; a leaf.
        self._lock = threading.Lock()
        self._said: float | None = None
        self.stale = 0
        self.late = 0
        self.not_finite = 0

    def take(self, outcome: Outcome) -> None:
        """Count a push that had no effect; say so in the log, now and then.

        Raises:
            NotFiniteGradientError: If the run's policy ends the job with it.
        """
        if outcome.kind is OutcomeKind.LATE:
            self._take_late(outcome)
            return
        steps = ", ".join(f"{name} = {value}" for name, value in sorted(outcome.steps.items()))
        finding = f"The gradient of Variable {outcome.not_finite!r} that {self._task} pushed at {steps} is not finite"
        with self._lock:
            if outcome.kind is OutcomeKind.DROPPED_STALE:
                self.stale += 1
                finding = f"A push of {self._task} was {outcome.staleness} steps late at {steps}"
            else:
                self.not_finite += 1
            dropped = self.stale + self.not_finite
            now = self._clock.monotonic()
            say = self._said is None or now - self._said >= _SAY_SECS
            if say:
                self._said = now
        if outcome.kind is OutcomeKind.STOPPED_NAN:
            raise NotFiniteGradientError(
                f'{finding}; nothing was applied, and the job ends, since the run\'s policy is on_nan="stop". '
                "Lower the learning rate, clip gradients, or look at the input of that step."
            )
        if say:
            _log.warning("%s; it was dropped, as the run's policy is (%d of this session so far).", finding, dropped)

    def _take_late(self, outcome: Outcome) -> None:
        """Count a contribution that did not count. With backup workers that is usual."""
        steps = ", ".join(f"{name} = {value}" for name, value in sorted(outcome.steps.items()))
        with self._lock:
            self.late += 1
            late, now = self.late, self._clock.monotonic()
            say = self._said is None or now - self._said >= _SAY_SECS
            if say:
                self._said = now
        if say:
            _log.info(
                "A contribution of %s did not count: its step was made without it, and now %s (%d of this session so "
                "far).",
                self._task, steps, late,
            )  # fmt: skip

"""Timers of hooks: every so many seconds or steps.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

from globalstep.runtime.clock import SYSTEM_CLOCK, Clock


class SecondOrStepTimer:
    """Triggers at most once every `every_secs` seconds or every `every_steps` steps.

    Args:
        every_secs: Seconds between triggers.
        every_steps: Steps between triggers; exactly one of the two is given.
        clock: Where time comes from.

    Raises:
        ValueError: If both or neither are given.

    >>> timer = SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(1), timer.update_last_triggered_step(1)
    (True, (None, None))
    >>> timer.should_trigger_for_step(10), timer.should_trigger_for_step(11)
    (False, True)
    """

    def __init__(
        self, every_secs: float | None = None, every_steps: int | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        if every_secs is None and every_steps is None:
            raise ValueError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise ValueError("Can not provide both every_secs and every_steps.")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock
        self._last_step: int | None = None
        self._last_time = 0.0

    def reset(self) -> None:
        """Forget the last trigger: the next step asked about triggers."""
        self._last_step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Say whether it is time.

        Args:
            step: The present step.

        Returns:
            True at the first step asked about; False again for the step of the last trigger; otherwise
            whether enough seconds or steps have passed since.
        """
        if self._last_step is None:
            return True
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            return self._clock.monotonic() >= self._last_time + self._every_secs
        return step >= self._last_step + (self._every_steps or 0)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Note that it triggered at `step`.

        Args:
            step: The present step.

        Returns:
            Seconds and steps since the trigger before; (None, None) for the first.
        """
        now = self._clock.monotonic()
        elapsed: tuple[float | None, int | None] = (None, None)
        if self._last_step is not None:
            elapsed = (now - self._last_time, step - self._last_step)
        self._last_time = now
        self._last_step = step
        return elapsed

    def last_triggered_step(self) -> int | None:
        """The step of the last trigger; None before the first."""
        return self._last_step

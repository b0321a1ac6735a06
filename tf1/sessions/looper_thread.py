"""LooperThread: a thread that acts at intervals until its Coordinator stops.

Follows TensorFlow 1.15, python/training/coordinator.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock


class LooperThread(threading.Thread):
    """A daemon thread that calls a function at intervals until its Coordinator stops.

    An exception in it stops the whole group.

    Args:
        coord: The group; the thread registers itself.
        timer_interval_secs: Seconds from the start of one call to that of the next; None to call again
            at once.
        target: What to call; or override `run_loop`.
        args: Positional arguments for `target`.
        kwargs: Named arguments for `target`.
        name: The thread's name.
        clock: Where time comes from.

    Raises:
        ValueError: If `coord` is no Coordinator.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"'coord' argument must be a Coordinator: {coord}")
        super().__init__(name=name or f"looper-{getattr(target, '__name__', 'thread')}", daemon=True)
        self._coord = coord
        self._interval_secs = timer_interval_secs
        self._call = target
        self._call_args = tuple(args or ())
        self._call_kwargs = dict(kwargs or {})
        self._clock = clock
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Make a LooperThread, of these arguments, and start it.

        Returns:
            The started thread; `coord.join()` waits for it.
        """
        looper = LooperThread(coord, timer_interval_secs, target=target, args=args, kwargs=kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """Loop until the Coordinator stops; called by `start`."""
        with self._coord.stop_on_exception():
            self.start_loop()
            if self._interval_secs is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                next_call = self._clock.monotonic()
                while not self._coord.wait_for_stop(next_call - self._clock.monotonic()):
                    next_call += self._interval_secs
                    self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Act once, before the first round."""

    def stop_loop(self) -> None:
        """Act once, after the last round."""

    def run_loop(self) -> None:
        """Do one round: call the target."""
        if self._call is not None:
            self._call(*self._call_args, **self._call_kwargs)

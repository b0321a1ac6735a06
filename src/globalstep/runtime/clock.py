"""Clocks: time as an argument.

Nothing in globalstep reads the time or waits but through a `Clock`, so tests drive time by hand.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, and waits for it to pass."""

    def monotonic(self) -> float:
        """Give seconds since some fixed point; never goes back."""
        ...

    def time(self) -> float:
        """Give seconds since the epoch; only for what people read (file names, event times)."""
        ...

    def wait(self, event: threading.Event, timeout_secs: float) -> bool:
        """Wait until `event` is set or `timeout_secs` have passed; say whether it is set."""
        ...

    def sleep(self, secs: float) -> None:
        """Let so much time pass."""
        ...


class SystemClock:
    """The machine's clock. Thread-safe."""

    # Python's own functions, since every step asks several times.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def wait(self, event: threading.Event, timeout_secs: float) -> bool:
        """See Clock."""
        return event.wait(timeout_secs)

    def sleep(self, secs: float) -> None:
        """See Clock."""
        self.wait(threading.Event(), secs)


class ManualClock:
    """A clock that moves only by `advance`, for tests and simulation. Thread-safe.

    A wait moves the clock on by its whole timeout unless the event is set already: waiting loops run
    through at once.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.monotonic()
    1.5
    """

    def __init__(self, now: float = 0.0) -> None:
        # Guards _now; a leaf: nothing else is taken under it.
        self._lock = threading.Lock()
        self._now = now

    def advance(self, secs: float) -> None:
        """Move the clock on by `secs`."""
        with self._lock:
            self._now += secs

    def monotonic(self) -> float:
        """See Clock."""
        with self._lock:
            return self._now

    def time(self) -> float:
        """See Clock."""
        return self.monotonic()

    def wait(self, event: threading.Event, timeout_secs: float) -> bool:
        """See Clock."""
        if event.is_set():
            return True
        self.advance(timeout_secs)
        return event.is_set()

    def sleep(self, secs: float) -> None:
        """See Clock."""
        self.wait(threading.Event(), secs)


SYSTEM_CLOCK = SystemClock()

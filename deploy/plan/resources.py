"""Simulated resources: the cores, locks and links of a cluster. Each serves in the order of asking.

Layer: deploy. Pure; time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["SimulatedCores", "Link", "Lock"]


class SimulatedCores:
    """Cores that take work in the order in which it comes. The last one may be a part of a core."""

    def __init__(self, count: float) -> None:
        whole = int(count)
        part = count - whole
        self._speeds = [1.0] * whole + ([part] if part > 0.01 else [])
        self._free = [0.0] * len(self._speeds)
        self.count = count
        self.busy = 0.0

    def work(self, now: float, secs: float) -> float:
        """Do some work; gives when it is done."""
        self.busy += secs
        free = self._free
        if len(free) == 1:
            done = max(now, free[0]) + secs / self._speeds[0]
            free[0] = done
            return done
        best, done = 0, float("inf")
        for at, (start, speed) in enumerate(zip(free, self._speeds, strict=True)):
            end = (start if start > now else now) + secs / speed
            if end < done:
                best, done = at, end
        free[best] = done
        return done


class Lock:
    """What one has at a time; others wait in line."""

    __slots__ = ("busy", "held", "waiting")

    def __init__(self) -> None:
        self.held = False
        self.waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.busy = 0.0

    def enter(self, what: Callable[[Any], None], about: Any) -> None:
        """Call a function as soon as the lock is free; its caller must leave it."""
        if self.held:
            self.waiting.append((what, about))
        else:
            self.held = True
            what(about)

    def leave(self) -> None:
        """Let the next have it."""
        if self.waiting:
            what, about = self.waiting.popleft()
            what(about)
        else:
            self.held = False


class Link:
    """One way of a network card."""

    __slots__ = ("busy", "bytes_sec", "free")

    def __init__(self, bytes_sec: float) -> None:
        self.bytes_sec = bytes_sec
        self.free = 0.0
        self.busy = 0.0

    def send(self, now: float, nbytes: float) -> float:
        """Put bytes on it; gives when the last has passed."""
        secs = nbytes / self.bytes_sec
        self.busy += secs
        self.free = (self.free if self.free > now else now) + secs
        return self.free

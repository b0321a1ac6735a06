"""Keeps lines that others cause out of the log, but for one in a while of each kind.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from globalstep.runtime.clock import Clock

_EVERY_SECS = 10.0
#: Kinds that are counted apart; all others are of one kind.
_MOST_KINDS = 1000


class LogLimit:
    """Says when a line may be written. Thread-safe.

    Args:
        clock: Time.
        every_secs: How far apart two lines of a kind are at least.
    """

    def __init__(self, clock: Clock, every_secs: float = _EVERY_SECS) -> None:
        self._clock = clock
        self._every_secs = every_secs
        # Guards the attribute below; a leaf.
        self._lock = threading.Lock()
        #: Kind -> when a line of it was written last, and how many were not since.
        self._written: dict[Hashable, tuple[float, int]] = {}

    def due(self, kind: Hashable) -> str | None:
        """Give what to write behind a line of this kind: how many were left out before; None if it is to be left out.

        Args:
            kind: What is counted apart. It must not hold what a caller may choose freely.
        """
        now = self._clock.monotonic()
        with self._lock:
            if kind not in self._written and len(self._written) >= _MOST_KINDS:
                self._written = {
                    written: (when, left)
                    for written, (when, left) in self._written.items()
                    if now - when < self._every_secs
                }
                if len(self._written) >= _MOST_KINDS:
                    kind = None
            when, left = self._written.get(kind, (None, 0))
            if when is not None and now - when < self._every_secs:
                self._written[kind] = when, left + 1
                return None
            self._written[kind] = now, 0
        return f" ({left} more since the last such line)" if left else ""

"""The time for which a thread of a PS task's process holds the interpreter while another one waits.

Layer: ps. Threads: the one that looks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from globalstep.runtime.clock import Clock

#: CPython's own 0.005 s are more than an honest request takes, which would wait so long whenever a thread of gRPC's is
#: at work on what an attacker sent. But short turns cost where several threads of gRPC's work for honest clients.
_SHORT_SECS = 0.0005
#: How long turns stay short after a caller was refused, seconds.
_STAY_SECS = 10.0


class InterpreterTurns:
    """Has threads take short turns in the interpreter while callers are refused, and CPython's else.

    Args:
        refusals: Tells how many callers were refused since the task began.
        clock: Time.
        set_secs: Sets the length of a turn, seconds.
    """

    def __init__(
        self, refusals: Callable[[], int], clock: Clock, set_secs: Callable[[float], None] = sys.setswitchinterval
    ) -> None:
        self._refusals = refusals
        self._clock = clock
        self._set_secs = set_secs
        self._usual_secs = sys.getswitchinterval()
        self._seen = refusals()
        self._short_until = -math.inf

    def look(self) -> None:
        """Look whether callers were refused since the last look."""
        seen, now = self._refusals(), self._clock.monotonic()
        was_short = self._short_until > -math.inf
        if seen != self._seen:
            self._seen, self._short_until = seen, now + _STAY_SECS
            if not was_short:
                self._set_secs(_SHORT_SECS)
        elif was_short and now >= self._short_until:
            self._short_until = -math.inf
            self._set_secs(self._usual_secs)

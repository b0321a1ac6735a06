"""Waits that have no limit of their own say now and then what they are for.

Somebody who looks at a program that stands still finds the reason in its log. tests/test_waits.py finds waits that
neither have a limit nor say anything.

Floor: shared. Threads: a Reminder belongs to one wait; `announced` has a thread named "globalstep-reminder" while its
block runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from globalstep.clock import SYSTEM_CLOCK, Clock

__all__ = ["Reminder", "announced"]

_log = logging.getLogger("globalstep")

#: Between two lines about one wait.
SAY_SECS = 30.0


class Reminder:
    """Waits for a condition to change, and says now and then what is waited for.

    Args:
        what: Gives what is waited for, for people. It is asked under the condition.
        level: Of the log lines: a warning where somebody should look, information where waiting is usual.
        clock: Time.
    """

    def __init__(self, what: Callable[[], str], level: int = logging.WARNING, clock: Clock = SYSTEM_CLOCK) -> None:
        self._what = what
        self._level = level
        self._clock = clock
        self._since = self._said = clock.monotonic()

    def wait(self, changed: threading.Condition) -> None:
        """Wait until somebody notifies, or until a line is due. Caller holds the condition, and looks again."""
        changed.wait(SAY_SECS)
        now = self._clock.monotonic()
        if now - self._said >= SAY_SECS:
            self._said = now
            _log.log(self._level, "Waiting for %.0f s now for %s", now - self._since, self._what())


@contextlib.contextmanager
def announced(what: str, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Say now and then, while a block runs, that this process waits for something.

    Args:
        what: For people.
        clock: Time.
    """
    done = threading.Event()
    since = clock.monotonic()

    def remind() -> None:
        while not done.wait(SAY_SECS):
            _log.warning("Waiting for %.0f s now for %s", clock.monotonic() - since, what)

    thread = threading.Thread(target=remind, name="globalstep-reminder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

"""Log lines of long waits: a wait without a limit of its own says now and then what it is for.

The log of a program that stands still gives the reason. tests/test_waits.py finds waits that
neither have a limit nor say anything.

Layer: shared. Threads: a Reminder belongs to one wait. Nothing here starts a thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from globalstep.errors import DeadlineExceededError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("globalstep")

#: Between two lines about one wait.
SAY_SECS = 30.0


class _Limit(threading.local):
    """The time at which a thread's waits are to end, by the system's clock; None for no limit."""

    at: float | None = None


_limit = _Limit()


@contextlib.contextmanager
def at_most(secs: float) -> Iterator[None]:
    """Limit the waits for queues of this thread within a `with` block, all together; see secs_to_wait."""
    before, _limit.at = _limit.at, SYSTEM_CLOCK.monotonic() + secs
    try:
        yield
    finally:
        _limit.at = before


def secs_to_wait(most: float, what: Callable[[], str]) -> float:
    """Give how long this thread may wait: `most` seconds, or what is left of its limit.

    Args:
        most: Seconds without a limit.
        what: Gives what is waited for, for people.

    Raises:
        DeadlineExceededError: If the limit has passed.
    """
    if _limit.at is None:
        return most
    left = _limit.at - SYSTEM_CLOCK.monotonic()
    if left <= 0:
        raise DeadlineExceededError(
            f"Timed out waiting for notification: the run's timeout_in_ms has passed, and it still waits for {what()}"
        )
    return min(most, left)


def likeliest(why: Callable[[], str]) -> str:
    """Give the end of a line about a wait: its likeliest reasons; "" where none are known, or finding them failed.

    Args:
        why: Gives them, as text that continues "Most likely".
    """
    try:
        reasons = why()
    except Exception as error:  # whatever it met in asking, the wait itself goes on
        _log.debug("Why this wait takes long cannot be found: %s", error)
        return ""
    return f". Most likely {reasons}." if reasons else ""


class Reminder:
    """Waits for a condition to change, and says now and then what is waited for.

    Args:
        what: Gives what is waited for, for people. It is asked under the condition.
        level: Of the log lines: a warning where a person should look, information where waiting is usual.
        clock: Time.
    """

    def __init__(self, what: Callable[[], str], level: int = logging.WARNING, clock: Clock = SYSTEM_CLOCK) -> None:
        self._what = what
        self._level = level
        self._clock = clock
        self._since = self._said = clock.monotonic()

    def wait(self, changed: threading.Condition) -> None:
        """Wait for a notification, or until a line is due. Caller holds the condition, and looks again.

        Raises:
            DeadlineExceededError: If the thread's limit has passed; see at_most.
        """
        changed.wait(secs_to_wait(SAY_SECS, self._what))
        now = self._clock.monotonic()
        if now - self._said >= SAY_SECS:
            self._said = now
            _log.log(self._level, "Waiting for %.0f s now for %s", now - self._since, self._what())


def wait_announced(
    over: Callable[[float], bool],
    what: str,
    clock: Clock = SYSTEM_CLOCK,
    why: Callable[[], str] = str,
    first_secs: float | None = None,
) -> None:
    """Wait until something is over, and say now and then that this process waits for it.

    The waiting thread itself does so: finalizers wait too, when Python ends and no thread can be started any more.

    Args:
        over: Called with seconds: waits for at most that long; returns whether the wait is over.
        what: For people: who, or what.
        clock: Time.
        why: Asked when a line is due, with no lock held: the likeliest reasons, one of which it may have found by
            asking; "" where none are known.
        first_secs: After how long it is said first; None for as long as between two lines.
    """
    since, secs = clock.monotonic(), SAY_SECS if first_secs is None else first_secs
    while not over(secs):
        _log.warning("Waiting for %.0f s now for %s%s", clock.monotonic() - since, what, likeliest(why))
        secs = SAY_SECS


def join_announced(
    thread: threading.Thread, what: str, clock: Clock = SYSTEM_CLOCK, why: Callable[[], str] = str
) -> None:
    """Wait until a thread has ended; see wait_announced."""

    def ended(secs: float) -> bool:
        thread.join(secs)
        return not thread.is_alive()

    wait_announced(ended, what, clock, why)

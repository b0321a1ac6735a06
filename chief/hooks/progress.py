"""The line that tells how a run fares: its text, and on a terminal a line that is drawn over at the bottom.

What the program prints scrolls above that.

Layer: chief. Threads: that of the session; prints of other threads are taken too, as rich takes them.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, TextIO

import numpy as np

from globalstep.runtime.log_format import is_terminal

#: Starts a line that the launcher shows as progress instead of as output.
PROGRESS_PREFIX = "\x1eprogress "


def progress_line(step: int, rate: float, last_step: int | None = None, loss: Any = None) -> str:
    """Put progress into words.

    Args:
        step: The global step.
        rate: Steps per second; 0 where not known.
        last_step: The step to stop at, or None.
        loss: The loss as a scalar or array (its mean is shown), or None.

    Returns:
        One line without an end.

    >>> progress_line(120, 350.1, 2000, 0.1234)
    'step 120/2000  350.1 steps/s  loss 0.123  eta 5s'
    """
    parts = [f"step {step}" if last_step is None else f"step {step}/{last_step}"]
    if rate > 0:
        parts.append(f"{rate:.1f} steps/s")
    if loss is not None:
        mean = float(np.mean(loss))
        parts.append(f"loss {mean:.3f}" if not 0 < abs(mean) < 0.01 else f"loss {mean:.3g}")
    if last_step is not None and rate > 0 and step < last_step:
        parts.append(f"eta {_duration((last_step - step) / rate)}")
    return "  ".join(parts)


def _duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


class LiveLine:
    """A line that is drawn over. One at a time has the terminal: a second is not shown before the first is closed.

    Args:
        stream: The terminal.
    """

    _shown: weakref.WeakSet[LiveLine] = weakref.WeakSet()

    def __init__(self, stream: TextIO) -> None:
        # Only who has a terminal pays for rich.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._console = Console(file=stream, highlight=False)
        # What goes to a file stays out of the terminal.
        redirect = is_terminal(sys.stdout)
        self._region = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=redirect,
            redirect_stderr=is_terminal(sys.stderr),
            transient=True,
        )
        weakref.finalize(self, self._region.stop)

    def show(self, text: str) -> None:
        """Draw the line anew."""
        if self not in LiveLine._shown:
            if LiveLine._shown:
                return
            LiveLine._shown.add(self)
            self._region.start()
            # A program that is killed leaves the terminal as it was.
            self._console.show_cursor(True)
        self._region.update(self._text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def say(self, text: str) -> None:
        """Write a permanent line above the changing one."""
        self._console.print(self._text(text), soft_wrap=True)

    def close(self) -> None:
        """Erase the line. Safe to call twice."""
        if self in LiveLine._shown:
            LiveLine._shown.discard(self)
            self._region.stop()

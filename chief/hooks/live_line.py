"""Live line at the bottom of a terminal; what the program prints scrolls above it.

Layer: chief. Threads: that of the session; prints of other threads are taken too, as rich takes them.
"""

from __future__ import annotations

import sys
import weakref
from typing import TextIO

from globalstep.runtime.streams import is_terminal

__all__ = ["LiveLine"]


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
        """Write a line that stays, above the one that changes."""
        self._console.print(self._text(text), soft_wrap=True)

    def close(self) -> None:
        """Erase the line. Safe to call twice."""
        if self in LiveLine._shown:
            LiveLine._shown.discard(self)
            self._region.stop()

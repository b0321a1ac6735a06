"""Standard streams that a program may have replaced: by a logger with nothing but `write`, by None, or closed.

Layer: shared. Imports nothing of globalstep. Threads: functions.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn


def is_open(stream: Any) -> bool:
    """Whether something can be written to a stream."""
    return stream is not None and not getattr(stream, "closed", False)


def is_terminal(stream: Any) -> bool:
    """Whether a stream says that it is a terminal.

    >>> is_terminal(None), is_terminal(object())
    (False, False)
    """
    asked = getattr(stream, "isatty", None)
    try:
        return bool(is_open(stream) and asked is not None and asked())
    except (OSError, ValueError):  # it was closed underneath
        return False


def write_line(stream: Any, text: str, end: str = "\n") -> None:
    """Write a line, unless the stream takes none: what is told of a program must not end it."""
    if not is_open(stream):
        return
    with contextlib.suppress(OSError, ValueError):
        # One write, so that no other line of this process comes between.
        stream.write(f"{text}{end}")
        if flush := getattr(stream, "flush", None):
            flush()


def end_process(code: int) -> NoReturn:
    """End this process at once, whatever its threads do; what was printed is written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)

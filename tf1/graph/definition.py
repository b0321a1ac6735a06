"""The place in a program that defined a node: for errors that name it, as TensorFlow's "defined at".

Layer: tf1. Threads: functions and plain data.
"""

from __future__ import annotations

import sys
from types import CodeType

#: Code and line.
Place = tuple[CodeType, int]

_PACKAGE = __name__.partition(".")[0]
_WITHIN = f"{_PACKAGE}."


def place_of_program() -> Place | None:
    """Give the innermost place outside of this package that the caller was called from; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_WITHIN) and name != _PACKAGE:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def describe_place(place: Place | None) -> str:
    """Put a place into words, "train.py:12, in build"; "" for none."""
    if place is None:
        return ""
    code, line = place
    within = "" if code.co_name == "<module>" else f", in {code.co_name}"
    return f"{code.co_filename}:{line}{within}"

"""The state of a PS task, as the task and its clients name it.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import enum


class State(enum.IntEnum):
    """The state of a PS task. The numbers are those of the wire."""

    VACANT = 1
    INITIALIZING = 2
    READY = 3
    DONE = 4

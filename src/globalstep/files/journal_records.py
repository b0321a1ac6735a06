"""The records of a run's journal: who pushed what and what became of it, without any gradient.

The sequencer writes them (`ps/ledger/journal.py`), the chief stores them (`chief/journal/journal_files.py`), and
`globalstep audit` reads them. A record is 44 bytes, little-endian; docs/audit.md says what the files are.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

#: As RECORD_DTYPE lays it out.
RECORD = struct.Struct("<QQqqIiBxH")

RECORD_DTYPE = np.dtype(
    {
        "names": ["index", "sequence", "value", "by", "client", "staleness", "kind", "step"],
        "formats": ["<u8", "<u8", "<i8", "<i8", "<u4", "<i4", "u1", "<u2"],
        "offsets": [0, 8, 16, 24, 32, 36, 40, 42],
        "itemsize": RECORD.size,
    }
)

#: Stands for "no step" in `step`.
NO_STEP = 0xFFFF


class EventKind(IntEnum):
    """The kind of a record."""

    #: An accepted push. With a step: that it moved on `by`, and the `value` right after.
    PUSH = 1
    #: A snapshot, which takes a place among the pushes.
    SNAPSHOT = 2
    #: Of the accepted push above it: a further step that it moved on.
    CARRIED = 3
    #: Of the accepted push above it: it assigned `value` to a step.
    ASSIGNED = 4
    #: A push that was not accepted, and has no index: a step had reached its limit.
    REFUSED_DONE = 5
    #: The same: it was too late.
    DROPPED_STALE = 6
    #: The same: a gradient was not finite.
    DROPPED_NAN = 7
    #: The same: its worker was silent for too long.
    ABANDONED = 8
    #: A retry that was answered with what was recorded; `index` is that of the push, 0 if it was not accepted.
    DUPLICATE = 9
    #: Of the accepted push above it: it counts for what follows `value` of a step, as contribution number `by`.
    CONTRIBUTED = 10
    #: Of the accepted push above it: the step that it made is of `value` contributions, where `by` were wanted;
    #: `staleness` is a Fewer.
    MADE_OF = 11
    #: A contribution that was not accepted, and has no index: its step was made, or its client had given as many as it
    #: may. With `by` 1 it brought nothing, and asked that the step be made of what was there.
    LATE = 12


class Fewer(IntEnum):
    """Why a step was made of fewer contributions than were wanted."""

    #: It was not.
    NOT = 0
    #: The lease of a worker that had contributed before was over: it died, or could not be reached.
    LOST = 1
    #: Workers that had contributed before have left.
    LEFT = 2
    #: No other workers were here.
    ABSENT = 3
    #: The sequencer was back from its log, which does not say it.
    NOT_KNOWN = 4


def first_after(rows: npt.NDArray[Any], index: int) -> int:
    """Give where in some records those begin that came after an entry; their number where none did."""
    later = (rows["kind"] <= EventKind.SNAPSHOT) & (rows["index"] > index)
    return int(later.argmax()) if later.any() else len(rows)


def last_entry(rows: npt.NDArray[Any]) -> int:
    """Give the last entry in some records; 0 for none."""
    return int(rows["index"][rows["kind"] <= EventKind.SNAPSHOT].max(initial=np.uint64(0)))

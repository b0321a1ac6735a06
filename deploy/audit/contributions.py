"""Checks of an audit on steps made of several workers' contributions: each is of those that were accepted for it.

Layer: deploy. Single thread: the caller's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.deploy.audit.reading import RecordSequence
from globalstep.deploy.audit.result import FewerMade, StepsMade
from globalstep.files.journal_records import EventKind, Fewer

__all__ = ["ContributionBook"]

Array = npt.NDArray[Any]

_WHY = {
    Fewer.LOST: "a worker was gone, and its lease over",
    Fewer.LEFT: "the others had left",
    Fewer.ABSENT: "no others were here",
    Fewer.NOT_KNOWN: "the sequencer was back from its log, which does not say why",
}


class ContributionBook:
    """The contributions of one incarnation, in the order of their entries.

    Args:
        kept_until: Index of the last entry that is not lost.
        made: Where it is counted what is kept, by step.
    """

    def __init__(self, kept_until: int, made: dict[str, StepsMade]) -> None:
        self._kept_until = kept_until
        self._made = made
        # Step -> (its value, contributions that are there for what follows it).
        self._open: dict[str, tuple[int, int]] = {}

    def read(self, piece: RecordSequence, running: Array) -> list[str]:
        """Take in some records; gives what is wrong with them.

        Args:
            piece: The records.
            running: The entry that each belongs to.
        """
        rows, wrong = piece.rows, []
        for at in np.flatnonzero(np.isin(rows["kind"], (EventKind.CONTRIBUTED, EventKind.MADE_OF))):
            row, index = rows[at], int(running[at])
            if row["step"] >= len(piece.steps):
                wrong.append(f"A record names step {row['step']}; there are {len(piece.steps)}")
                continue
            step, value, by = piece.steps[row["step"]], int(row["value"]), int(row["by"])
            kept = self._made.setdefault(step, StepsMade()) if index <= self._kept_until else StepsMade()
            base, count = self._open.get(step, (value, 0))
            if row["kind"] == EventKind.CONTRIBUTED:
                if by != 1 and (base, count + 1) != (value, by):
                    wrong.append(
                        f"Entry {index} is contribution {by} to {step} = {value + 1}; before it there were {count} to "
                        f"{base + 1}"
                    )
                self._open[step] = value, by
                kept.unused += 1
                continue
            self._open.pop(step, None)
            if count != value:
                wrong.append(f"Entry {index} makes {step} = {base + 1} of {value} contributions; {count} were accepted")
            kept.steps, kept.used, kept.unused = kept.steps + 1, kept.used + count, kept.unused - count
            if value < by:
                _add(kept.fewer, FewerMade(base + 1, base + 1, value, by, _WHY.get(row["staleness"], "")))
        return wrong


def _add(found: list[FewerMade], made: FewerMade) -> None:
    """Add a step, to the last stretch where it belongs to that."""
    if found:
        last = found[-1]
        if (last.last + 1, last.count, last.wanted, last.why) == (made.first, made.count, made.wanted, made.why):
            last.last = made.last
            return
    found.append(made)

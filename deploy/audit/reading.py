"""Reader of a run's journal for an audit: each incarnation's records in the order in which they were written.

What is damaged or missing is collected as a finding and read around, so that one audit tells all that is wrong.

Layer: deploy. Single thread: the caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from globalstep.chief.journal.journal_files import Batch, Header, SegmentName, read_segment, segment_names
from globalstep.errors import OpError
from globalstep.files.journal_records import RECORD, first_after, last_entry
from globalstep.wire.known_progress import KnownProgress

Rows = npt.NDArray[Any]
_TWO_RUNS = "Two jobs have kept their runs in this directory; what is proven of the one says nothing of the other."


@dataclass(slots=True)
class Findings:
    """Faults of a journal; each line names the place."""

    #: It can be read, and does not prove what it should.
    wrong: list[str] = field(default_factory=list)
    #: It cannot be read.
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecordSequence:
    """Records that follow one another."""

    #: File that they are of.
    name: str
    rows: Rows
    #: Client number -> (client id, task), for the numbers in `rows`.
    clients: dict[int, tuple[str, str]]
    #: Names of steps by number.
    steps: list[str]


@dataclass(slots=True)
class Volume:
    """The journal of one incarnation.

    Attributes:
        incarnation: Its number.
        names: Its files, in order.
        header: What they say of it; None if none can be read.
        complete: Nothing of it that moves a step was missing in the journal when its last file was written, nor could
            come by any client that was there.
    """

    directory: str
    incarnation: int
    names: list[SegmentName]
    header: Header | None = None
    complete: bool = False
    #: Client -> task, of those that say it anywhere: a sequencer that has come back may hear it after a push.
    tasks: dict[str, str] = field(default_factory=dict)

    def pieces(self, findings: Findings) -> Iterator[RecordSequence]:
        """Give all records in order, each once; what is missing between them goes to `findings`."""
        life, end, last_index = "", 0, 0
        clients: dict[int, tuple[str, str]] = {}
        for name in self.names:
            try:
                batches = read_segment(self.directory, name).batches
            except OpError as error:
                findings.unreadable.append(str(error))
                continue
            for batch in batches:
                where = f"{name}, incarnation {self.incarnation}"
                if batch.life != life:
                    # The sequencer came back: it tells what came after the last entry that was stored.
                    batch = _after(batch, last_index)
                    life, end = batch.life, batch.first if life else 0
                    clients = {}
                if batch.first > end:
                    findings.wrong.append(
                        f"Gap: {batch.first - end} records are missing before position {batch.first} ({where})."
                    )
                for number, (client, task) in batch.clients.items():
                    clients[number] = client, task or self.tasks.get(client, "")
                rows = batch.rows[max(end - batch.first, 0) :]
                end = max(end, batch.end)
                if len(rows):
                    last_index = last_entry(rows) or last_index
                    yield RecordSequence(str(name), rows, clients, list(batch.steps))


def _after(batch: Batch, index: int) -> Batch:
    """Leave out of a new life's first records what was stored in the life before."""
    skip = first_after(batch.rows, index) if index else 0
    return Batch(batch.life, batch.first + skip, batch.records[skip * RECORD.size :], batch.clients, batch.steps)


def read_volumes(directory: str, findings: Findings, progress: KnownProgress) -> list[Volume]:
    """Find the incarnations of a run that have a journal.

    Returns:
        In order. Their headers are read, their records are not.
    """
    volumes: dict[int, Volume] = {}
    for name in segment_names(directory):
        volumes.setdefault(name.incarnation, Volume(directory, name.incarnation, [])).names.append(name)
    for volume in volumes.values():
        for name in volume.names:
            try:
                segment = read_segment(directory, name)
            except OpError:
                continue  # `pieces` names it
            header = segment.header
            for batch in segment.batches:
                volume.tasks.update({client: task for client, task in batch.clients.values() if task})
            volume.complete = header.complete
            for number, known in header.told.items():
                progress.hear(number, known)
            if volume.header is None:
                volume.header = header
            elif volume.header.parent != header.parent or volume.header.shards != header.shards:
                findings.wrong.append(f"{name} does not agree with {volume.names[0]} on how the incarnation began.")
            elif volume.header.run != header.run and volume.header.run and header.run:
                findings.wrong.append(
                    f"The journal is of two runs: {volume.names[0]} is of run {_shown(volume.header.run)}, and "
                    f"{name}, of the same incarnation, of run {_shown(header.run)}. {_TWO_RUNS}"
                )
    _compare_runs(list(volumes.values()), findings)
    return list(volumes.values())


def _compare_runs(volumes: Sequence[Volume], findings: Findings) -> None:
    """Look whether all incarnations are of one run.

    A run whose directory was given a new identity goes on under that from a checkpoint: the ids change, and never back.
    """
    named = [volume for volume in volumes if volume.header is not None and volume.header.run]
    of = {volume.incarnation: volume.header.run for volume in named if volume.header is not None}
    seen: set[str] = set()
    for before, volume in itertools.pairwise(named):
        assert volume.header is not None
        mine, theirs = of[volume.incarnation], of[before.incarnation]
        seen.add(theirs)
        if mine != theirs and (mine in seen or of.get(volume.header.parent, "") != theirs):
            findings.wrong.append(
                f"The journal is of two runs: incarnation {before.incarnation} is of run {_shown(theirs)}, and "
                f"incarnation {volume.incarnation} of run {_shown(mine)}, which does not go on where that ended. "
                f"{_TWO_RUNS}"
            )


def _shown(run: str) -> str:
    return run[:8]

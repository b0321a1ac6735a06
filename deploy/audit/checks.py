"""Checks of an audit on each incarnation's records, some thousands at a time.

Layer: deploy. Single thread: the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.deploy.audit.contributions import ContributionBook
from globalstep.deploy.audit.reading import Findings, RecordSequence, Volume
from globalstep.deploy.audit.result import Audit, AuditedIncarnation, StepProof, Worker
from globalstep.files.journal_records import NO_STEP, EventKind

__all__ = ["Decided", "Mark", "Reader"]

Array = npt.NDArray[Any]

#: Findings of one kind in one place; the rest are counted.
_MAX_NAMED = 3
_FOLLOWING = (EventKind.CARRIED, EventKind.ASSIGNED, EventKind.CONTRIBUTED, EventKind.MADE_OF)
_NOT_ACCEPTED = (*range(EventKind.REFUSED_DONE, EventKind.ABANDONED + 1), EventKind.LATE)
_COUNTERS = {
    EventKind.REFUSED_DONE: "refused",
    EventKind.DROPPED_STALE: "dropped_stale",
    EventKind.DROPPED_NAN: "dropped_nan",
    EventKind.ABANDONED: "abandoned",
    EventKind.DUPLICATE: "duplicates",
}


class Decided:
    """The numbers of each client's pushes that were decided, as runs without holes."""

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[int, int]]] = {}

    def add(self, client: str, sequences: Array) -> None:
        """Take note of decisions about pushes of a client."""
        numbers = np.sort(sequences)
        breaks = np.flatnonzero(numbers[1:] != numbers[:-1] + np.uint64(1)) + 1
        runs = self._runs.setdefault(client, [])
        for part in np.split(numbers, breaks):
            first, last = int(part[0]), int(part[-1])
            if runs and runs[-1][1] + 1 == first:
                first = runs.pop()[0]
            runs.append((first, last))

    def twice(self) -> list[tuple[str, int]]:
        """Give (client, number) of pushes that were decided more than once; of a stretch of them, the first."""
        found = []
        for client, runs in self._runs.items():
            reached = -1
            for first, last in sorted(runs):
                if first <= reached:
                    found.append((client, first))
                reached = max(reached, last)
        return found


class Mark:
    """A place in an incarnation whose steps another file has on record.

    Args:
        index: Only what came up to this entry counts.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        #: Steps there, once the incarnation was read.
        self.steps: dict[str, int] = {}
        #: Index -> (client, sequence), of entries that were asked for.
        self.pushes: dict[int, tuple[str, int]] = {}


class Reader:
    """Reads the records of one incarnation and checks them.

    Args:
        volume: The incarnation.
        kept_until: Index of the last entry that is not lost.
        marks: Places that another file has on record.
        wanted: Indices of entries whose pushes are to be found.
        proofs: Of each step, so far; goes on with what is kept here. None where nothing is.
        decided: Of all incarnations.
        result: Where it all goes.
    """

    def __init__(
        self,
        volume: Volume,
        kept_until: int,
        marks: Sequence[Mark],
        wanted: Iterable[int],
        proofs: dict[str, StepProof] | None,
        decided: Decided,
        result: Audit,
    ) -> None:
        self._volume = volume
        self._kept_until = kept_until
        self._marks = marks
        self._wanted = np.array(sorted(wanted), np.uint64)
        self._proofs = proofs
        self._decided = decided
        self._result = result
        self._findings: Findings = result.findings
        header = volume.header
        self._index = header.begin_index if header is not None else 0
        self._steps = dict(header.begin_steps) if header is not None else {}
        self._contributions = ContributionBook(kept_until, result.made)
        self.pushes: dict[int, tuple[str, int]] = {}
        #: The most that one push moved a step on.
        self.most_by = 1
        for mark in marks:
            mark.steps = dict(self._steps)

    def read(self) -> AuditedIncarnation:
        """Read all; gives what there is to say of the incarnation."""
        header = self._volume.header
        found = AuditedIncarnation(self._volume.incarnation, self._index, header.parent if header is not None else 0)
        if header is not None:
            found.policy = dict(header.policy)
        for piece in self._volume.pieces(self._findings):
            self._check(piece, found)
        found.last_index = self._index
        found.kept_until = min(self._kept_until, self._index)
        found.steps = dict(self._steps)
        return found

    def _tell(self, name: str, what: Sequence[str]) -> None:
        place = f"{name}, incarnation {self._volume.incarnation}"
        self._findings.wrong += [f"{text} ({place})" for text in what[:_MAX_NAMED]]
        if len(what) > _MAX_NAMED:
            self._findings.wrong.append(f"... and {len(what) - _MAX_NAMED} more of this kind ({place})")

    def _check(self, piece: RecordSequence, found: AuditedIncarnation) -> None:
        rows = piece.rows
        kinds, indices = rows["kind"], rows["index"].astype(np.int64)
        known = (kinds >= EventKind.PUSH) & (kinds <= EventKind.LATE)
        self._tell(piece.name, [f"A record is of no known kind: {kind}" for kind in kinds[~known]])
        entries = np.flatnonzero(kinds <= EventKind.SNAPSHOT)
        # Which entry each record belongs to, or comes after.
        latest = np.maximum.accumulate(np.where(kinds <= EventKind.SNAPSHOT, np.arange(len(rows)), -1))
        running = np.where(latest >= 0, indices[latest], self._index)
        self._check_indices(piece, indices, entries, running)
        self._check_steps(piece, running)
        self._tell(piece.name, self._contributions.read(piece, running))
        self._count(piece, running, found)
        if len(self._wanted):
            for at in entries[np.isin(rows["index"][entries], self._wanted)]:
                client = piece.clients.get(int(rows["client"][at]), ("", ""))[0]
                self.pushes[int(indices[at])] = (client, int(rows["sequence"][at]))
        self._index = int(running[-1])

    def _check_indices(self, piece: RecordSequence, indices: Array, entries: Array, running: Array) -> None:
        """Entries follow one another without a gap; all else stands where it belongs."""
        kinds = piece.rows["kind"]
        of_entries = indices[entries]
        before = np.concatenate(([self._index], of_entries[:-1]))
        wrong = np.flatnonzero(of_entries != before + 1)
        gaps = []
        for at in wrong:
            index, previous = int(of_entries[at]), int(before[at])
            if index > previous:
                gaps.append(f"Entries {previous + 1} to {index - 1} are missing" if index > previous + 2 else
                            f"Entry {previous + 1} is missing")  # fmt: skip
            else:
                gaps.append(f"Entry {index} comes after entry {previous}: it is there twice, or out of order")
        self._tell(piece.name, gaps)
        following = np.isin(kinds, _FOLLOWING) & (indices != running)
        self._tell(
            piece.name,
            [f"A change of a step by entry {indices[at]} stands after entry {running[at]}"
             for at in np.flatnonzero(following)],
        )  # fmt: skip
        refused = np.isin(kinds, _NOT_ACCEPTED) & (indices != 0)
        self._tell(piece.name, [f"A push that was not accepted has index {i}" for i in indices[refused]])

    def _check_steps(self, piece: RecordSequence, running: Array) -> None:
        """Each step is what it was before, and what the push moved it on."""
        rows = piece.rows
        changes = (rows["step"] != NO_STEP) & (rows["kind"] <= EventKind.ASSIGNED)
        for number in np.unique(rows["step"][changes]):
            if number >= len(piece.steps):
                self._tell(piece.name, [f"A record names step {number}; there are {len(piece.steps)}"])
                continue
            name = piece.steps[number]
            at = np.flatnonzero(changes & (rows["step"] == number))
            values, by, places = rows["value"][at], rows["by"][at], running[at]
            self.most_by = max(self.most_by, int(by.max(initial=1)))
            assigned = rows["kind"][at] == EventKind.ASSIGNED
            before = np.concatenate((np.array([self._steps.get(name, 0)], np.int64), values[:-1]))
            self._tell(
                piece.name,
                [
                    f"Entry {places[i]} says {name} = {values[i]}; it was {before[i]} before, and moved on {by[i]}"
                    for i in np.flatnonzero(~assigned & (values != before + by))
                ],
            )
            for mark in self._marks:
                upto = places <= mark.index
                if upto.any():
                    mark.steps[name] = int(values[upto][-1])
            if self._proofs is not None:
                kept = places <= self._kept_until
                self._prove(name, values[kept], by[kept], assigned[kept], before[kept])
            self._steps[name] = int(values[-1])

    def _prove(self, name: str, values: Array, by: Array, assigned: Array, before: Array) -> None:
        """Add changes of a step that are not lost to its proof."""
        assert self._proofs is not None
        proof = self._proofs.setdefault(name, StepProof())
        if not len(values):
            return
        # A restore assigns the value that it has already.
        anew = np.flatnonzero(assigned & (values != before))
        if len(anew):
            proof.base, proof.pushes, proof.moved = int(values[anew[-1]]), 0, 0
            values, by, assigned = values[anew[-1] + 1 :], by[anew[-1] + 1 :], assigned[anew[-1] + 1 :]
        proof.pushes += int(np.count_nonzero(~assigned))
        proof.moved += int(by[~assigned].sum())

    def _count(self, piece: RecordSequence, running: Array, found: AuditedIncarnation) -> None:
        """Count what each worker did."""
        rows = piece.rows
        for number in np.unique(rows["client"]):
            mine = rows["client"] == number
            client, task = piece.clients.get(int(number), (f"client {number} of {self._volume.incarnation}", ""))
            worker = self._result.workers.setdefault(task or client, Worker())
            worker.clients.add(client)
            kinds, steps = rows["kind"], rows["step"]
            decided = mine & ((kinds <= EventKind.SNAPSHOT) | np.isin(kinds, _NOT_ACCEPTED))
            if decided.any():
                self._decided.add(client, rows["sequence"][decided])
            moving = mine & (kinds == EventKind.PUSH) & (steps != NO_STEP)
            kept = moving & (running <= self._kept_until)
            lost = int(np.count_nonzero(moving)) - int(np.count_nonzero(kept))
            worker.pushes += int(np.count_nonzero(kept))
            worker.lost += lost
            found.lost += lost
            worker.late += int(np.count_nonzero(mine & (kinds == EventKind.LATE) & (rows["by"] == 0)))
            given = running[mine & (kinds == EventKind.CONTRIBUTED)]
            worker.contributions += int(np.count_nonzero(given <= self._kept_until))
            others = mine & (kinds <= EventKind.SNAPSHOT) & (steps == NO_STEP)
            worker.others += int(np.count_nonzero(others & ~np.isin(running, given)))
            values, counts = np.unique(rows["staleness"][kept], return_counts=True)
            worker.staleness.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            for kind, counter in _COUNTERS.items():
                setattr(worker, counter, getattr(worker, counter) + int(np.count_nonzero(mine & (kinds == kind))))

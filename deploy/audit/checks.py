"""Checks of an audit on each incarnation's records, some thousands at a time, and what comes of them.

Layer: deploy. Single thread: the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.deploy.audit.history_checker import DecidedPushes, JournalBook
from globalstep.deploy.audit.reading import Findings, RecordSequence, Volume
from globalstep.files.journal_records import NO_STEP, EventKind, Fewer

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Worker:
    """The pushes of one task, of all its clients together."""

    clients: set[str] = field(default_factory=set)
    #: Accepted pushes that moved a step on, and that the run still holds.
    pushes: int = 0
    #: Accepted pushes that a restore discarded.
    lost: int = 0
    #: Other entries: assigns, reads over several shards, snapshots.
    others: int = 0
    #: Accepted contributions to steps that are made of several, and that the run still holds; and those that were late.
    contributions: int = 0
    late: int = 0
    duplicates: int = 0
    refused: int = 0
    dropped_stale: int = 0
    dropped_nan: int = 0
    abandoned: int = 0
    #: Of the pushes that the run still holds: staleness -> how many.
    staleness: Counter[int] = field(default_factory=Counter)

    def quantile(self, part: float) -> int:
        """Give the staleness that `part` of the pushes do not exceed; 0 for none."""
        left = part * sum(self.staleness.values())
        for value, count in sorted(self.staleness.items()):
            left -= count
            if left <= 0:
                return value
        return 0


@dataclass(slots=True)
class StepProof:
    """A step's value, and the pushes that it is made of."""

    #: Its first value, or what the program assigned last.
    base: int = 0
    #: Accepted pushes since that carry it.
    pushes: int = 0
    #: What they moved it on, together.
    moved: int = 0
    value: int = 0


@dataclass(slots=True)
class StepsMade:
    """The steps that are made of contributions and that the run still holds, and what they were made of."""

    #: How many steps.
    steps: int = 0
    #: Contributions in them.
    used: int = 0
    #: Accepted ones that made no step: the program assigned it, or it was open at the end.
    unused: int = 0
    #: Stretches of steps that have fewer contributions than were wanted, in order.
    fewer: list[FewerMade] = field(default_factory=list)


@dataclass(slots=True)
class FewerMade:
    """Steps that follow one another, each of fewer contributions than were wanted, for the same reason."""

    first: int
    last: int
    count: int
    wanted: int
    why: str


@dataclass(slots=True)
class AuditedIncarnation:
    """One incarnation, by its journal."""

    number: int
    begin_index: int
    #: The incarnation of the checkpoint that it began from; 0 for none.
    parent: int
    last_index: int = 0
    #: Index up to which a later incarnation, or the end, holds its pushes.
    kept_until: int = 0
    #: Accepted pushes beyond it, which a restore discarded: those that the journal has, and as many more as it must
    #: have been for the step to come to where a client has heard that it had come.
    lost: int = 0
    #: Whether there may have been more, that no remaining process knew of: the sequencer was killed.
    lost_at_least: bool = False
    #: Of those lost, the ones that the journal has not: whose they were is unknown.
    unrecorded: int = 0
    policy: dict[str, Any] = field(default_factory=dict)
    #: Its steps at the end.
    steps: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        proven: Whether everything that is to be proven is.
        findings: What is wrong, or cannot be read.
        steps: By name, at the end of the newest incarnation.
        made: By step: of what its values were made, where that is several workers' contributions.
        incarnations: In order.
        workers: By task; by client id where that did not say its task.
        checkpoint: Prefix of the newest checkpoint; "" for none.
        checkpoint_steps: What its ledger has.
        history: How many operations of clients were judged as well, by kind and end.
    """

    findings: Findings = field(default_factory=Findings)
    steps: dict[str, StepProof] = field(default_factory=dict)
    made: dict[str, StepsMade] = field(default_factory=dict)
    incarnations: list[AuditedIncarnation] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)
    checkpoint: str = ""
    checkpoint_steps: dict[str, int] = field(default_factory=dict)
    history: dict[str, int] = field(default_factory=dict)

    @property
    def lost_at_least(self) -> bool:
        """Whether more may be lost than is known."""
        return any(item.lost_at_least for item in self.incarnations)

    @property
    def proven(self) -> bool:
        """See the class."""
        return not self.findings.wrong and not self.findings.unreadable


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


class Reader:
    """Reads the records of one incarnation, has each checked, and counts them.

    Args:
        volume: The incarnation.
        kept_until: Index of the last entry that is not lost.
        marks: Entries at which another file has the steps on record.
        wanted: Indices of entries whose pushes are to be found.
        proofs: Of each step, so far; goes on with what is kept here. None where nothing is.
        decided: Of all incarnations.
        result: Where it all goes.

    Attributes:
        book: Checks the records.
        pushes: Wanted index -> (client, number) of the push there.
        events: What the incarnation's journal says, in the form of a history; None where nobody asks for it.
        most_by: The most that one push moved a step on.
    """

    def __init__(
        self,
        volume: Volume,
        kept_until: int,
        marks: Iterable[int],
        wanted: Container[int],
        proofs: dict[str, StepProof] | None,
        decided: DecidedPushes,
        result: Audit,
        events: list[Mapping[str, Any]] | None = None,
    ) -> None:
        self.events = events
        self._volume = volume
        self._kept_until = kept_until
        self._wanted = wanted
        self._proofs = proofs
        self._decided = decided
        self._result = result
        header = volume.header
        self.book = JournalBook() if header is None else JournalBook(header.begin_index, header.begin_steps, marks)
        self._contributions = ContributionBook(kept_until, result.made)
        self.pushes: dict[int, tuple[str, int]] = {}
        self._entry: dict[str, Any] = {}
        self.most_by = 1

    def read(self) -> AuditedIncarnation:
        """Read all; gives what there is to say of the incarnation."""
        header, index = self._volume.header, self.book.index
        audited = AuditedIncarnation(self._volume.incarnation, index, header.parent if header is not None else 0)
        if header is not None:
            audited.policy = dict(header.policy)
        for piece in self._volume.pieces(self._result.findings):
            kinds, indices = piece.rows["kind"], piece.rows["index"].astype(np.int64)
            # Which entry each record belongs to, or comes after.
            latest = np.maximum.accumulate(np.where(kinds <= EventKind.SNAPSHOT, np.arange(len(kinds)), -1))
            running = np.where(latest >= 0, indices[latest], self.book.index)
            self._check(piece)
            self._tell(piece.name, self._contributions.read(piece, running))
            self._count(piece, running, audited)
        audited.last_index = self.book.index
        audited.kept_until = min(self._kept_until, audited.last_index)
        audited.steps = dict(self.book.values)
        return audited

    def _tell(self, name: str, what: Sequence[str]) -> None:
        place, wrong = f"{name}, incarnation {self._volume.incarnation}", self._result.findings.wrong
        wrong += [f"{text} ({place})" for text in what[:_MAX_NAMED]]
        if len(what) > _MAX_NAMED:
            wrong.append(f"... and {len(what) - _MAX_NAMED} more of this kind ({place})")

    def _check(self, piece: RecordSequence) -> None:
        """Have each record checked, in order."""
        places, steps, twice = [], [], []
        columns = (piece.rows[name].tolist() for name in ("kind", "index", "sequence", "client", "step", "value", "by"))
        for kind, index, number, client, step, value, by in zip(*columns, strict=True):
            if kind <= EventKind.SNAPSHOT:
                places.append(self.book.entry(index))
                if self.events is not None:
                    self._entry = {"incarnation": self._volume.incarnation, "index": index, "number": number,
                                   "client": piece.clients.get(client, ("", ""))[0], "add": {}, "read": {}}  # fmt: skip
                    self.events.append({"f": "entry", "value": self._entry})
                if index in self._wanted:
                    self.pushes[index] = piece.clients.get(client, ("", ""))[0], number
            elif kind in _FOLLOWING and index != self.book.index:
                places.append(f"A change of a step by entry {index} stands after entry {self.book.index}")
            elif kind in _NOT_ACCEPTED and index:
                places.append(f"A push that was not accepted has index {index}")
            elif not EventKind.PUSH <= kind <= EventKind.LATE:
                places.append(f"A record is of no known kind: {kind}")
            if kind <= EventKind.ASSIGNED and step < len(piece.steps):
                steps.append(self._step(piece.steps[step], index, value, None if kind == EventKind.ASSIGNED else by))
            elif kind <= EventKind.ASSIGNED and step != NO_STEP:
                steps.append(f"A record names step {step}; there are {len(piece.steps)}")
            if kind <= EventKind.SNAPSHOT or kind in _NOT_ACCEPTED:
                name = piece.clients.get(client, (f"{client} of {self._volume.incarnation}", ""))[0]
                twice.append(self._decided.add(name, number))
        for texts in (places, steps, twice):
            self._tell(piece.name, list(filter(None, texts)))

    def _step(self, name: str, index: int, value: int, by: int | None) -> str:
        """Check a change of a step, and add it to the step's proof unless it is lost; gives what is wrong."""
        before = self.book.values.get(name, 0)
        if self.events is not None:
            self._entry["read"][name] = value
            if by is None:
                self._entry.setdefault("set", {})[name] = value
            else:
                self._entry["add"][name] = by
        self.most_by = max(self.most_by, by or 0)
        if self._proofs is not None and self.book.index <= self._kept_until:
            proof = self._proofs.setdefault(name, StepProof())
            if by is not None:
                proof.pushes, proof.moved = proof.pushes + 1, proof.moved + by
            elif value != before:  # a restore assigns the value that it has already
                proof.base, proof.pushes, proof.moved = value, 0, 0
        return self.book.step(index, name, value, by)

    def _count(self, piece: RecordSequence, running: Array, audited: AuditedIncarnation) -> None:
        """Count what each worker did."""
        rows = piece.rows
        for number in np.unique(rows["client"]):
            mine = rows["client"] == number
            client, task = piece.clients.get(int(number), (f"client {number} of {self._volume.incarnation}", ""))
            worker = self._result.workers.setdefault(task or client, Worker())
            worker.clients.add(client)
            kinds, steps = rows["kind"], rows["step"]
            moving = mine & (kinds == EventKind.PUSH) & (steps != NO_STEP)
            counted = moving & (running <= self._kept_until)
            lost = int(np.count_nonzero(moving)) - int(np.count_nonzero(counted))
            worker.pushes += int(np.count_nonzero(counted))
            worker.lost += lost
            audited.lost += lost
            worker.late += int(np.count_nonzero(mine & (kinds == EventKind.LATE) & (rows["by"] == 0)))
            places = running[mine & (kinds == EventKind.CONTRIBUTED)]
            worker.contributions += int(np.count_nonzero(places <= self._kept_until))
            others = mine & (kinds <= EventKind.SNAPSHOT) & (steps == NO_STEP)
            worker.others += int(np.count_nonzero(others & ~np.isin(running, places)))
            values, counts = np.unique(rows["staleness"][counted], return_counts=True)
            worker.staleness.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            for kind, counter in _COUNTERS.items():
                setattr(worker, counter, getattr(worker, counter) + int(np.count_nonzero(mine & (kinds == kind))))


_WHY = {
    Fewer.LOST: "a worker was gone, and its lease over",
    Fewer.LEFT: "the others had left",
    Fewer.ABSENT: "no others were here",
    Fewer.NOT_KNOWN: "the sequencer was back from its log, which does not say why",
}


class ContributionBook:
    """The contributions of one incarnation, in the order of their entries."""

    def __init__(self, kept_until: int, made: dict[str, StepsMade]) -> None:
        self._kept_until = kept_until
        self._made = made
        # Step -> (its value, contributions that are there for what follows it).
        self._open: dict[str, tuple[int, int]] = {}

    def read(self, piece: RecordSequence, running: Array) -> list[str]:
        """Take in some records; gives what is wrong with them."""
        rows, wrong = piece.rows, []
        for at in np.flatnonzero(np.isin(rows["kind"], (EventKind.CONTRIBUTED, EventKind.MADE_OF))):
            row, index = rows[at], int(running[at])
            if row["step"] >= len(piece.steps):
                wrong.append(f"A record names step {row['step']}; there are {len(piece.steps)}")
                continue
            step, value, by = piece.steps[row["step"]], int(row["value"]), int(row["by"])
            made = self._made.setdefault(step, StepsMade()) if index <= self._kept_until else StepsMade()
            base, count = self._open.get(step, (value, 0))
            if row["kind"] == EventKind.CONTRIBUTED:
                if by != 1 and (base, count + 1) != (value, by):
                    wrong.append(
                        f"Entry {index} is contribution {by} to {step} = {value + 1}; before it there were {count} to "
                        f"{base + 1}"
                    )
                self._open[step] = value, by
                made.unused += 1
                continue
            self._open.pop(step, None)
            if count != value:
                wrong.append(f"Entry {index} makes {step} = {base + 1} of {value} contributions; {count} were accepted")
            made.steps, made.used, made.unused = made.steps + 1, made.used + count, made.unused - count
            if value < by:
                _add(made.fewer, FewerMade(base + 1, base + 1, value, by, _WHY.get(row["staleness"], "")))
        return wrong


def _add(stretches: list[FewerMade], made: FewerMade) -> None:
    """Add a step, to the last stretch where it belongs to that."""
    if stretches:
        last = stretches[-1]
        if (last.last + 1, last.count, last.wanted, last.why) == (made.first, made.count, made.wanted, made.why):
            last.last = made.last
            return
    stretches.append(made)

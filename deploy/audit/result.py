"""Result of an audit: plain data, for people and programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from globalstep.deploy.audit.reading import Findings


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
    staleness: Counter[int] = field(default_factory=Counter[int])

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

"""The sequencer's book of open aggregates: which contributions make the next value of each step.

"Aggregates" in docs/design/steps-of-several-workers.md is the specification.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.wire.declarations import Increment

#: Of one step.
MOST_CONTRIBUTIONS = 1 << 16


@dataclass(slots=True)
class OpenAggregate:
    """The contributions that were accepted for one value of a step."""

    #: The step's value before.
    base: int
    #: How many contributions make it.
    wanted: int
    #: Shards that hold a part of each.
    participants: tuple[int, ...]
    #: How many of one client count.
    most_of_client: int = 1
    #: Client -> how many it has given.
    given: dict[str, int] = field(default_factory=dict)
    #: Units of work that are in: each counts once, from any client.
    units: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        """The number of its contributions."""
        return sum(self.given.values())

    @property
    def of_units(self) -> bool:
        """Whether they are units of work: the first one says so."""
        return bool(self.units)


def check_contribution(wanted: Increment, increments: Sequence[Increment], seen_steps: Mapping[str, int]) -> None:
    """Refuse a push that cannot be a contribution, or close an aggregate.

    Args:
        wanted: The increment by which it would be one.
        increments: All of the push.
        seen_steps: See Push.

    Raises:
        InvalidArgumentError: If it cannot. Nothing is changed.
    """
    if len(increments) != 1 or wanted.by != 1:
        moved = ", ".join(f"{item.step} by {item.by}" for item in increments)
        raise InvalidArgumentError(f"A contribution moves one step on, by one; this one moves {moved}.")
    if wanted.step not in seen_steps:
        raise InvalidArgumentError(
            f"A contribution to {wanted.step!r} does not say from which value of it it was computed: `seen_steps` has "
            f"{sorted(seen_steps)}."
        )
    if wanted.unit > wanted.contributions:
        raise InvalidArgumentError(
            f"Unit {wanted.unit} of a value of {wanted.step!r} that is made of {wanted.contributions} units of work."
        )
    if wanted.contributions > MOST_CONTRIBUTIONS:
        raise InvalidArgumentError(
            f"{wanted.contributions} contributions for one value of {wanted.step!r}; {MOST_CONTRIBUTIONS} are the most."
        )


class Aggregates:
    """The open aggregate of each step.

    >>> book, step = Aggregates(), Increment("step", contributions=2)
    >>> book.count(step, "a", 5, (0,)), book.is_late(step, "a", 5, 5), book.is_late(step, "b", 5, 5)
    (1, True, False)
    >>> book.is_last(step, 5), book.close("step")
    (True, 1)
    """

    def __init__(self) -> None:
        self._open: dict[str, OpenAggregate] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, step: str, base: int) -> OpenAggregate | None:
        """Give the aggregate for what follows a step's value `base`; None where it has no contribution yet."""
        aggregate = self._open.get(step)
        return aggregate if aggregate is not None and aggregate.base == base else None

    def check(self, wanted: Increment, base: int, participants: Sequence[int]) -> None:
        """Refuse a contribution that does not fit those that are there.

        Args:
            wanted: By which it is one.
            base: The step's present value.
            participants: Shards with a part in it.

        Raises:
            InvalidArgumentError: If it does not. Nothing is changed.
        """
        aggregate = self.open(wanted.step, base)
        if aggregate is None:
            return
        if aggregate.wanted != wanted.contributions:
            raise InvalidArgumentError(
                f"Step {wanted.step!r} is to be made of {wanted.contributions} contributions, by this one, and of "
                f"{aggregate.wanted} by those that are there: every worker's program must name the same number "
                "(replicas_to_aggregate)."
            )
        if not wanted.closes and aggregate.of_units != bool(wanted.unit):
            of, others = ("no unit", "units") if aggregate.of_units else ("a unit", "none")
            raise InvalidArgumentError(
                f"This contribution to step {wanted.step!r} is {of} of work, and those that are there are {others}: "
                "every worker's program must make its steps alike."
            )
        if aggregate.participants != tuple(participants):
            raise InvalidArgumentError(
                f"A contribution to step {wanted.step!r} has parts on PS tasks {list(participants)}, and those that "
                f"are there on {list(aggregate.participants)}: all workers must push gradients of the same Variables."
            )

    def is_late(self, wanted: Increment, client: str, base: int, present: int) -> bool:
        """Whether a contribution does not count.

        Args:
            wanted: By which it is one, or asks to close.
            client: Whose it is.
            base: From which value of the step it was computed.
            present: The step's value.
        """
        if base != present:
            return True
        aggregate = self.open(wanted.step, base)
        if wanted.closes:
            return aggregate is None or aggregate.of_units
        if wanted.unit:
            return aggregate is not None and wanted.unit in aggregate.units
        return aggregate is not None and aggregate.given.get(client, 0) >= aggregate.most_of_client

    def is_last(self, wanted: Increment, base: int) -> bool:
        """Whether the next contribution completes the aggregate."""
        aggregate = self.open(wanted.step, base)
        return (aggregate.count if aggregate is not None else 0) + 1 >= wanted.contributions

    def count(self, wanted: Increment, client: str, base: int, participants: Sequence[int]) -> int:
        """Count a contribution that is accepted; gives how many there are with it.

        The first one for a value of the step takes the place of what was there for another.
        """
        aggregate = self.open(wanted.step, base)
        if aggregate is None:
            aggregate = self._open[wanted.step] = OpenAggregate(
                base, wanted.contributions, tuple(participants), max(wanted.most_of_client, 1)
            )
        if wanted.unit:
            aggregate.units.add(wanted.unit)
        aggregate.given[client] = aggregate.given.get(client, 0) + 1
        return aggregate.count

    def close(self, step: str) -> int:
        """Take a step's aggregate out of the book; gives how many contributions it has."""
        return self._open.pop(step).count

    def image(self) -> list[list[Any]]:
        """Give it as JSON has it, for the write-ahead log."""
        return [
            [
                step, item.base, item.wanted, list(item.participants), item.most_of_client, dict(item.given),
                sorted(item.units),
            ]
            for step, item in self._open.items()
        ]  # fmt: skip

    @classmethod
    def of_image(cls, image: Sequence[Sequence[Any]]) -> Aggregates:
        """Make the book that an image was taken of."""
        book = cls()
        for step, base, wanted, participants, most, counts, units in image:
            book._open[str(step)] = OpenAggregate(
                int(base),
                int(wanted),
                tuple(int(shard) for shard in participants),
                int(most),
                {str(client): int(count) for client, count in counts.items()},
                {int(unit) for unit in units},
            )
        return book

"""Plans: in which order a run evaluates its nodes, reads Variables and pushes mutations. Pure.

A plan is made once for a set of fetched and fed nodes, and used for every run of them. It is a list of
rounds. Each round reads Variables in one cut, evaluates nodes, and ends with one push (the last may have
none). What a node computes from values alone is evaluated as early as they are there; what reads a
Variable or has an effect is evaluated in the first round after all mutations that it must follow. A
mutation joins the push of one that it must follow when nothing can tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import Mutation, OptimizerSpec
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind

if TYPE_CHECKING:
    from globalstep.tf1.execution.run import PushForm, SteadyRun


#: Content of a slot whose value is not there yet.
EMPTY: Any = object()


class Step(NamedTuple):
    """The evaluation of one node: from the values in slots `inputs` to the one in slot `out`.

    What takes neighbouring slots out of one tuple is one step too, and so is what gives a node's value with what it
    saves for the gradient, and what jax compiles: its `out` is a slice of slots, its node one of them.
    """

    #: None where the executor does what the node says; see `evaluate`.
    fn: Any
    #: The only input; None where there are several or none.
    one: int | None
    #: Takes the values of `inputs`, where there is no only one, out of the slots.
    given: Callable[[Sequence[Any]], tuple[Any, ...]]
    out: Any
    node: Node
    inputs: tuple[int, ...]
    #: Slots that nothing uses after it, so that their memory serves what comes next.
    last_uses: tuple[int, ...] = ()


def slots_of(out: Any) -> Sequence[int]:
    """Give the slots that a step's `out` stands for."""
    return range(out.start, out.stop) if isinstance(out, slice) else (out,)


class RowRead(NamedTuple):
    """A gather that reads rows of a Variable: their ids are in slot `ids`."""

    variable: Variable
    ids: int
    out: int


@dataclass(slots=True)
class Round:
    """The part of a run between two pushes.

    Attributes:
        early: Steps that give the ids of `row_reads`; they need no Variable.
        reads: Variables read whole; their slots lie side by side.
        first_slot: The first of these.
        local_reads: The same for Variables that live in the session.
        row_reads: Rows that are read in the same cut.
        late: The other steps, in order.
        mutations: What the push at the end carries.
    """

    early: tuple[Step, ...] = ()
    reads: tuple[Variable, ...] = ()
    first_slot: int = 0
    local_reads: tuple[tuple[Variable, int], ...] = ()
    row_reads: tuple[RowRead, ...] = ()
    late: tuple[Step, ...] = ()
    mutations: tuple[Mutation, ...] = ()


@dataclass(slots=True, eq=False)
class Plan:
    """The plan of a run.

    Attributes:
        rounds: In order; at least one.
        slots: Slot of each node's value, Variables apart.
        constants: The slots' content at the start: constants, EMPTY elsewhere.
        read_slots: For each round, the slot of each Variable read whole.
        round_of: The round in which a node that reads a Variable reads it.
        fetches: Slot of each fetched node; None for an operation.
        wanted: Mutations whose value is wanted.
        pushes: Whether a run changes anything.
        steps: Steps that the run's pushes move on; the first round reads them too, for staleness.
    """

    rounds: list[Round]
    slots: dict[Node, int]
    constants: list[Any]
    read_slots: list[dict[Variable, int]]
    round_of: dict[Node, int]
    fetches: tuple[int | None, ...]
    wanted: frozenset[Mutation]
    pushes: bool = False
    steps: tuple[Variable, ...] = ()
    worker_hypers: dict[OptimizerSpec, dict[str, Any]] = field(default_factory=dict)

    #: For each round whose push was sent: what its pushes have in common.
    forms: dict[int, PushForm] = field(default_factory=dict)
    #: What makes the runs after the first, where they are all alike.
    steady: SteadyRun | None = None

    @property
    def overlaps(self) -> bool:
        """Whether its push may be on its way while the next run begins: nothing in this run comes after it."""
        (*others, last) = self.rounds
        return (
            not others
            and bool(last.mutations)
            and not self.wanted
            and all(
                part.kind is OpKind.APPLY and not part.variable.is_local
                for mutation in last.mutations
                for part in mutation.parts
            )
        )

    def slot_for(self, source: Node, consumer: Node) -> int:
        """Give the slot of a node's value as `consumer` is to see it."""
        slot = self.slots.get(source)
        if slot is None:
            slot = self.read_slots[self.round_of[consumer]][source]  # type: ignore[index]
        return slot


def step_of(plan: Plan, node: Node) -> Step:
    """Make the step that evaluates one node by its function."""
    inputs = tuple(plan.slot_for(source, node) for source in node.inputs)
    getter: Any = itemgetter(*inputs) if len(inputs) > 1 else taking_nothing
    one = inputs[0] if len(inputs) == 1 and node.fn is not None else None
    return Step(node.fn, one, getter, plan.slots[node], node, inputs)


def taking_nothing(values: Sequence[Any]) -> tuple[Any, ...]:
    """Give what a step takes out of the slots that takes nothing."""
    return ()

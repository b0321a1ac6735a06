"""Mutations: the nodes that change Variables, and the optimizers that they apply.

A mutation says what changes, in the graph's terms; `tf1/execution/executor.py` evaluates its operands and turns
the mutations of a run into one `declarations.Push`.

Layer: tf1. Imports nothing above the graph; Variables are known to it as a type only, because
Variables make mutations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from globalstep.tf1.graph.graph import Node
from globalstep.wire.declarations import OpKind, OptimizerDecl
from globalstep.wire.draws import Draw
from globalstep.wire.expressions import Expr, constant

if TYPE_CHECKING:
    from globalstep.tf1.variables.variables import Variable


#: A hyper-parameter: a number, a node (schedule, Variable), or a function called once a run.
Hyper = float | Node | Callable[[], Any]


@dataclass(frozen=True, eq=False)
class OptimizerSpec:
    """An update rule bound to Variables, on the graph's side.

    The maps may still grow while the graph is built (an optimizer may be applied to more Variables).

    Attributes:
        name: Unique in the graph, e.g. "Adam" or "Adam_1".
        kind: The rule, as in `globalstep.rules`.
        hypers: Parameter name to number, node or callable.
        slots: Variable to its slot Variables, in the rule's order.
        scalars: The rule's scalar state (Adam's beta powers), in the rule's order.
        use_locking: TensorFlow's flag.
        is_local: Whether its Variables live in each session (LOCAL_VARIABLES): the worker applies it by itself.
    """

    name: str
    kind: str
    hypers: Mapping[str, Hyper] = field(default_factory=dict)
    slots: Mapping[Variable, tuple[Variable, ...]] = field(default_factory=dict)
    scalars: tuple[Variable, ...] = ()
    use_locking: bool = False
    is_local: bool = False

    def declaration(self) -> OptimizerDecl:
        """Give the rule as it crosses the wire: every hyper-parameter that can be lowered, as an expression.

        Returns:
            The declaration. Parameters named by `worker_hypers` are left out: each push sends their
            values.
        """
        return OptimizerDecl(
            name=self.name,
            kind=self.kind,
            hypers={name: expr for name, value in self.hypers.items() if (expr := _lowered(value)) is not None},
            slots={variable.op_name: tuple(slot.op_name for slot in slots) for variable, slots in self.slots.items()},
            scalars=tuple(scalar.op_name for scalar in self.scalars),
            use_locking=self.use_locking,
        )

    def worker_hypers(self) -> dict[str, Node | Callable[[], Any]]:
        """Give the parameters that the worker evaluates: callables, and nodes that cannot be lowered, or all nodes."""
        return {
            name: value
            for name, value in self.hypers.items()
            if (isinstance(value, Node) or callable(value)) and (self.is_local or _lowered(value) is None)
        }


def _lowered(value: Hyper) -> Expr | None:
    if isinstance(value, Node):
        # Lowering knows schedules and Variables, whose modules import this one.
        from globalstep.tf1.optimizers.lowering import lower

        return lower(value)
    return None if callable(value) else constant(float(value))


@dataclass(frozen=True, eq=False)
class MutationPart:
    """One change of one Variable.

    Attributes:
        kind: Apply a gradient, or assign, add or subtract an operand.
        variable: What is changed.
        operand: Gradient or operand; None with `fill` or `source`.
        indices: int node [n] of rows, for a sparse change whose operand is [n, *shape[1:]].
        fill: A number for every element, or what the PS draws them by.
        source: A Variable whose present value, on the PS, is the operand.
        optimizer: The rule, for an apply.
        declare: Whether the Variable is declared to the PS first: this is its initializer.
        unique: Whether no row is named twice.
    """

    kind: OpKind
    variable: Variable
    operand: Node | None = None
    indices: Node | None = None
    fill: float | Draw | None = None
    source: Variable | None = None
    optimizer: OptimizerSpec | None = None
    declare: bool = False
    unique: bool = False

    def __post_init__(self) -> None:
        count = sum(item is not None for item in (self.operand, self.fill, self.source))
        if count != 1:
            raise ValueError(
                f"A change of {self.variable.op_name!r} needs exactly one of operand, fill and source; got {count}."
            )
        if (self.kind is OpKind.APPLY) != (self.optimizer is not None):
            raise ValueError(f"A change of {self.variable.op_name!r} names an optimizer iff it applies one.")

    @property
    def moves_step(self) -> bool:
        """Whether it adds to a step, or subtracts from one."""
        return self.kind in (OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB) and self.variable.counts_as_step

    def move(self) -> Move:
        """Give what it adds to its step."""
        sign = -1 if self.kind is OpKind.ASSIGN_SUB else 1
        if self.operand is not None and self.operand.op_type == "Const":
            return Move(self.variable, sign * int(self.operand.attrs["value"]))
        return Move(self.variable, sign, self.operand)


class Move(NamedTuple):
    """A step that moves on, and by how much: `by`, or that many times what a run has as the value of a node."""

    step: Variable
    by: int
    times: Node | None = None


class Mutation(Node):
    """A node that changes Variables when it runs, all of its parts in one push.

    Args:
        parts: The changes, in order.
        increments: Steps that move on, and by how much.
        uses: Optimizers whose scalar state moves on (each once a push); those of the parts are among
            them.
        after_increment: Whether the hyper-parameters of its parts see the steps after the push's
            increments (moving averages behind a train op), or before them.
        op_type: Kind as in TensorFlow, e.g. "AssignAdd".
        name: Wanted name; default `op_type`.
        control_inputs: Nodes to run first.
        value_of: The Variable whose new value is this node's value; None for a mutation without one.

    Attributes:
        value_of: As given. The node's dtype and shape are that Variable's.
    """

    def __init__(
        self,
        parts: Sequence[MutationPart],
        *,
        increments: Sequence[tuple[Variable, int]] = (),
        uses: Sequence[OptimizerSpec] = (),
        after_increment: bool = False,
        op_type: str = "Mutation",
        name: str | None = None,
        control_inputs: Sequence[Node] = (),
        value_of: Variable | None = None,
    ) -> None:
        self.parts = tuple(parts)
        self.increments = tuple(increments)
        self.uses = tuple(uses)
        self.after_increment = after_increment
        self.value_of = value_of
        #: Booleans, each with the value that it must have for the mutation to happen: it is in a branch of `gs.cond`.
        self.guards: tuple[tuple[Node, bool], ...] = ()
        inputs = [node for part in self.parts for node in (part.operand, part.indices) if node is not None]
        touched = [part.variable for part in self.parts] + [step for step, _ in self.increments]
        for step, _ in self.increments:
            step.is_step = True
        super().__init__(
            op_type,
            tuple(dict.fromkeys(inputs)),
            name=name,
            dtype=None if value_of is None else value_of.dtype,
            shape=None if value_of is None else value_of.shape,
            operation=value_of is None,
            stateful=True,
            control_inputs=control_inputs,
            graph=touched[0].graph if touched else None,
        )

    @property
    def changes(self) -> tuple[MutationPart, ...]:
        """Its parts but for those that move steps on."""
        return tuple(part for part in self.parts if not part.moves_step)

    @property
    def moves(self) -> tuple[Move, ...]:
        """The steps that it moves on: its increments, and what it adds to steps."""
        moves = [Move(step, by) for step, by in self.increments]
        return (*moves, *(part.move() for part in self.parts if part.moves_step))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The Variables that it changes, steps included, each once."""
        changed = [part.variable for part in self.parts] + [step for step, _ in self.increments]
        return tuple(dict.fromkeys(changed))


def assignment(
    kind: OpKind, variable: Variable, operand: Node, indices: Node | None = None, *, name: str | None = None
) -> Mutation:
    """Make the mutation that assigns to, adds to or subtracts from a Variable and gives its new value.

    Args:
        kind: ASSIGN, ASSIGN_ADD or ASSIGN_SUB.
        variable: What is changed.
        operand: The operand, of the Variable's dtype; [n, *shape[1:]] with `indices`.
        indices: int node [n] of rows, for a sparse change.
        name: Wanted name.

    Returns:
        A node whose value is the Variable's value right after the push.
    """
    dense, sparse = _OP_TYPES[kind]
    return Mutation(
        [MutationPart(kind, variable, operand, indices)],
        op_type=dense if indices is None else sparse,
        name=name,
        value_of=variable,
    )


_OP_TYPES = {
    OpKind.ASSIGN: ("Assign", "ScatterUpdate"),
    OpKind.ASSIGN_ADD: ("AssignAdd", "ScatterAdd"),
    OpKind.ASSIGN_SUB: ("AssignSub", "ScatterSub"),
}

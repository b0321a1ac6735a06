"""Exponential moving averages of Variables and of values, kept and updated on the parameter servers.

The shadow of a Variable follows it there: `ema.apply` sends a name, not an array, and behind a train op
(`control_dependencies`) it is part of the same push.

Layer: tf1. Source: TensorFlow 1.15 `python/training/moving_averages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection, as_node, closure_of, get_default_graph
from globalstep.tf1.graph.mutations import Hyper, Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.math_ops import add, cast, divide, minimum, multiply
from globalstep.tf1.ops.math_ops import truediv as _true_divide
from globalstep.tf1.optimizers.optimizer import check_hyper, unique_optimizer_name
from globalstep.tf1.optimizers.slots import slot_variable
from globalstep.tf1.variables.variable_collections import (
    global_variables,
    moving_average_variables,
    trainable_variables,
)
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind

__all__ = ["ExponentialMovingAverage", "assign_moving_average", "weighted_moving_average"]


class ExponentialMovingAverage:
    """Keeps `shadow -= (1 - decay) * (shadow - value)` for Variables or values.

    Args:
        decay: How much of the average is kept at each update: a number or a scalar node, near 1.
        num_updates: Count of updates, as a number or a node such as the global step: the decay used is
            then `min(decay, (1 + num_updates) / (10 + num_updates))`, so that young averages move fast.
        zero_debias: Whether averages of values that are not Variables, which start at 0, are divided by
            the weight that they have gathered.
        name: Last part of the shadows' names.

    Raises:
        ValueError: If `decay` is NaN or negative.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     w = gs.Variable(0.0, name="w")
    ...     ema = gs.train.ExponentialMovingAverage(0.5)
    ...     with gs.control_dependencies([gs.assign_add(w, 8.0)]):
    ...         follow = ema.apply([w])
    ...     sess.run(gs.global_variables_initializer())
    ...     sess.run(follow)
    ...     print(ema.average_name(w), sess.run(ema.average(w)))
    w/ExponentialMovingAverage 4.0
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        self._decay = _checked_decay(name, decay)
        self._num_updates = num_updates
        self._zero_debias = zero_debias
        self._name = name
        self._averages: dict[Node, Variable] = {}

    @property
    def name(self) -> str:
        """The name given to the constructor."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Mutation:
        """Make shadows, and the op that updates them from the present values.

        Make it under `control_dependencies` of the train op: then it is part of the same push, with the
        values and the step as they are after it.

        Args:
            var_list: Variables or other nodes; default the trainable Variables.

        Returns:
            An operation. The shadow of a Variable starts at its initial value and lives on its PS; that
            of another node starts at 0.

        Raises:
            TypeError: If one is not floating.
            ValueError: If one has a moving average of this object already.
        """
        followed: list[Node] = list(trainable_variables() if var_list is None else map(as_node, var_list))
        for node in followed:
            if not node.dtype.is_floating:
                raise TypeError(f"The variables must be half, float, or double: {node.name}")
            if node in self._averages or followed.count(node) > 1:
                raise ValueError(f"Moving average already computed for: {node.name}")
        graph = get_default_graph()
        slots: dict[Variable, tuple[Variable, ...]] = {}
        with graph.name_scope(self._name) as scope:
            decay = self._decay_now()
            spec = _spec(self._name, "moving_average", decay, slots)
            parts = []
            for node in followed:
                shadow = self._shadow(node)
                self._averages[node] = shadow
                if isinstance(node, Variable):
                    slots[shadow] = ()
                    parts.append(MutationPart(OpKind.APPLY, shadow, source=node, optimizer=spec))
                elif self._zero_debias:
                    debias = _zero_debias_spec(self._name, shadow, decay)
                    parts.append(MutationPart(OpKind.APPLY, shadow, node, optimizer=debias))
                else:
                    slots[shadow] = ()
                    parts.append(MutationPart(OpKind.APPLY, shadow, node, optimizer=spec))
            return _follow(parts, name=scope)

    def average(self, var: Any) -> Variable | None:
        """Give the shadow of a Variable or node; None where it has none."""
        return self._averages.get(as_node(var))

    def average_name(self, var: Any) -> str:
        """Give the name that the shadow of `var` has, or will have: what a Saver restores it from."""
        node = as_node(var)
        if node in self._averages:
            return self._averages[node].op_name
        return get_default_graph().unique_name(f"{node.op_name}/{self._name}", mark_as_used=False)

    def variables_to_restore(self, moving_avg_variables: Sequence[Variable] | None = None) -> dict[str, Variable]:
        """Give what a Saver restores so that Variables get the values of their shadows.

        Args:
            moving_avg_variables: Variables to restore from their shadows; default the trainable ones and
                those that have a moving average.

        Returns:
            Name in the checkpoint to Variable: the shadow's name for those, its own for all others.
        """
        if moving_avg_variables is None:
            averaged = [*trainable_variables(), *moving_average_variables()]
        else:
            averaged = list(moving_avg_variables)
        names = {self.average_name(variable): variable for variable in dict.fromkeys(averaged)}
        for variable in global_variables():
            if variable not in averaged:
                names.setdefault(variable.op_name, variable)
        return names

    def _decay_now(self) -> Hyper:
        if self._num_updates is None:
            return self._decay
        count = cast(as_node(self._num_updates), "float32")
        return minimum(as_node(self._decay, "float32"), divide(add(count, 1.0), add(count, 10.0)))

    def _shadow(self, node: Node) -> Variable:
        if not isinstance(node, Variable):
            with node.graph.name_scope(None), node.graph.control_dependencies(None):
                shape = [int(size) for size in node.shape]
                return Variable(zeros(shape, node.dtype), trainable=False, name=f"{node.op_name}/{self._name}")
        add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, node)
        with node.graph.control_dependencies(None):
            return slot_variable(node, self._name, initial=node.initialized_value())


def assign_moving_average(
    variable: Variable, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Mutation:
    """Make the op that moves a Variable towards `value`: `variable -= (1 - decay) * (variable - value)`.

    Args:
        variable: The average.
        value: Node or array of its dtype and shape.
        decay: Number or scalar node.
        zero_debias: Whether to take the average as one that started at 0 and divide it by the weight it
            has gathered; state "<variable>/biased" and "<variable>/local_step" is kept for that.
        name: Name of the op; default "AssignMovingAvg".

    Returns:
        A node whose value is the Variable's new value.

    Raises:
        ValueError: If `decay` is NaN or negative.
    """
    rate = _checked_decay(variable.op_name, decay)
    operand = as_node(value, variable.dtype)
    with variable.graph.as_default():
        label = name or "AssignMovingAvg"
        if zero_debias:
            spec = _zero_debias_spec(label, variable, rate)
        else:
            spec = _spec(label, "moving_average", rate, {variable: ()})
        return _follow([MutationPart(OpKind.APPLY, variable, operand, optimizer=spec)], name=label, value_of=variable)


def weighted_moving_average(
    value: Any,
    decay: Any,
    weight: Any,
    truediv: bool = True,
    collections: Sequence[str] | None = None,
    name: str | None = None,
) -> Node:
    """Make the node of `moving_average(value * weight) / moving_average(weight)`, which also updates both.

    Args:
        value: Node.
        decay: Number or scalar node.
        weight: Node that can be multiplied with `value`.
        truediv: Whether the division is a true one also for integers.
        collections: Collections of the two Variables; default GLOBAL_VARIABLES.
        name: Name scope; default "WeightedMovingAvg".

    Returns:
        A node of the shape of `value * weight`.
    """
    value, weight = as_node(value), as_node(weight)
    with value.graph.as_default(), value.graph.name_scope(name or "WeightedMovingAvg") as scope:
        product = multiply(value, weight)
        averages = []
        for node, label in ((product, "value_x_weight"), (weight, "weight")):
            with value.graph.control_dependencies(None):
                shape = [int(size) for size in node.shape]
                average = Variable(zeros(shape, node.dtype), trainable=False, collections=collections, name=label)
            averages.append(assign_moving_average(average, node, decay, zero_debias=False))
        quotient = _true_divide if truediv else divide
        return quotient(averages[0], averages[1], name=scope)


def _checked_decay(owner: str, decay: Any) -> Hyper:
    hyper = check_hyper(owner, "decay", decay)
    if callable(hyper) and not isinstance(hyper, Node):
        raise TypeError(f"decay of {owner!r} must be a number or a scalar node; got {decay!r}.")
    return hyper


def _spec(
    name: str, kind: str, decay: Hyper, slots: Mapping[Variable, tuple[Variable, ...]], *scalars: Variable
) -> OptimizerSpec:
    unique = unique_optimizer_name(get_default_graph(), name)
    return OptimizerSpec(name=unique, kind=kind, hypers={"decay": decay}, slots=slots, scalars=scalars)


def _zero_debias_spec(name: str, average: Variable, decay: Hyper) -> OptimizerSpec:
    """The rule for one average, whose counter is its own."""
    graph = average.graph
    biased = slot_variable(average, "biased", slot="biased")
    with graph.name_scope(None), graph.device(None):
        local_step = Variable(
            0.0, trainable=False, name=f"{average.op_name}/local_step", dtype="float32", slot="local_step"
        )
    return _spec(name, "zero_debias_moving_average", decay, {average: (biased,)}, local_step)


def _follow(parts: Sequence[MutationPart], *, name: str, value_of: Variable | None = None) -> Mutation:
    specs = tuple(dict.fromkeys(part.optimizer for part in parts if part.optimizer is not None))
    return Mutation(
        parts,
        uses=specs,
        after_increment=_moves_a_step(get_default_graph().current_control_inputs()),
        op_type="NoOp" if value_of is None else "AssignSub",
        name=name,
        value_of=value_of,
    )


def _moves_a_step(nodes: Sequence[Node]) -> bool:
    """Whether a control input is, or depends on, a push that moves a step on."""
    needed = closure_of(nodes, lambda node: (*node.inputs, *node.control_inputs))
    return any(isinstance(node, Mutation) and node.moves for node in needed)

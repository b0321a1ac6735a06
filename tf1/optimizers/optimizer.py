"""The base of all optimizers: from a loss to one train op, whose updates the parameter servers apply.

An optimizer holds no arrays and no formula. It names an update rule (`globalstep.rules`), makes the
slot Variables, and builds the `Mutation` whose gradients are pushed. Its hyper-parameters cross the wire as
closed expressions where they are such, so that a decayed rate follows the authoritative step.

Layer: tf1. Source of names, defaults and texts: TensorFlow 1.15 `python/training/optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from globalstep.optimizers.optimizer_rule import OptimizerRule, RuleHyper, Slot, StepSource
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, as_node, get_default_graph
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.mutations import Hyper, Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.ops.constant_ops import filled
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.optimizers.minimized import remember_loss
from globalstep.tf1.optimizers.optimizer_arguments import (
    Gradient,
    as_gradient,
    check_hyper,
    is_floating_scalar,
    require_fit,
    require_floating,
    require_variable,
    unique_optimizer_name,
    variables_in,
)
from globalstep.tf1.optimizers.slots import scalar_variable, slot_variable
from globalstep.tf1.variables.assignments import assign
from globalstep.tf1.variables.training_util import assert_global_step, create_global_step
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind
from globalstep.wire.expressions import Expr, evaluate

__all__ = ["Optimizer", "Slot", "check_hyper", "unique_optimizer_name"]


@dataclass(slots=True)
class _InGraph:
    """The slots and scalars that an optimizer has made in one graph."""

    #: Its rule, bound to Variables on the PS, and to those in LOCAL_VARIABLES, each from the first gradients on.
    specs: dict[bool, OptimizerSpec] = field(default_factory=dict)
    #: The maps in `specs`, which grow with the Variables.
    slots: dict[bool, dict[Variable, tuple[Variable, ...]]] = field(default_factory=lambda: {False: {}, True: {}})
    #: How the gradients that are applied next were asked for.
    gate: int = 1
    #: The loss whose gradients were asked for last.
    loss: Node | None = None


class Optimizer:
    """Base class of optimizers; instantiate a subclass.

    A subclass names its rule in `kind` and gives `hypers`, `slots` and `scalars`. One of your own needs
    its rule installed on every PS (entry point group "globalstep.rules"); no code crosses the wire.

    An update never stops half way: all gradients of a push are applied together, in the one order of
    pushes that the parameter servers agree on.

    Args:
        use_locking: Accepted as in TensorFlow. Every push is applied under its PS's lock, so updates
            of one Variable never overlap, whatever this says.
        name: Name of the train op and of the slot Variables.
        **hypers: What `hypers` gives, in the rule's order; each is checked.

    Attributes:
        kind: The update rule's name on the wire.
        GATE_NONE: Push each Variable's gradient by itself, as soon as it is there. Others may see some
            Variables updated and others not; a last push moves the step on.
        GATE_OP: As GATE_GRAPH: a worker computes all gradients in one go.
        GATE_GRAPH: Push all gradients in one atomic push, with the step.

    Raises:
        ValueError: If `name` is empty, or a hyper-parameter is NaN.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    kind: ClassVar[str] = ""

    def __init__(self, use_locking: bool, name: str, **hypers: Hyper) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking = use_locking
        self._name = name
        self._hypers = {hyper: check_hyper(name, hyper, value) for hyper, value in hypers.items()}
        self._graphs: dict[Graph, _InGraph] = {}

    def __getattr__(self, name: str) -> Hyper:
        # Programs and subclasses read `_learning_rate`, `_momentum` and such, as TensorFlow's optimizers have them.
        hypers: Mapping[str, Hyper] = self.__dict__.get("_hypers", {})
        if name.startswith("_") and name[1:] in hypers:
            return hypers[name[1:]]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def hypers(self) -> Mapping[str, Hyper]:
        """Give the rule's hyper-parameters: numbers, nodes, or functions of no arguments."""
        return self._hypers

    def slots(self) -> Sequence[Slot]:
        """Give the slots for each Variable, in the rule's order."""
        return ()

    def scalars(self) -> Mapping[str, Hyper]:
        """Give the rule's scalar state, name to initial value (float32), in the rule's order."""
        return {}

    def rule(self) -> str:
        """Give the kind of the rule; a subclass whose arguments choose between rules overrides it."""
        return self.kind

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do, for training without a graph: hyper-parameters as expressions.

        Args:
            step: The run's step; functions that make nodes find it by `get_global_step`.

        Raises:
            ValueError: If a hyper-parameter, or what the rule's state begins with, depends on more than steps.
        """
        with Graph().as_default():
            create_global_step()
            hypers = {name: self._described(name, _graph_time_value(value)) for name, value in self.hypers().items()}
            scalars = {name: self._described(name, _graph_time_value(value)) for name, value in self.scalars().items()}
        initial = {
            name: evaluate(value, {}) if isinstance(value, Expr) else float(value() if callable(value) else value)
            for name, value in scalars.items()
        }
        return OptimizerRule(self._name, self.rule(), hypers, tuple(self.slots()), initial)

    def _described(self, name: str, value: Hyper) -> RuleHyper:
        if not isinstance(value, Node):
            return value
        expr = lower(value)
        if expr is None:
            raise ValueError(
                f"{name} of {self._name!r} is {value.name!r}, which depends on more than steps: without a graph it "
                "must be a number, a schedule, or a function of no arguments."
            )
        return expr

    def get_name(self) -> str:
        """The name given to the constructor."""
        return self._name

    def minimize(
        self,
        loss: Any,
        global_step: Variable | None = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Node:
        """Make the op that takes one training step: `compute_gradients`, then `apply_gradients`.

        Args:
            loss: Node of the value to minimize.
            global_step: Step to move on by one once the Variables are updated; None for none. Old programs
                have one of a floating dtype: it is counted as any other Variable, in the same push, but is no
                step by which training can stop, resume or be traced.
            var_list: Variables to train; default those in TRAINABLE_VARIABLES.
            gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH; see the class.
            aggregation_method: A constant of `AggregationMethod`; see there.
            colocate_gradients_with_ops: Accepted; a worker computes all gradients where it runs.
            name: Name of the op; default the optimizer's.
            grad_loss: Gradient of `loss` itself, of its shape; default ones.

        Returns:
            The train op.

        Raises:
            ValueError: If no Variable has a gradient, or an argument is invalid.

        >>> import globalstep as gs
        >>> with gs.Graph().as_default(), gs.Session() as sess:
        ...     w = gs.Variable([1.0, 2.0], name="w")
        ...     train_op = gs.train.GradientDescentOptimizer(0.5).minimize(gs.reduce_sum(w * w))
        ...     sess.run(gs.global_variables_initializer())
        ...     sess.run(train_op)
        ...     print(sess.run(w))
        [0. 0.]
        """
        grads_and_vars = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        if all(grad is None for grad, _ in grads_and_vars):
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not support "
                f"gradients, between variables {[str(v) for _, v in grads_and_vars]} and loss {loss}."
            )
        return self.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Gradient | None, Variable]]:
        """Give the gradients of `loss`, to be changed (clipped, scaled) before they are applied.

        Args:
            loss: As for `minimize`.
            var_list: As for `minimize`.
            gate_gradients: As for `minimize`; `apply_gradients` follows it.
            aggregation_method: As for `minimize`.
            colocate_gradients_with_ops: As for `minimize`.
            grad_loss: As for `minimize`.

        Returns:
            (gradient, Variable) for each Variable: a node, IndexedSlices where the Variable is only
            looked up by rows, or None where the loss does not depend on it.

        Raises:
            TypeError: If `var_list` holds something other than Variables.
            ValueError: If there are no Variables, a dtype is not floating, or an argument is invalid.
        """
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP, "
                f"Optimizer.GATE_GRAPH.  Not {gate_gradients}"
            )
        target = as_node(loss() if callable(loss) else loss)
        require_floating([target])
        if grad_loss is not None:
            grad_loss = as_node(grad_loss, target.dtype)
        trainable = target.graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
        variables = trainable if var_list is None else list(variables_in(var_list))
        if not variables:
            raise ValueError("No variables to optimize.")
        grads = gradients(
            target,
            variables,
            grad_ys=grad_loss,
            gate_gradients=gate_gradients == self.GATE_OP,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        pairs = list(zip(grads, variables, strict=True))
        require_floating([variable for grad, variable in pairs if grad is not None])
        made = self._in_graph(target.graph)
        made.gate, made.loss = gate_gradients, target
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Node:
        """Make the op that pushes gradients and, in the same push, moves the step on.

        With gradients from `compute_gradients(..., gate_gradients=GATE_NONE)` each Variable's gradient is
        a push of its own, and the step moves with a last one.

        Args:
            grads_and_vars: (gradient, Variable) pairs, as from `compute_gradients`: nodes, arrays,
                IndexedSlices, or None for a Variable to leave alone.
            global_step: As for `minimize`.
            name: As for `minimize`.

        Returns:
            The train op.

        Raises:
            TypeError: If a gradient cannot be one, or its dtype is not its Variable's.
            ValueError: If no Variable has a gradient, or a gradient's shape is not its Variable's.
        """
        pairs = [(as_gradient(grad), variable) for grad, variable in grads_and_vars]
        if not pairs:
            raise ValueError("No variables provided.")
        for _, variable in pairs:
            require_variable(variable)
        applied = [(grad, variable) for grad, variable in pairs if grad is not None]
        if not applied:
            raise ValueError(f"No gradients provided for any variable: {[str(v) for _, v in pairs]}.")
        for grad, variable in applied:
            require_fit(grad, variable)
        if global_step is not None and not is_floating_scalar(global_step):
            assert_global_step(global_step)
        graph = applied[0][1].graph
        with graph.as_default():
            specs = [_spec(self, self._in_graph(graph), variables, local) for local, variables in _by_place(applied)]
            with graph.name_scope(name or self._name) as scope:
                train_op = self._train_op(specs, applied, global_step, scope)
        remember_loss(train_op, self._in_graph(graph).loss)
        if train_op not in graph.get_collection(GraphKeys.TRAIN_OP):
            graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Give the slot `name` of a Variable; None where there is none.

        Args:
            var: A Variable that was passed to `minimize` or `apply_gradients`.
            name: One of `get_slot_names()`.
        """
        made = self._graphs.get(var.graph)
        if made is None or var not in made.slots[var.is_local]:
            return None
        return dict(zip((slot.name for slot in self.slots()), made.slots[var.is_local][var], strict=True)).get(name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots that were made, sorted; none before gradients are applied."""
        has_slots = any(slots for made in self._graphs.values() for slots in made.slots.values())
        return sorted(slot.name for slot in self.slots()) if has_slots else []

    def variables(self) -> list[Variable]:
        """The Variables of the optimizer's own state in the default graph, sorted by name."""
        made = self._graphs.get(get_default_graph(), _InGraph())
        slots = [slot for some in made.slots.values() for per_variable in some.values() for slot in per_variable]
        scalars = [scalar for spec in made.specs.values() for scalar in spec.scalars]
        return sorted([*scalars, *slots], key=lambda variable: variable.name)

    def _in_graph(self, graph: Graph) -> _InGraph:
        """Return what this optimizer has made in a graph so far; slots and scalars come with the first gradients."""
        return self._graphs.setdefault(graph, _InGraph())

    def _train_op(
        self,
        specs: Sequence[OptimizerSpec],
        applied: Sequence[tuple[Gradient, Variable]],
        global_step: Variable | None,
        scope: str,
    ) -> Node:
        graph = applied[0][1].graph
        by_place = {spec.is_local: spec for spec in specs}
        parts = [_part(grad, variable, by_place[variable.is_local]) for grad, variable in applied]
        increments, counted = [], []
        if global_step is not None and global_step.dtype.is_integer:
            increments.append((global_step, 1))
        elif global_step is not None:
            counted.append(MutationPart(OpKind.ASSIGN_ADD, global_step, fill=1.0))
        op_type = f"Apply{''.join(word.capitalize() for word in specs[0].kind.split('_'))}"
        constrained = [(v, v.constraint) for _, v in applied if v.constraint is not None]
        ungated = self._in_graph(graph).gate == self.GATE_NONE
        if not ungated and not constrained:
            return Mutation(
                [*parts, *counted],
                increments=increments,
                uses=specs,
                op_type=op_type if len(parts) == 1 and not increments else "NoOp",
                name=scope,
            )
        groups = [[part] for part in parts] if ungated else [parts]
        updates: list[Node] = []
        for group in groups:
            name = f"update_{group[0].variable.op_name}/{op_type}" if ungated else "update"
            update = Mutation(group, op_type=op_type, name=name)
            update.attrs["eager"] = ungated
            updates.append(update)
        with graph.control_dependencies(updates):
            updates += [assign(variable, constraint(variable)) for variable, constraint in constrained]
        if increments or counted or specs[0].scalars:
            return Mutation(
                counted, increments=increments, uses=specs, op_type="NoOp", name=scope, control_inputs=updates
            )
        return Node("NoOp", name=scope, operation=True, control_inputs=updates)


def _spec(optimizer: Optimizer, made: _InGraph, variables: Sequence[Variable], local: bool) -> OptimizerSpec:
    """Give the rule bound to the Variables of a graph, with slots for those that have none yet."""
    graph, name = variables[0].graph, optimizer.get_name()
    slots = made.slots[local]
    if local not in made.specs:
        named = f"{_scope_of_state(optimizer, graph)}{name}"
        unique = unique_optimizer_name(graph, f"{named}_local" if local else named)
        made.specs[local] = OptimizerSpec(
            name=unique,
            kind=optimizer.rule(),
            hypers={hyper: _graph_time_value(value) for hyper, value in optimizer.hypers().items()},
            slots=slots,
            scalars=tuple(
                scalar_variable(graph, scalar, initial, unique, local)
                for scalar, initial in optimizer.scalars().items()
            ),
            use_locking=optimizer._use_locking,
            is_local=local,
        )
    spec = made.specs[local]
    for variable in variables:
        if variable not in slots:
            slots[variable] = tuple(
                slot_variable(
                    variable,
                    slot.variable_name or name,
                    initial=_column(variable, slot.initial, name) if slot.by_rows else slot.initial,
                    optimizer=spec.name,
                    slot=slot.name,
                )
                for slot in optimizer.slots()
            )
    return spec


def _column(variable: Variable, initial: float, name: str) -> Node:
    """Give what a slot of one element a row begins with."""
    shape = [int(size) for size in variable.shape] if variable.shape.is_fully_defined() else []
    if len(shape) < 2 or variable.save_slice_info is not None:
        raise ValueError(
            f"{name} keeps a number for each row: it is for tables, and {variable.op_name!r} has shape {shape}. Give "
            f'that another optimizer: optimizer={{"table*": gs.optim.{name}(...), "*": gs.optim.Adam(1e-3)}}, say.'
        )
    return filled("Fill", [shape[0], 1], initial, variable.dtype, None)


def _scope_of_state(optimizer: Optimizer, graph: Graph) -> str:
    """Give the scope, with a "/", that an optimizer's own numbers are made in; "" where it has none.

    Tasks whose programs make them in scopes of their own have optimizers of their own, and TensorFlow names only the
    numbers: beta1_power of two actors are two Variables.
    """
    scope = graph.get_name_scope() if optimizer.scalars() else ""
    return f"{scope}/" if scope else ""


def _by_place(applied: Sequence[tuple[Gradient, Variable]]) -> Iterable[tuple[bool, list[Variable]]]:
    """Give the Variables on the PS, and those in LOCAL_VARIABLES, each with whether they are the latter, if any are."""
    for local in (False, True):
        variables = [variable for _, variable in applied if variable.is_local is local]
        if variables:
            yield local, variables


def _graph_time_value(value: Hyper) -> Hyper:
    """Call a function that makes a node now, as in TensorFlow; a function that gives a number is called in each run."""
    if isinstance(value, Node) or not callable(value):
        return value
    made = value()
    return as_node(made) if isinstance(made, Node) or hasattr(made, "__node__") else value


def _part(grad: Gradient, variable: Variable, spec: OptimizerSpec) -> MutationPart:
    if not isinstance(grad, IndexedSlices):
        return MutationPart(OpKind.APPLY, variable, grad, optimizer=spec)
    if variable.constraint is not None:
        raise RuntimeError("Cannot use a constraint function on a sparse variable.")
    return MutationPart(OpKind.APPLY, variable, as_node(grad.values), as_node(grad.indices), optimizer=spec)

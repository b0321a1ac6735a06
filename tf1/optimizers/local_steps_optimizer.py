"""LocalStepsOptimizer: a worker takes several steps on its own copies, and pushes how far it came.

The local steps of `gs.fit` (`globalstep.worker.frameworks.local_rounds`), for programs that build a graph.

Layer: tf1. Source: DiLoCo, arXiv 2311.08105.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.torch_optimizers import TorchOptimizer
from globalstep.tf1.execution.graph_rounds import GraphRounds, InnerSteps, KnownSteps, OuterPush, rounds_in
from globalstep.tf1.execution.local_optimizers import own_optimizer_of
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, add_to_collection, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.mutations import Hyper, Mutation
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.optimizers.minimized import remember_loss
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.tf1.optimizers.optimizer_arguments import Gradient, as_gradient, require_fit, require_variable
from globalstep.tf1.optimizers.rule_optimizer import optimizer_of
from globalstep.tf1.variables.training_util import assert_global_step
from globalstep.tf1.variables.variables import Variable
from globalstep.worker.frameworks.training_model import number_of_at_least

__all__ = ["LocalStepsOptimizer"]


class LocalStepsOptimizer(Optimizer):
    """Has each worker take `every` steps on its own copies of the Variables before it pushes the difference.

    A run of the train op takes one step of the inner optimizer on this worker's copies, with the gradients of its
    batch; what else the run computes sees the copies, too. The run that fills a round pushes where the round began
    minus where it ended, which the PS tasks give to the outer optimizer as a gradient, and reads the values that the
    next round begins with. The runs between send and read nothing. A run without the train op sees the values on the
    PS. `global_step` counts rounds.

    Args:
        inner: The optimizer of a worker's own steps, of `gs.train` or `gs.optim`. Its slots stay with the worker, and
            are in no checkpoint. A schedule of `gs.optim` counts the worker's own steps, one of `gs.train` what it is
            computed from: the global step counts rounds.
        outer: The optimizer that the PS tasks apply to differences, of `gs.train` or `gs.optim`.
        every: How many steps make a round.
        replicas: How many workers' differences make one global step, of their mean. None for each one to make a step
            of its own, as it comes.
        name: Name of the train op.

    Raises:
        InvalidArgumentError: If a number is less than 1, or an optimizer is none that can be used so.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     w = gs.Variable([1.0, 2.0], name="w")
    ...     step = gs.train.get_or_create_global_step()
    ...     inner, outer = gs.train.GradientDescentOptimizer(0.25), gs.train.GradientDescentOptimizer(1.0)
    ...     opt = gs.train.LocalStepsOptimizer(inner, outer, every=2)
    ...     train_op = opt.minimize(gs.reduce_sum(w * w), global_step=step)
    ...     sess.run(gs.global_variables_initializer())
    ...     for _ in range(2):
    ...         sess.run(train_op)
    ...         print(sess.run(step), sess.run(w))
    0 [1. 2.]
    1 [0.25 0.5 ]
    """

    def __init__(
        self, inner: Any, outer: Any, every: int, replicas: int | None = None, name: str = "LocalSteps"
    ) -> None:
        super().__init__(False, name)
        number_of_at_least(1, every=every, replicas=replicas)
        for what, value in (("inner", inner), ("outer", outer)):
            _require_plain(what, value)
        self._inner, self._outer = inner, outer
        self._every, self._replicas = every, replicas
        #: The outer optimizer as it is in the graph.
        self._applied: Optimizer | None = None

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Node:
        """Make the op that takes a step on this worker's copies, and pushes the difference where that fills a round.

        Args:
            grads_and_vars: As for any optimizer; they may be clipped.
            global_step: The step, which counts rounds; required.
            name: Name of the op.

        Returns:
            The train op.

        Raises:
            ValueError: Without gradients or a global step, for a Variable with a constraint or of a process's own, or
                if the graph has such an op already.
            TypeError: If the step is no whole number, or a gradient cannot be one.
            InvalidArgumentError: If a hyper-parameter of the outer optimizer is known to a run alone.
        """
        applied = _gradients_of(grads_and_vars)
        if global_step is None:
            raise ValueError("Global step is required: it counts the rounds of local steps.")
        assert_global_step(global_step)
        graph = global_step.graph
        _require_none_yet(graph)
        steps = KnownSteps()
        with graph.as_default(), graph.name_scope(name or self._name) as scope:
            with graph.control_dependencies(None):
                count = placeholder("int64", [], name="own_steps")
                inner = _made(self._inner, count, lambda: steps.own)
                hypers, computed = _split(inner.hypers())
                self._applied = _made(self._outer, global_step, lambda: steps.counted)
                pushed, differences = _pushed(self._applied, list(applied), global_step, self._replicas)
            push = OuterPush(pushed, differences, global_step, getattr(self._outer, "weight_decay", 0.0))
            own = own_optimizer_of(inner, getattr(self._inner, "weight_decay", 0.0))
            sparse = {variable: isinstance(grad, IndexedSlices) for variable, grad in applied.items()}
            rounds = GraphRounds(InnerSteps(own, sparse, hypers, count), self._every, push, steps)
            rounds_in(graph).append(rounds)
            inputs, attrs = (*_flat(applied.values()), *computed), {"local_rounds": rounds}
            train_op = Node("LocalStep", inputs, name=scope, operation=True, stateful=True, attrs=attrs)
        remember_loss(train_op, self._in_graph(graph).loss)
        add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Give a slot of the outer optimizer; see Optimizer.get_slot."""
        return None if self._applied is None else self._applied.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the outer optimizer's slots."""
        return [] if self._applied is None else self._applied.get_slot_names()

    def variables(self) -> list[Variable]:
        """The Variables of the outer optimizer's state."""
        return [] if self._applied is None else self._applied.variables()


def _pushed(
    outer: Optimizer, variables: Sequence[Variable], step: Variable, replicas: int | None
) -> tuple[Mutation, dict[Variable, Node]]:
    """Make what applies the outer optimizer, by itself no train op."""
    differences = {v: placeholder(v.dtype, v.shape, name=f"{v.op_name}/difference") for v in variables}
    outer._in_graph(step.graph).gate = Optimizer.GATE_OP
    applied = outer.apply_gradients([(node, v) for v, node in differences.items()], step)
    train_ops = step.graph.get_collection_ref(GraphKeys.TRAIN_OP)
    train_ops[:] = [node for node in train_ops if node is not applied]
    assert isinstance(applied, Mutation)
    for spec in applied.uses:
        for hyper, value in spec.worker_hypers().items():
            if isinstance(value, Node):
                raise InvalidArgumentError(
                    f"LocalStepsOptimizer: {hyper} of outer is {value.name!r}, which only a run can compute. Give a "
                    "number, a schedule of the global step, or a Variable."
                )
    if replicas is not None:
        applied.attrs["contribution"] = (replicas, 1)
    return applied, differences


def _require_plain(what: str, value: Any) -> None:
    """Refuse values that are not optimizers, and optimizers that do more than apply gradients."""
    if isinstance(value, TorchOptimizer):
        return
    if not isinstance(value, Optimizer):
        raise InvalidArgumentError(
            f"LocalStepsOptimizer: {what} is {value!r}; it must be an optimizer of gs.train or gs.optim: "
            "gs.train.GradientDescentOptimizer(0.1), say."
        )
    if type(value).apply_gradients is not Optimizer.apply_gradients:
        instead = " Give replicas=, which makes a step of several workers' differences." if what == "outer" else ""
        raise InvalidArgumentError(
            f"LocalStepsOptimizer: {what} is a {type(value).__name__}, which does more than to apply gradients. Give "
            f"the optimizer that it wraps.{instead}"
        )


def _require_none_yet(graph: Graph) -> None:
    """Refuse a graph that has local steps."""
    if rounds_in(graph):
        raise ValueError(
            "This graph has local steps already: a run sees one set of copies. Train all Variables by one "
            "LocalStepsOptimizer, with the sum of the losses; or build a graph for each."
        )


def _gradients_of(pairs: Iterable[tuple[Any, Variable]]) -> dict[Variable, Gradient]:
    """Give the gradients by Variable, after checking that they fit, and that local steps can use them."""
    checked = [(as_gradient(grad), variable) for grad, variable in pairs]
    gradients: dict[Variable, Gradient] = {}
    for grad, variable in checked:
        require_variable(variable)
        if grad is None:
            continue
        require_fit(grad, variable)
        if variable.is_local:
            raise ValueError(
                f"{variable.name!r} is a local Variable, this process's own already: there is nothing to push. Train "
                "it by another optimizer."
            )
        if variable.constraint is not None:
            raise ValueError(
                f"Variable {variable.name!r} has a constraint, which the outer optimizer's step would not keep to. "
                "Clip what is computed from it instead."
            )
        gradients[variable] = grad
    if not gradients:
        raise ValueError(f"No gradients provided for any variable: {[str(v) for _, v in checked]}.")
    return gradients


def _made(source: Any, step: Node, count: Callable[[], int]) -> Optimizer:
    made: Optimizer = optimizer_of(source, step, count) if isinstance(source, TorchOptimizer) else source
    return made


def _split(hypers: Mapping[str, Hyper]) -> tuple[dict[str, Any], list[Node]]:
    """Give an optimizer's hyper-parameters, None for those that a run computes, and the nodes of these."""
    plain: dict[str, Any] = {}
    computed: list[Node] = []
    for name, value in hypers.items():
        # TensorFlow calls a function once, where it makes a node.
        result = value() if callable(value) and not isinstance(value, Node) else value
        if isinstance(result, Node):
            computed.append(result)
        plain[name] = None if isinstance(result, Node) else value
    return plain, computed


def _flat(gradients: Iterable[Gradient]) -> Iterable[Node]:
    for grad in gradients:
        if isinstance(grad, IndexedSlices):
            yield from (as_node(grad.values), as_node(grad.indices))
        else:
            yield grad

"""Branches: the parts of a graph that `gs.cond` evaluates only where they are taken.

A branch is traced once, into the graph of the program. What it computes is put into stages, nodes that evaluate a part
of the branch if it is taken and give zeros if not; the executor never sees what is in them. What only the executor can
do, a change of Variables or a look at the rows of a table, stays a node of the graph, between the stages: it takes its
operands from them, and a mutation has the condition as a guard.

Layer: tf1. Threads: a graph is built by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from autograd.tracer import getval

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradient_plan import GradientPlan
from globalstep.tf1.gradients.gradients import evaluate_gradients
from globalstep.tf1.gradients.tape import call_on_tape
from globalstep.tf1.graph.graph import Node, closure_of, tuple_item
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.body import raise_named
from globalstep.tf1.variables.variables import Variable

__all__ = ["taken_only"]


class _StageStep(NamedTuple):
    """One node of a stage: from the values at places `inputs` to the one at `out`."""

    fn: Any
    #: Each with whether gradients go on to it.
    inputs: tuple[tuple[int, bool], ...]
    out: int
    node: Node


def taken_only(condition: Node, expected: bool, results: Sequence[Node], start: int) -> list[Node]:
    """Have a branch evaluated only where it is taken.

    Args:
        condition: Boolean scalar.
        expected: What it is where the branch is taken.
        results: What the branch gives; none is an operation.
        start: How many nodes the graph had before the branch was traced.

    Returns:
        Nodes that give the results where the branch is taken, and anything where it is not.
    """
    return _Branch(condition, expected, results, start).build()


class _Branch:
    def __init__(self, condition: Node, expected: bool, results: Sequence[Node], start: int) -> None:
        self._condition, self._expected, self._results, self._start = condition, expected, results, start
        self._graph = condition.graph
        position = {node: at for at, node in enumerate(self._graph.nodes[start:])}
        self._inner = _reachable(results, position)
        self._members = set(self._inner)
        self._levels = self._find_levels()
        #: Inner node that a stage evaluates -> the node that gives its value to other stages.
        self._given: dict[Node, Node] = {}
        self._stages: dict[int, Node] = {}

    def build(self) -> list[Node]:
        for level in range(1 + max(self._levels.values(), default=-1)):
            members = [node for node in self._inner if self._levels[node] == level]
            steps = [node for node in members if not _is_external(node) and not _only_orders(node)]
            if steps:
                self._add_stage(level, steps)
            for node in members:
                if _is_external(node):
                    self._connect(node)
        if any(map(_is_external, self._inner)):
            self._graph.nodes[self._start :] = _in_order(self._graph.nodes[self._start :])
        return [self._value(node) for node in self._results]

    def _find_levels(self) -> dict[Node, int]:
        """Give the number of each node's stage: one more than that of what the executor has to do before it."""
        levels: dict[Node, int] = {}
        for node in self._inner:
            before = [source for source in (*_sources(node), *node.control_inputs) if source in self._members]
            levels[node] = max([0, *(levels[source] + _is_external(source) for source in before)])
        return levels

    def _value(self, node: Node) -> Node:
        return self._given.get(node, node)

    def _controls(self, node: Node) -> list[Node]:
        """The nodes that run before `node`, as they are seen from outside of the stages."""
        controls: dict[Node, None] = {}
        for before in node.control_inputs:
            if before not in self._members or _is_external(before):
                controls[before] = None
            elif _only_orders(before):
                controls.update(dict.fromkeys(self._controls(before)))
            elif self._levels[before] in self._stages:
                controls[self._stages[self._levels[before]]] = None
        return list(controls)

    def _add_stage(self, level: int, steps: Sequence[Node]) -> None:
        own = set(steps)
        captures = tuple(
            dict.fromkeys(self._value(source) for node in steps for source in _sources(node) if source not in own)
        )
        exported = self._exported(own)
        stage = _Stage(steps, captures, exported, self._value)
        condition, expected = self._condition, self._expected
        dead = tuple(_dead(node, shape) for node, shape in exported.items())

        def evaluate(holds: Any, *values: Any) -> Any:
            return stage.evaluate(values) if bool(getval(holds)) is expected else dead

        node = Node(
            "Branch",
            (condition, *captures),
            evaluate,
            name="branch",
            attrs={
                "tuple": True,
                "values": tuple(exported),
                "no_gradient": stage.has_no_gradient,
                "no_second_gradient": any(step.attrs.get("no_second_gradient") for step in steps),
            },
            stateful=any(step.stateful and not step.attrs.get("stops_gradient") for step in steps),
            control_inputs=tuple(dict.fromkeys(before for step in steps for before in self._controls(step))),
        )
        self._stages[level] = node
        for at, inner in enumerate(exported):
            is_tuple = inner.attrs.get("tuple")
            self._given[inner] = tuple_item(
                node,
                at,
                name="branch_value",
                dtype=None if is_tuple else inner.dtype,
                shape=None if is_tuple else inner.shape,
            )

    def _exported(self, own: set[Node]) -> dict[Node, bool]:
        """Return the nodes of a stage that others need, and whether each holds the ids of rows to look up."""
        exported: dict[Node, bool] = {node: False for node in self._results if node in own}
        for node in self._inner:
            if node not in own:
                ids = _looks_up(node)
                exported.update({source: ids for source in _sources(node) if source in own})
        return exported

    def _connect(self, node: Node) -> None:
        """Have what the executor does take its operands from the stages, and a mutation be guarded."""
        if "local_rounds" in node.attrs:
            raise InvalidArgumentError(
                f"{node.name!r} takes a local step, and cannot be in a branch: copies of the Variables would be needed "
                "before the choice is made. Make it outside, and let the program choose which runs have it."
            )
        controls = tuple(self._controls(node))
        if _looks_up(node):
            table, ids = node.inputs
            node.inputs = (table, self._given[ids] if ids in self._given else self._masked(ids))
        else:
            node.inputs = tuple(map(self._value, node.inputs))
        node.control_inputs = controls
        if isinstance(node, Mutation):
            node.parts = tuple(
                dataclasses.replace(
                    part,
                    operand=None if part.operand is None else self._value(part.operand),
                    indices=None if part.indices is None else self._value(part.indices),
                )
                for part in node.parts
            )
            node.guards = (
                (self._condition, self._expected),
                *((self._value(guard), holds) for guard, holds in node.guards),
            )

    def _masked(self, ids: Node) -> Node:
        """Give ids from outside of the branch where it is taken, else none."""
        if ids.shape.ndims == 0:
            return ids
        expected, nothing = self._expected, _dead(ids, True)
        shape = TensorShape(None if ids.shape.dims is None else [None] * len(ids.shape.as_list()))
        return Node(
            "Switch", (self._condition, ids),
            lambda holds, named: named if bool(getval(holds)) is expected else nothing,
            name="branch_ids", dtype=ids.dtype, shape=shape, attrs={"stops_gradient": True},
        )  # fmt: skip


class _Stage:
    """The nodes of a branch that are evaluated together.

    Args:
        steps: Its nodes, in order.
        captures: The nodes that its inputs come from.
        exported: What it gives.
        value_of: Gives, for a node that a step uses, the node that gives its value outside of the stages.
    """

    def __init__(
        self,
        steps: Sequence[Node],
        captures: Sequence[Node],
        exported: Sequence[Node] | dict[Node, bool],
        value_of: Callable[[Node], Node],
    ) -> None:
        places = {node: at for at, node in enumerate((*captures, *steps))}
        own = set(steps)

        def place(node: Node) -> int:
            return places[node if node in own else value_of(node)]

        self.has_no_gradient = False
        flows = self._flows(captures, list(exported))
        self._inputs, self._size = len(captures), len(places)
        self._exported = tuple(places[node] for node in exported)
        self._steps = tuple(
            _StageStep(
                _gradients_of(node) if node.op_type == "Gradients" else node.fn,
                tuple((place(source), source in flows.get(node, ())) for source in _sources(node)),
                places[node],
                node,
            )
            for node in steps
        )

    def _flows(self, captures: Sequence[Node], exported: Sequence[Node]) -> dict[Node, dict[Node, None]]:
        ys = [node for node in exported if _is_float(node)]
        try:
            return GradientPlan(ys, [node for node in captures if _is_float(node)], [None] * len(ys), ()).flows
        except LookupError:
            self.has_no_gradient = True
            return {}

    def evaluate(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Give what is exported, for the values of the captures; they may be on autograd's tape."""
        values = [*inputs, *[None] * (self._size - self._inputs)]
        step = None
        try:
            for step in self._steps:
                # What no gradient goes through is evaluated off the tape.
                arguments = [values[at] if flows else _plain(values[at]) for at, flows in step.inputs]
                values[step.out] = call_on_tape(step.fn, arguments)
        except Exception as error:
            assert step is not None
            raise_named(error, step.node, [np.shape(_plain(values[at])) for at, _ in step.inputs], "in a branch")
        return tuple(values[at] for at in self._exported)


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, tuple) else getval(value)


def _is_float(node: Node) -> bool:
    if node.is_operation or node.attrs.get("tuple"):
        return bool(node.attrs.get("tuple"))
    return node.dtype.is_floating


def _sources(node: Node) -> tuple[Node, ...]:
    """The nodes whose values it computes from."""
    if node.op_type == "Gradients":
        # What was drawn or done once is not drawn or done again for the gradient.
        done = [covered for covered in node.attrs["covers"] if covered.stateful and not covered.is_operation]
        return (*(source for source in node.attrs["needs"] if not source.is_operation), *done)
    if isinstance(node, Mutation):
        return (*node.inputs, *(guard for guard, _ in node.guards))
    return node.inputs


def _gradients_of(node: Node) -> Callable[..., Any]:
    sources = _sources(node)
    covered = set(node.attrs["covers"])

    def evaluate(*inputs: Any) -> Any:
        values = dict(zip(sources, inputs, strict=True))
        covered_values = {source: value for source, value in values.items() if source in covered}
        return evaluate_gradients(node, lambda source, consumer: values[source], covered_values)[0]

    return evaluate


def _looks_up(node: Node) -> bool:
    """Whether a node reads rows of a Variable, so that a run pulls only these rows."""
    return (
        node.op_type == "GatherV2"
        and isinstance(node.inputs[0], Variable)
        and not node.inputs[0].is_local
        and node.attrs.get("axis", 0) == 0
    )


def _is_external(node: Node) -> bool:
    if isinstance(node, Mutation):
        return True
    if node.fn is None:
        return node.op_type not in ("Gradients", "NoOp")
    return _looks_up(node)


def _only_orders(node: Node) -> bool:
    return node.op_type == "NoOp" and not isinstance(node, Mutation)


def _reachable(results: Sequence[Node], within: dict[Node, int]) -> list[Node]:
    """The nodes of the branch that its results need, in order of creation."""
    inner = {node for node in within if not isinstance(node, Variable) and node.op_type != "Placeholder"}
    reached = closure_of(inner.intersection(results), lambda node: inner & {*_sources(node), *node.control_inputs})
    return sorted(reached, key=within.__getitem__)


def _dead(node: Node, is_ids: bool) -> Any:
    """Give what stands for a value of a branch that was not taken; of ids, none."""
    if node.attrs.get("tuple") or node.is_operation:
        return np.zeros(())
    dtype = node.dtype.as_numpy_dtype
    rank = 1 if node.shape.ndims is None else node.shape.ndims
    return np.zeros([0] * rank if is_ids else [], dtype)


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes topologically; the order is kept where it may be."""
    within = set(nodes)
    ordered: dict[Node, None] = {}
    for root in nodes:
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node in ordered:
                waiting.pop()
                continue
            before = (*_sources(node), *node.inputs, *node.control_inputs, *node.attrs.get("covers", ()))
            missing = [source for source in before if source in within and source not in ordered]
            if missing:
                waiting.extend(missing)
                continue
            ordered[node] = None
            waiting.pop()
    return list(ordered)

"""Branches: the parts of a graph that `gs.cond` evaluates only where they are taken.

A branch is traced once, into the graph of the program. What it computes is put into stages, nodes that evaluate a part
of the branch if it is taken and give zeros if not; the executor never sees what is in them. What only the executor can
do, a change of Variables or a look at the rows of a table, stays a node of the graph, between the stages: it takes its
operands from them, and a mutation has the condition as a guard.

Layer: tf1. Threads: a graph is built by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.gradients import flow_back
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, closure_of, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.body import Body, parameter, uses_of
from globalstep.tf1.loops.flow_gradients import zeros_of
from globalstep.tf1.variables.variables import Variable


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
        exported = self._exported(own)
        captures = dict.fromkeys(source for node in steps for source in _sources(node) if source not in own)
        controls = dict.fromkeys(before for step in steps for before in self._controls(step))
        self._stages[level] = stage = _stage(
            self._condition, map(self._value, captures), tuple(controls), nodes=steps, captures=list(captures),
            expected=self._expected, branch=self._inner,
        )  # fmt: skip
        for inner, is_ids in exported.items():
            self._given[inner] = _export(stage, inner, _dead(inner, is_ids))

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
        shape = TensorShape(None if ids.shape.dims is None else [None] * len(ids.shape.as_list()))
        attrs = {"expected": self._expected, "dead": _dead(ids, True), "stops_gradient": True}
        return Node("Switch", (self._condition, ids), name="branch_ids", dtype=ids.dtype, shape=shape, attrs=attrs)


computes("Switch", lambda holds, ids, *, expected, dead: ids if bool(holds) is expected else dead)


def _stage(
    condition: Node, inputs: Iterable[Node], controls: Sequence[Node], *, nodes: Sequence[Node],
    captures: Sequence[Node], expected: bool, branch: Sequence[Node],
) -> Node:  # fmt: skip
    """Make the node that evaluates nodes of a branch together, and gives the tuple of what is exported.

    Args:
        condition: Boolean scalar.
        inputs: What has the values of the captures outside of the branch.
        controls: What must have run before it.
        nodes: Its nodes, in order.
        captures: The nodes that these use besides each other.
        expected: What the condition is where the branch is taken.
        branch: All nodes of the branch.
    """
    body = Body(captures, [], nodes, "in a branch")
    # Where the branch is not taken, `dead` has what it gives for each value: an array, or the place of a capture like
    # which zeros are given.
    attrs = {"body": body, "values": body.results, "dead": [], "expected": expected, "branch": list(branch)}
    return Node(
        "Branch", (condition, *inputs), name="branch", attrs={**attrs, "tuple": True, "wanted": set()},
        stateful=body.has_effects, control_inputs=controls,
    )  # fmt: skip


def _export(stage: Node, inner: Node, dead: Any) -> Node:
    """Return the node that has the value of a node of a stage, or of what its function saves, outside of it."""
    values = stage.attrs["values"]
    if inner not in values:
        stage.attrs["dead"].append(dead)
        stage.attrs["body"].give(inner)
    return tuple_item(stage, values.index(inner), name="branch_value", dtype=inner._dtype, shape=inner._shape)


@computes("Branch")
def _evaluated(holds: Any, *values: Any, body: Body, dead: Sequence[Any], expected: bool) -> tuple[Any, ...]:
    if bool(holds) is not expected:
        return tuple(zeros_of(values[one]) if type(one) is int else one for one in dead)
    return tuple(body.evaluate(values))


@gradient_of("Branch")
def _branch_gradient(node: Node, grads: Sequence[Node | None]) -> Sequence[Node | None]:
    body, graph, branch = node.attrs["body"], node.graph, node.attrs["branch"]
    ends = [(inner, grad) for inner, grad in zip(body.results, grads, strict=False) if grad is not None]
    start = len(graph.nodes)
    weights = {parameter(inner.dtype, inner.shape): grad for inner, grad in ends}
    xs = [body.parameters[at - 1] for at in sorted(node.attrs["wanted"])]
    node.attrs["wanted"].clear()
    parts = flow_back([inner for inner, _ in ends], xs, list(weights), body.parameters)
    # The rows of a gradient become a part of all of it: a branch that is not taken has as many.
    found = {x: as_node(part) for x, part in zip(xs, parts, strict=True) if part is not None}
    used, made = uses_of(list(found.values()), graph.nodes[start:], set(body.nodes))
    outside = dict(zip(body.parameters, node.inputs[1:], strict=True)) | weights
    values = {inner: _export(node, inner, _dead(inner, False)) for inner in used}
    own = set(made)
    sources = [source for inner in made for source in inner.inputs if source not in own]
    captures = list(dict.fromkeys((*sources, *weights, *found)))
    known = {*branch, *own}
    controls = dict.fromkeys(before for inner in made for before in inner.control_inputs if before not in known)
    inputs = [values[inner] if inner in values else outside.get(inner, inner) for inner in captures]
    stage = _stage(
        node.inputs[0], inputs, tuple(controls), nodes=made, captures=captures, expected=node.attrs["expected"],
        branch=[*branch, *made],
    )  # fmt: skip
    by_capture = {x: _export(stage, part, captures.index(x)) for x, part in found.items()}
    return [None, *(by_capture.get(inner) for inner in body.parameters)]


def _sources(node: Node) -> tuple[Node, ...]:
    """The nodes whose values it computes from."""
    return (*node.inputs, *(guard for guard, _ in node.guards)) if isinstance(node, Mutation) else node.inputs


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
        return node.op_type != "NoOp"
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
    if node.attrs.get("tuple") or node.is_operation or node._dtype is None:
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
            before = (*_sources(node), *node.inputs, *node.control_inputs)
            missing = [source for source in before if source in within and source not in ordered]
            if missing:
                waiting.extend(missing)
                continue
            ordered[node] = None
            waiting.pop()
    return list(ordered)

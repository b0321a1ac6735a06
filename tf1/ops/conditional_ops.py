"""`gs.cond` and `gs.case`: choices between parts of the graph while it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Graph, Node, as_node, closure_of
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.branches import taken_only
from globalstep.tf1.loops.flow_gradients import zeros_of
from globalstep.tf1.ops.array_ops import identity
from globalstep.tf1.ops.control_flow_ops import Assert
from globalstep.tf1.ops.joining_ops import stack
from globalstep.tf1.ops.math_ops import add_n, cast, equal
from globalstep.tf1.ops.reduction_ops import argmax, reduce_all

_Branch = Callable[[], Any]


def cond(
    pred: Any,
    true_fn: _Branch | None = None,
    false_fn: _Branch | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: _Branch | None = None,
    fn2: _Branch | None = None,
) -> Any:
    """Give what `true_fn` or `false_fn` gives, as `pred` is true or false in the run.

    Both are called once, when the graph is built. Of what they make, only what the taken one makes is evaluated in a
    run: it may draw random numbers, change Variables, take from a queue, print and call Python. What was made before,
    and the Variables that either reads, is there in any case. Gradients go through the branch that was taken.

    Args:
        pred: Boolean scalar node.
        true_fn: Function without arguments that gives a node or operation, or a list or tuple of such.
        false_fn: The same; as many, of the same dtypes. An operation counts as a boolean.
        strict: Whether a list of one node is given back as a list.
        name: Name scope of the nodes; default "cond".
        fn1: Older name of `true_fn`.
        fn2: Older name of `false_fn`.

    Returns:
        A node, or a list of nodes. For an operation it is what runs it: its value is that of `pred`.

    Raises:
        TypeError: If a branch is no function, or `pred` a Python bool.
        ValueError: If the branches do not match.

    >>> import globalstep as gs
    >>> x = gs.placeholder(gs.float32, [])
    >>> y = gs.cond(x > 0, lambda: x, lambda: 0.1 * x)
    >>> with gs.Session() as sess:
    ...     print(sess.run([y, gs.gradients(y, x)[0]], {x: -2.0}))
    [np.float32(-0.2), np.float32(0.1)]
    """
    first, second = fn1 if true_fn is None else true_fn, fn2 if false_fn is None else false_fn
    if first is None or not callable(first):
        raise TypeError("true_fn must be callable.")
    if second is None or not callable(second):
        raise TypeError("false_fn must be callable.")
    if isinstance(pred, bool):
        raise TypeError("pred must not be a Python bool")
    condition = as_node(pred)
    graph = condition.graph
    with graph.name_scope(name or "cond"):
        # The condition of nested choices, and of mutations in a branch, is a value of its own.
        condition = identity(condition, "pred_id")
        nodes, several, start = _values(graph, "true_fn", first, condition)
        other, also_several, other_start = _values(graph, "false_fn", second, condition)
        if (strict and several is not also_several) or len(nodes) != len(other):
            raise ValueError(f"true_fn and false_fn must return the same structure, but returned {nodes} and {other}.")
        for one, two in zip(nodes, other, strict=True):
            if one.dtype != two.dtype:
                raise ValueError(
                    f"Outputs of true_fn and false_fn must have the same type: {one.dtype.name}, {two.dtype.name}"
                )
        # The second branch first: its nodes are the last ones of the graph.
        no = taken_only(condition, False, other, other_start)
        yes = taken_only(condition, True, nodes, start)
        merged = [_merge(condition, *both) for both in zip(yes, no, nodes, other, strict=True)]
    return merged[0] if len(merged) == 1 and not (strict and several) else merged


def _values(graph: Graph, what: str, branch: _Branch, condition: Node) -> tuple[list[Node], bool, int]:
    """Build a branch; give its nodes, whether it gave a list of them, and how many nodes there were before."""
    start = len(graph.nodes)
    with graph.name_scope(what):
        result = branch()
        if result is None:
            raise ValueError(f"{what} must have a return value.")
        several = isinstance(result, (list, tuple))
        nodes = [_value(graph, item, condition) for item in (result if several else [result])]
    return nodes, several, start


def _value(graph: Graph, item: Any, condition: Node) -> Node:
    node = graph.as_graph_element(item) if hasattr(item, "outputs") else as_node(item)
    if not node.is_operation and not hasattr(item, "outputs"):
        return node
    return Node("Identity", (condition,), name="ran", dtype=condition.dtype, shape=[], control_inputs=[node])


def _merge(condition: Node, yes: Node, no: Node, like: Node, other: Node) -> Node:
    return Node("Merge", (condition, yes, no), dtype=like.dtype, shape=_common_shape(like.shape, other.shape))


computes("Merge", lambda holds, one, two: one if holds else two)


@gradient_of("Merge")
def _merge_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    condition, yes, no = node.inputs
    return None, _if_taken(condition, True, grad, yes), _if_taken(condition, False, grad, no)


def _if_taken(condition: Node, expected: bool, grad: Node, like: Node) -> Node:
    """Return a gradient where a branch is taken, and zeros like another value where it is not."""
    attrs = {"expected": expected}
    return Node("MergeGrad", (condition, grad, like), dtype=like.dtype, shape=like.shape, attrs=attrs)


computes("MergeGrad", lambda holds, g, like, *, expected: g if bool(holds) is expected else zeros_of(like))


@gradient_of("MergeGrad")
def _merge_second_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    condition, gradient, _ = node.inputs
    return None, _if_taken(condition, node.attrs["expected"], grad, gradient), None


def _common_shape(one: TensorShape, two: TensorShape) -> TensorShape:
    """Return the static shape that both have in common."""
    if one.ndims is None or one.ndims != two.ndims:
        return TensorShape(None)
    return TensorShape([m if m == n else None for m, n in zip(one.as_list(), two.as_list(), strict=True)])


def case(
    pred_fn_pairs: Any,
    default: _Branch | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Give what the function of the first true condition gives; see `cond`.

    Args:
        pred_fn_pairs: List of pairs, or a dict, of boolean scalar nodes and functions without arguments.
        default: The function for when none is true; without one the run fails then.
        exclusive: Whether the run fails if several are true.
        strict: As for `cond`.
        name: Name scope of the nodes; default "case".

    Returns:
        A node, or a list of nodes.

    Raises:
        TypeError: If the pairs are none, or a function is none.
        ValueError: Without pairs, or if the functions' results do not match.

    >>> import globalstep as gs
    >>> x = gs.placeholder(gs.float32, [])
    >>> y = gs.case([(x < 0, lambda: -x), (x < 10, lambda: 2 * x)], default=lambda: gs.constant(20.0))
    >>> with gs.Session() as sess:
    ...     print([float(sess.run(y, {x: value})) for value in (-1, 3, 50)])
    [1.0, 6.0, 20.0]
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, Mapping) else pred_fn_pairs
    if not isinstance(pairs, (list, tuple)):
        raise TypeError("fns must be a list, tuple, or dict")
    if not pairs:
        raise ValueError("You must provide at least one pred/fn pair.")
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TypeError("Each entry in pred_fn_pairs must be a 2-tuple")
        if not callable(pair[1]):
            raise TypeError(f"fn for pred {pair[0]} must be callable.")
    if default is not None and not callable(default):
        raise TypeError("default must be callable.")
    conditions = [as_node(condition) for condition, _ in pairs]
    graph = conditions[0].graph
    with graph.name_scope(name):
        checks: list[Any] = []
        if exclusive:
            count = add_n([cast(condition, "int32") for condition in conditions])
            checks = [Assert(count < 2, ["More than one condition evaluated as True but exclusive=True.", *conditions])]
        with graph.control_dependencies(checks):
            return _chosen(graph, list(zip(conditions, (fn for _, fn in pairs), strict=True)), default, strict)


def _chosen(graph: Graph, pairs: Sequence[tuple[Node, _Branch]], default: _Branch | None, strict: bool) -> Any:
    (condition, function), *rest = pairs
    if rest:
        return cond(condition, function, lambda: _chosen(graph, rest, default, strict), strict)
    if default is not None:
        return cond(condition, function, default, strict)
    with graph.control_dependencies([Assert(condition, ["None of the conditions evaluated as True."])]):
        result = function()
        # Values that are there only once the conditions were checked.
        return [identity(item) for item in result] if isinstance(result, (list, tuple)) else identity(result)


class Merged(NamedTuple):
    """What `merge` gives: the value of the input that is alive, and which one it is."""

    output: Node
    value_index: Node


def switch(data: Any, pred: Any, dtype: Any = None, name: str | None = None) -> tuple[Node, Node]:
    """Give nodes of `data` for `merge`, which takes what is made of the second if `pred` is true, else of the first.

    Unlike TensorFlow, a run evaluates what is made of either; for the other way there is `cond`.
    """
    inputs = [as_node(data, dtype), as_node(pred, "bool")]
    first, second = (
        Node("SideOfSwitch", inputs, name=name, dtype=inputs[0].dtype, shape=inputs[0].shape, attrs={"side": side})
        for side in (False, True)
    )
    return first, second


def merge(inputs: Sequence[Any], name: str | None = None) -> Merged:
    """Give the input that was made of the side of `switch` that its `pred` chose, the first one of several."""
    nodes = [as_node(item) for item in inputs]
    alive = []
    for node in nodes:
        above = closure_of([node], lambda one: () if one.op_type == "MergeOfSides" else one.inputs)
        sides = [equal(one.inputs[1], one.attrs["side"]) for one in above if one.op_type == "SideOfSwitch"]
        alive.append(reduce_all(stack(sides)) if sides else as_node(True))
    chosen = case([(one, functools.partial(identity, node)) for one, node in zip(alive, nodes, strict=True)])
    output = Node("MergeOfSides", [chosen], name=name, dtype=chosen.dtype, shape=chosen.shape)
    return Merged(output, argmax(cast(stack(alive), "int32"), output_type="int32"))


computes("SideOfSwitch", lambda data, pred, *, side: data)
computes("MergeOfSides", lambda chosen: chosen)
gradient_of("SideOfSwitch")(lambda node, grad: (grad, None))
gradient_of("MergeOfSides")(lambda node, grad: (grad,))

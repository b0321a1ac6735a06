"""`gs.cond`: a choice between two values while the graph runs.

There are no loops and no parts of a graph that only run sometimes; both values are computed and one of them
is given. So a branch may not do anything besides giving a value, which is checked when the graph is built.

Layer: shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autograd.tracer import getval

from globalstep.graph.graph import Graph, Node, as_node
from globalstep.graph.mutations import Mutation
from globalstep.graph.shapes import TensorShape
from globalstep.variables.variables import Variable

__all__ = ["cond"]

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

    Both are computed in every run, unlike TensorFlow's; the gradient flows to the one that was taken. A
    branch may draw random numbers and read Variables, but not change them, take from a queue, print or
    call Python: then choose in the program, between two `run` calls.

    Args:
        pred: Boolean scalar node.
        true_fn: Function without arguments that gives a node, or a list or tuple of nodes.
        false_fn: The same; as many nodes, of the same dtypes.
        strict: Whether a list of one node is given back as a list.
        name: Name scope of the nodes; default "cond".
        fn1: Older name of `true_fn`.
        fn2: Older name of `false_fn`.

    Returns:
        A node, or a list of nodes.

    Raises:
        TypeError: If a branch is no function, or `pred` a Python bool.
        ValueError: If the branches do not match, or one does more than give a value.

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
        taken, several = _values(graph, "true_fn", first)
        other, also_several = _values(graph, "false_fn", second)
        if several is not also_several or len(taken) != len(other):
            raise ValueError(f"true_fn and false_fn must return the same structure, but returned {taken} and {other}.")
        merged = [_merge(condition, one, two) for one, two in zip(taken, other, strict=True)]
    return merged[0] if len(merged) == 1 and not (strict and several) else merged


def _values(graph: Graph, what: str, branch: _Branch) -> tuple[list[Node], bool]:
    """Build a branch; give its nodes, and whether it gave a list of them."""
    before = set(graph.nodes)
    with graph.name_scope(what):
        given = branch()
        if given is None:
            raise ValueError(f"{what} must have a return value.")
        several = isinstance(given, (list, tuple))
        nodes = [_value(graph, item) for item in (given if several else [given])]
    _require_only_values(nodes, before, what)
    return nodes, several


def _value(graph: Graph, item: Any) -> Node:
    # An operation is a node too, once it is looked up; it has no value and is refused below.
    return graph.as_graph_element(item) if hasattr(item, "outputs") else as_node(item)


def _require_only_values(nodes: Sequence[Node], before: set[Node], what: str) -> None:
    waiting, seen = list(nodes), set(before)
    for node in nodes:
        if node.is_operation:
            raise _refusal(node, what)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Variable):
            continue
        # Only random nodes are both stateful and without gradient by nature.
        if isinstance(node, Mutation) or (node.stateful and not node.attrs.get("stops_gradient")):
            raise _refusal(node, what)
        waiting += [*node.inputs, *node.control_inputs]


def _refusal(node: Node, what: str) -> ValueError:
    return ValueError(
        f"{what} of gs.cond may only give values, because both branches are computed in every run; "
        f"{node.op_name!r} ({node.op_type}) does more. Make it outside of the branches and decide in the program "
        "whether to run it."
    )


def _merge(condition: Node, taken: Node, other: Node) -> Node:
    if taken.dtype != other.dtype:
        raise ValueError(
            f"Outputs of true_fn and false_fn must have the same type: {taken.dtype.name}, {other.dtype.name}"
        )
    return Node(
        "Merge",
        (condition, taken, other),
        lambda holds, one, two: one if getval(holds) else two,
        dtype=taken.dtype,
        shape=_common_shape(taken.shape, other.shape),
    )


def _common_shape(one: TensorShape, two: TensorShape) -> TensorShape:
    """What is known of the shape whichever of the two it is."""
    if one.ndims is None or one.ndims != two.ndims:
        return TensorShape(None)
    return TensorShape([m if m == n else None for m, n in zip(one.as_list(), two.as_list(), strict=True)])

"""`gs.while_loop`: a loop whose number of iterations is known only in the run, with gradients.

The loop is one node. Going forward it evaluates its body again and again; where a gradient is wanted it keeps what the
gradient of the body needs of every iteration. That gradient is a body too, made once, and evaluated by the node of the
loop's gradient, from the last iteration to the first. Values are those of TensorFlow's loops; iterations never overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.gradients import flow_back
from globalstep.tf1.gradients.registry import gradient_of, saved
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node, closure_of, get_default_graph, tuple_item
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of, saving_kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.body import Body, parameter, uses_of
from globalstep.tf1.loops.flow_gradients import zeros, zeros_of
from globalstep.tf1.loops.tensor_array import TensorArray


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """Repeat `body` while `cond` holds.

    Both are called once, when the graph is built. What `body` makes is evaluated once an iteration: it may draw
    random numbers, read and make Variables, print, and call Python, but not change Variables.

    Args:
        cond: Takes the loop variables; gives a boolean scalar node.
        body: Takes the loop variables; gives as many values, of the same structure and dtypes.
        loop_vars: Their first values: a list, tuple or nest of nodes, arrays and TensorArrays.
        shape_invariants: The static shapes that hold in every iteration, in the structure of `loop_vars`; default
            the shapes of the first values.
        parallel_iterations: Accepted; iterations come one after another.
        back_prop: Whether gradients go through the loop.
        swap_memory: Accepted; values are in the worker's memory.
        name: Name scope of the nodes; default "while".
        maximum_iterations: The loop ends after so many iterations, whatever `cond` says: number or node.
        return_same_structure: Whether a single loop variable is given back in its list.

    Returns:
        The loop variables after the last iteration, in the structure that `body` gives them; the node itself if there
        is one.

    Raises:
        TypeError: If `cond` or `body` is no function, or a dtype changes.
        ValueError: If the structures or shapes do not fit, or the body changes a Variable.

    >>> import globalstep as gs
    >>> w = gs.placeholder(gs.float32, [])
    >>> _, power = gs.while_loop(lambda i, p: i < 5, lambda i, p: (i + 1, p * w), [0, 1.0])
    >>> with gs.Session() as sess:
    ...     print(sess.run([power, gs.gradients(power, w)[0]], {w: 2.0}))
    [np.float32(32.0), np.float32(80.0)]
    """
    if not nest.flatten(loop_vars):
        raise ValueError("No loop variables provided")
    if not callable(cond):
        raise TypeError("cond must be callable.")
    if not callable(body):
        raise TypeError("body must be callable.")
    if parallel_iterations < 1:
        raise TypeError("parallel_iterations must be a positive integer.")
    structure = loop_vars if nest.is_sequence(loop_vars) else [loop_vars]
    with get_default_graph().name_scope(name or "while"):
        leaves = [item if isinstance(item, TensorArray) else as_node(item) for item in nest.flatten(structure)]
        initial = [_value(item) for item in leaves]
        limit = None if maximum_iterations is None else as_node(maximum_iterations)
        shapes = _invariants(initial, structure, shape_invariants)
        start = len(initial[0].graph.nodes)
        parameters = [parameter(node.dtype, shape) for node, shape in zip(initial, shapes, strict=True)]
        held = [_hold(item, node) for item, node in zip(leaves, parameters, strict=True)]
        condition = _condition(cond(*nest.pack_sequence_as(structure, held)))
        following = body(*nest.pack_sequence_as(structure, held))
        if not nest.is_sequence(following):
            following = [following]
        nest.assert_same_structure(list(structure), list(following), check_types=False)
        ends = nest.flatten(following)
        results = [_result(item, like) for item, like in zip(ends, initial, strict=True)]
        for node, shape, first in zip(results, shapes, initial, strict=True):
            _require_shape(node, shape, first)
        within = initial[0].graph.nodes[start:]
        node = _loop_node(Body(parameters, [condition], within), Body(parameters, results, within), initial, limit)
        exits = [
            tuple_item(node, at, name="Exit", dtype=first.dtype, shape=shape)
            for at, (first, shape) in enumerate(zip(initial, shapes, strict=True))
        ]
        if not back_prop:
            for item in exits:
                item.attrs["stops_gradient"] = True
        packed = nest.pack_sequence_as(following, [_hold(item, end) for item, end in zip(ends, exits, strict=True)])
    return packed[0] if len(exits) == 1 and not return_same_structure else packed


def _value(item: Any) -> Node:
    return item.flow if isinstance(item, TensorArray) else as_node(item)


def _hold(item: Any, node: Node) -> Any:
    """Give the loop variable that `node` is the value of, as `item` is."""
    return item.with_flow(node) if isinstance(item, TensorArray) else node


def _condition(value: Any) -> Node:
    node = as_node(value)
    if not node.dtype.is_bool:
        raise TypeError(
            f"Input 'input' of 'LoopCond' Op has type {node.dtype.name} that does not match expected type of bool."
        )
    if node.shape.ndims not in (None, 0):
        raise ValueError(
            f"Shape must be rank 0 but is rank {node.shape.ndims} for 'while/LoopCond' (op: 'LoopCond') with input "
            f"shapes: {node.shape}."
        )
    return node


def _result(item: Any, like: Node) -> Node:
    node = item.flow if isinstance(item, TensorArray) else as_node(item)
    if node.is_operation:
        raise TypeError(f"The body of a loop gives values, but {node.op_name!r} is an operation without one.")
    if node.dtype != like.dtype:
        raise TypeError(
            f"{like.name!r} enters the loop with dtype {like.dtype.name}, but has dtype {node.dtype.name} after one "
            "iteration. A loop variable keeps its dtype: convert it with gs.cast."
        )
    return node


def _invariants(initial: Sequence[Node], structure: Any, invariants: Any) -> list[TensorShape]:
    if invariants is None:
        return [node.shape for node in initial]
    shapes = [None if shape is None else TensorShape(shape) for shape in _shape_leaves(structure, invariants)]
    for node, shape in zip(initial, shapes, strict=True):
        if shape is not None and not _contains(shape, node.shape):
            raise ValueError(
                f"The shape invariant specified for {node.name} is not compatible with the initial shape of the loop "
                f"variable. It enters the loop with shape {node.shape}, but the specified shape invariant is {shape}."
            )
    return [node.shape if shape is None else shape for node, shape in zip(initial, shapes, strict=True)]


def _shape_leaves(structure: Any, invariants: Any) -> list[Any]:
    """Flatten invariants along `structure`: a shape may be a list itself."""
    if not nest.is_sequence(structure):
        return [invariants]
    parts = list(structure.values()) if isinstance(structure, dict) else list(structure)
    shapes = list(invariants.values()) if isinstance(invariants, dict) else list(invariants)
    if len(parts) != len(shapes):
        raise ValueError(f"There are {len(shapes)} shape invariants for {len(parts)} loop variables.")
    return [leaf for part, shape in zip(parts, shapes, strict=True) for leaf in _shape_leaves(part, shape)]


def _contains(shape: TensorShape, other: TensorShape) -> bool:
    """Whether `shape` allows every full shape that `other` allows."""
    if shape.dims is None:
        return True
    if other.dims is None or len(other) != len(shape):
        return False
    return all(n is None or n == m for n, m in zip(shape.as_list(), other.as_list(), strict=True))


def _require_shape(node: Node, shape: TensorShape, first: Node) -> None:
    if not node.shape.is_compatible_with(shape):
        raise ValueError(
            f"Input tensor {first.name!r} enters the loop with shape {shape}, but has shape {node.shape} after one "
            "iteration. To allow the shape to vary across iterations, use the `shape_invariants` argument of "
            "gs.while_loop to specify a less-specific shape."
        )


def _loop_node(condition: Body, body: Body, initial: Sequence[Node], limit: Node | None) -> Node:
    """Make the node whose value is the tuple of the loop variables at the end, and what keeps what gradients need.

    Its attribute `kept` has the nodes of the body whose values gradients need from every iteration; the body `keeping`
    gives these, too.
    """
    attrs = {"condition": condition, "body": body, "keeping": body, "kept": [], "limited": limit is not None}
    captures = dict.fromkeys((*condition.captures, *body.captures))
    node = Node(
        "While", (*initial, *captures, *(() if limit is None else (limit,))), name="While",
        attrs={**attrs, "tuple": True, "wanted": set()}, stateful=condition.has_effects or body.has_effects,
        control_inputs=(*condition.control_inputs, *body.control_inputs),
    )  # fmt: skip
    # Made here, so that it is outside of branches in which gradients are asked for.
    saved(node)
    return node


def _keep(node: Node, nodes: Sequence[Node]) -> list[Node]:
    """Keep the values of nodes of the body, and of what its functions save, as far as they differ by iteration.

    Returns:
        All that is kept, each at its place.
    """
    body, keeping, kept = (node.attrs[name] for name in ("body", "keeping", "kept"))
    within = {*keeping.within, *body.parameters}
    saving = [one for one in nodes if one not in within]
    wide = Body(body.parameters, [*body.results, *kept, *nodes], [*keeping.within, *saving])
    varying = {*wide.nodes, *body.parameters}
    node.attrs["kept"] = kept = [*kept, *(one for one in nodes if one in varying and one not in kept)]
    node.attrs["keeping"] = Body(body.parameters, [*body.results, *kept], wide.within)
    return kept


@kernel_of("While")
def _while(node: Node) -> Any:
    attrs = node.attrs
    return lambda *values: _repeat(attrs, attrs["body"], values)[0]


@saving_kernel_of("While")
def _while_saving(node: Node) -> Any:
    # What is kept grows with each gradient.
    attrs = node.attrs
    return lambda *values: _repeat(attrs, attrs["keeping"], values)


def _repeat(attrs: dict[str, Any], body: Body, values: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the loop variables at the end, and for each iteration what the body gives besides."""
    count, condition = len(body.parameters), attrs["condition"]
    records: list[Any] = []
    captured = dict(zip(dict.fromkeys((*condition.captures, *attrs["body"].captures)), values[count:], strict=False))
    for_condition = [captured[node] for node in condition.captures]
    for_body = [captured[node] for node in body.captures]
    most, done, current = int(values[-1]) if attrs["limited"] else None, 0, list(values[:count])
    with np.errstate(all="ignore"):
        while (most is None or done < most) and bool(condition.evaluate([*current, *for_condition])[0]):
            made = body.evaluate([*current, *for_body])
            current = made[:count]
            records.append(made[count:])
            done += 1
    ends = tuple(value[()] if isinstance(value, np.ndarray) and not value.ndim else value for value in current)
    return ends, records


@gradient_of("While")
def _while_gradient(node: Node, grads: Sequence[Node | None]) -> Sequence[Any]:
    body, graph = node.attrs["body"], node.graph
    ends = [*grads, *[None] * (len(body.parameters) - len(grads))]
    wanted = {node.inputs[at] if at >= len(ends) else body.parameters[at] for at in node.attrs["wanted"]}
    node.attrs["wanted"].clear()
    flowing = _flowing(body, [at for at, grad in enumerate(ends) if grad is not None], wanted)
    if not flowing:
        return [None] * len(node.inputs)
    first = [
        zeros(tuple_item(node, at, dtype=body.parameters[at].dtype, shape=body.parameters[at].shape))
        if (end := ends[at]) is None
        else end
        for at in flowing
    ]
    start = len(graph.nodes)
    weights = [parameter(body.results[at].dtype, body.results[at].shape) for at in flowing]
    captures = [capture for capture in body.captures if capture in wanted]
    xs = [*(body.parameters[at] for at in flowing), *captures]
    parts = flow_back([body.results[at] for at in flowing], xs, weights, [*body.parameters, *body.captures])
    carried = [zeros(x) if part is None else as_node(part) for x, part in zip(xs, parts[: len(flowing)], strict=False)]
    of_captures = dict(zip(captures, parts[len(flowing) :], strict=True))
    dense = {node: part for node, part in of_captures.items() if isinstance(part, Node)}
    rows = {node: part for node, part in of_captures.items() if isinstance(part, IndexedSlices)}
    results = [*carried, *dense.values(), *(as_node(part.values) for part in rows.values())]
    results += [as_node(part.indices) for part in rows.values()]
    used, made = uses_of(results, graph.nodes[start:], {*body.within, *body.parameters})
    kept = _keep(node, used)
    taken = [one for one in used if one in kept]
    inner = Body([*weights, *taken], results, made, before=set(body.within))
    attrs = {"body": inner, "kept": [kept.index(one) for one in taken], "variables": len(flowing)}
    # A second gradient finds its way by the loop's own inputs, which are the last.
    gradient = Node(
        "WhileGrad", (saved(node), *first, *inner.captures, *dense, *rows, *node.inputs),
        attrs={**attrs, "dense": len(dense), "rows": len(rows), "tuple": True}, stateful=inner.has_effects,
        control_inputs=inner.control_inputs,
    )  # fmt: skip
    likes = [*(body.parameters[at] for at in flowing), *dense]
    items: list[Any] = [tuple_item(gradient, at, dtype=one.dtype, shape=one.shape) for at, one in enumerate(likes)]
    for at, like in enumerate(rows, len(items)):
        sizes = like.shape.as_list()[1:] if like.shape.dims is not None else None
        values = tuple_item(gradient, at, dtype=like.dtype, shape=None if sizes is None else [None, *sizes])
        indices = tuple_item(gradient, at + len(rows), dtype=rows[like].indices.dtype, shape=[None])
        items.append(IndexedSlices(values, indices, rows[like].dense_shape))
    by_input = dict(zip([*flowing, *dense, *rows], items, strict=True))
    of_first = [by_input.get(at) for at in range(len(body.parameters))]
    return [*of_first, *(by_input.get(capture) for capture in node.inputs[len(of_first) :])]


def _flowing(body: Body, ends: Sequence[int], wanted: Collection[Node]) -> list[int]:
    """Return the loop variables through which gradients flow.

    Args:
        body: The body of the loop.
        ends: The loop variables that have a gradient at the end.
        wanted: The parameters and captures of the body whose gradients are wanted.
    """
    within = {*body.within, *body.parameters}
    reached = [closure_of([result], lambda node: node.inputs if node in within else ()) for result in body.results]
    flowing, depending = set(ends), {node for node in body.parameters if node in wanted}
    for _ in body.parameters:
        flowing |= {
            at for at, node in enumerate(body.parameters)
            if node.dtype.is_floating and any(node in reached[end] for end in flowing)
        }  # fmt: skip
        depending |= {
            node for node, sources in zip(body.parameters, reached, strict=True)
            if not sources.isdisjoint(wanted) or not sources.isdisjoint(depending)
        }  # fmt: skip
    return [at for at in sorted(flowing) if body.parameters[at] in depending]


@computes("WhileGrad")
def _back(
    records: Sequence[Any], *values: Any, body: Body, kept: Sequence[int], variables: int, dense: int, rows: int
) -> tuple[Any, ...]:  # fmt: skip
    """Evaluate the body of a loop's gradient once for each iteration, from the last one to the first.

    Args:
        records: What was kept of each iteration.
        *values: The gradients of the loop variables at the end, what the body captures, and what has gradients.
        body: Takes the gradients of the loop variables after an iteration, and what was kept of it. Gives those before
            it, then the gradients of what the loop captured: dense ones; and the rows, then their indices.
        kept: Places of what it takes among what was kept.
        variables: How many loop variables have gradients.
        dense: How many dense gradients it gives.
        rows: How many gradients in rows it gives.
    """
    count, summed = variables, variables + dense
    current, captured = list(values[:count]), values[count : count + len(body.captures)]
    likes = values[count + len(captured) :]
    totals: list[Any] = [None] * dense
    in_rows: list[list[Any]] = [[] for _ in range(2 * rows)]
    with np.errstate(all="ignore"):
        for number, record in enumerate(reversed(records)):
            made = body.evaluate([*current, *(record[at] for at in kept), *captured])
            current = made[:count]
            for at, part in enumerate(made[count:summed]):
                # The first may be another's array; the sum of two is not.
                if number > 1 and isinstance(totals[at], np.ndarray):
                    np.add(totals[at], part, out=totals[at])
                else:
                    totals[at] = totals[at] + part if number else part
            for all_rows, part in zip(in_rows, made[summed:], strict=True):
                all_rows.append(part)
    if not records:
        totals = [zeros_of(like) for like in likes[:dense]]
        for at, like in enumerate(likes[dense : dense + rows]):
            in_rows[at], in_rows[at + rows] = [like[:0]], [np.zeros(0, np.int64)]
    return (*current, *totals, *(np.concatenate(parts) for parts in in_rows))


@gradient_of("WhileGrad", "RecurrentSequenceGrad")
def _second_gradient(node: Node, grads: Any) -> Sequence[Any]:
    raise TypeError("Second-order gradient for while loops not supported.")

"""`gs.while_loop`: a loop whose number of iterations is known only in the run, with gradients.

The loop is one node. Going forward it evaluates its body again and again; where a gradient is wanted it keeps what the
way back needs of every iteration, and walks them in reverse. Values are those of TensorFlow's loops; iterations
never overlap.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.tf1.gradients.vjps import Found, with_vjp
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.body import Body, Record, parameter
from globalstep.tf1.loops.bundles import WayBack, bundle, bundle_item, is_zero
from globalstep.tf1.loops.tensor_array import TensorArray

__all__ = ["while_loop"]


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
        loop = _Loop(len(initial), Body(parameters, [condition], start), Body(parameters, results, start))
        node = loop.node(initial, limit)
        exits = [
            bundle_item(node, at, first.dtype, shape, "Exit", back_prop)
            for at, (first, shape) in enumerate(zip(initial, shapes, strict=True))
        ]
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


@dataclass(frozen=True)
class _Loop:
    count: int
    condition: Body
    body: Body

    @property
    def _captures(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys((*self.condition.captures, *self.body.captures)))

    def node(self, initial: Sequence[Node], limit: Node | None) -> Node:
        """Make the loop's node, whose value is the bundle of the loop variables at its end."""
        captures = self._captures
        inputs = (*initial, *captures, *(() if limit is None else (limit,)))
        at = {node: self.count + i for i, node in enumerate(captures)}
        runner = _LoopRun(
            self,
            [*range(self.count), *(at[node] for node in self.condition.captures)],
            [*range(self.count), *(at[node] for node in self.body.captures)],
            len(inputs) - 1 if limit is not None else None,
        )
        bodies = (self.condition, self.body)
        return Node(
            "While",
            inputs,
            with_vjp(lambda *values: runner.evaluate(values), lambda *values: runner.found(values)),
            name="While",
            dtype="float32",
            shape=TensorShape(None),
            stateful=any(part.has_effects for part in bodies),
            attrs={"no_second_gradient": True, "no_gradient": self.body.has_no_gradient},
            control_inputs=tuple(source for part in bodies for source in part.control_inputs),
        )


@dataclass(frozen=True)
class _LoopRun:
    """How a loop takes its inputs: those of the condition, those of the body, and the largest number of iterations."""

    loop: _Loop
    for_condition: Sequence[int]
    for_body: Sequence[int]
    limit: int | None

    def _iterations(self, values: Sequence[Any], step: Callable[[list[Any]], list[Any]]) -> list[Any]:
        count, most = self.loop.count, None if self.limit is None else int(values[self.limit])
        current, done = list(values), 0
        while (most is None or done < most) and bool(
            self.loop.condition.evaluate([current[at] for at in self.for_condition])[0]
        ):
            current[:count] = step([current[at] for at in self.for_body])
            done += 1
        return current[:count]

    def evaluate(self, values: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            return bundle(self._iterations(values, self.loop.body.evaluate))

    def found(self, values: Sequence[Any]) -> Found:
        records: list[Record] = []

        def step(values: list[Any]) -> list[Any]:
            results, record = self.loop.body.record(values)
            records.append(record)
            return results

        with np.errstate(all="ignore"):
            value = bundle(self._iterations(values, step))
        return value, WayBack(values, lambda gradient: self._backward(gradient, records, len(values))).ways()

    def _backward(self, gradient: Any, records: Sequence[Record], size: int) -> list[Any]:
        count = self.loop.count
        flowing: list[Any] = [None if is_zero(part) else part for part in gradient]
        captured: list[Any] = [None] * size
        for record in reversed(records):
            with np.errstate(all="ignore"):
                parts = record.backward(flowing)
            flowing = parts[:count]
            for at, part in zip(self.for_body[count:], parts[count:], strict=True):
                if part is not None:
                    before = captured[at]
                    captured[at] = part if before is None else before + part
        return [*flowing, *captured[count:]]

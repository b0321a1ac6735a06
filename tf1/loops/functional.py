"""Loops over the first dimension of arrays: `gs.map_fn`, `gs.scan`, `gs.foldl`, `gs.foldr`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globalstep.dtypes import as_dtype
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.loops.while_loops import while_loop
from globalstep.tf1.ops.array_ops import shape as shape_of


def map_fn(
    fn: Callable[..., Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """Apply `fn` to each slice of `elems` along the first dimension, and stack what it gives.

    Args:
        fn: Takes a slice, or a nest of slices; gives a node or a nest of nodes.
        elems: A node or a nest of nodes whose first dimensions are equal.
        dtype: Dtype of what `fn` gives, or a nest of dtypes; default the dtypes and the structure of `elems`.
        parallel_iterations: Accepted; see `while_loop`.
        back_prop: Whether gradients go through.
        swap_memory: Accepted.
        infer_shape: Whether `fn` gives one shape for all slices.
        name: Name scope of the nodes; default "map".

    Returns:
        A node or a nest of nodes.

    Raises:
        TypeError: If `fn` is no function.
        ValueError: If an element of `elems` is a scalar.

    >>> import globalstep as gs
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.map_fn(lambda x: x * x, gs.constant([1, 2, 3]))))
    [1 4 9]
    """
    _require_function(fn)
    with get_default_graph().name_scope(name or "map"):
        slices = _Slices(elems)
        kinds = dtype if dtype is not None else nest.map_structure(lambda node: as_node(node).dtype, elems)
        outputs = [TensorArray(as_dtype(kind), slices.count, infer_shape=infer_shape) for kind in nest.flatten(kinds)]

        def step(at: Node, *arrays: TensorArray) -> tuple[Any, ...]:
            result = fn(slices.read(at))
            nest.assert_same_structure(kinds, result, check_types=False)
            return at + 1, *(array.write(at, value) for array, value in zip(arrays, nest.flatten(result), strict=True))

        _, *arrays = while_loop(lambda at, *_: at < slices.count, step, (as_node(0), *outputs), back_prop=back_prop)
        return nest.pack_sequence_as(kinds, [array.stack() for array in arrays])


def scan(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Give every value of an accumulator that `fn` moves on with each slice of `elems`.

    Args:
        fn: Takes the accumulator and a slice; gives the new accumulator.
        elems: A node or a nest of nodes whose first dimensions are equal.
        initializer: The first accumulator; default the first slice, which is the first output then.
        parallel_iterations: Accepted; see `while_loop`.
        back_prop: Whether gradients go through.
        swap_memory: Accepted.
        infer_shape: Whether the accumulator keeps its shape.
        reverse: Whether to start from the last slice.
        name: Name scope of the nodes; default "scan".

    Returns:
        The accumulators, stacked in the order of the slices, in the accumulator's structure.

    Raises:
        TypeError: If `fn` is no function.
        ValueError: If an element of `elems` is a scalar.

    >>> import globalstep as gs
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.scan(lambda total, x: total + x, gs.constant([1, 2, 3]))))
    [1 3 6]
    """
    _require_function(fn)
    with get_default_graph().name_scope(name or "scan"):
        slices = _Slices(elems)
        first, after = slices.first(initializer, reverse)
        outputs = [TensorArray(node.dtype, slices.count, infer_shape=infer_shape) for node in nest.flatten(first)]
        if initializer is None:
            place = slices.count - 1 if reverse else 0
            outputs = [array.write(place, node) for array, node in zip(outputs, nest.flatten(first), strict=True)]

        def step(at: Node, current: Any, arrays: Any) -> Any:
            result = _moved(fn, current, slices.read(at))
            written = [array.write(at, value) for array, value in zip(arrays, nest.flatten(result), strict=True)]
            return at - 1 if reverse else at + 1, result, written

        _, _, arrays = while_loop(
            lambda at, *_: at >= 0 if reverse else at < slices.count, step, (after, first, outputs), back_prop=back_prop
        )
        return nest.pack_sequence_as(first, [array.stack() for array in arrays])


def _fold(default_name: str, end: str, reverse: bool) -> Callable[..., Any]:
    """Make the public function that folds slices from one end on."""
    doc = f"""Give the last value of an accumulator that `fn` moves on with each slice of `elems`, from the {end} on.

    Args:
        fn: Takes the accumulator and a slice; gives the new accumulator.
        elems: A node or a nest of nodes whose first dimensions are equal.
        initializer: The first accumulator; default the {end} slice.
        parallel_iterations: Accepted; see `while_loop`.
        back_prop: Whether gradients go through.
        swap_memory: Accepted.
        name: Name scope of the nodes; default "{default_name}".

    Returns:
        The accumulator.

    Raises:
        TypeError: If `fn` is no function.
        ValueError: If an element of `elems` is a scalar.
    """

    @named(default_name, doc)
    def function(
        fn: Callable[..., Any],
        elems: Any,
        initializer: Any = None,
        parallel_iterations: int = 10,
        back_prop: bool = True,
        swap_memory: bool = False,
        name: str | None = None,
    ) -> Any:
        _require_function(fn)
        with get_default_graph().name_scope(name or default_name):
            slices = _Slices(elems)
            first, after = slices.first(initializer, reverse)
            _, last = while_loop(
                lambda at, _: at >= 0 if reverse else at < slices.count,
                lambda at, current: (at - 1 if reverse else at + 1, _moved(fn, current, slices.read(at))),
                (after, first),
                back_prop=back_prop,
            )
            return last

    return function


foldl = _fold("foldl", "first", reverse=False)
foldr = _fold("foldr", "last", reverse=True)


class _Slices:
    """The slices of a nest of nodes along the first dimension, `count` of them."""

    def __init__(self, elems: Any) -> None:
        nodes = [as_node(item) for item in nest.flatten(elems)]
        for node in nodes:
            if node.shape.ndims == 0:
                raise ValueError("elems must be a 1+ dimensional Tensor, not a scalar")
        self._elems = elems
        count = nodes[0].shape.as_list()[0] if nodes[0].shape.ndims else None
        self.count: Any = as_node(count) if count is not None else shape_of(nodes[0])[0]
        self._arrays = [TensorArray(node.dtype, self.count, infer_shape=True).unstack(node) for node in nodes]

    def read(self, at: Any) -> Any:
        """Give a slice, in the structure of the elements."""
        return nest.pack_sequence_as(self._elems, [array.read(at) for array in self._arrays])

    def first(self, initializer: Any, reverse: bool) -> tuple[Any, Node]:
        """Give the first accumulator, and the place of the slice that comes after it."""
        last = self.count - 1
        if initializer is not None:
            return nest.map_structure(as_node, initializer), last if reverse else as_node(0)
        return self.read(last if reverse else 0), last - 1 if reverse else as_node(1)


def _moved(fn: Callable[..., Any], current: Any, element: Any) -> Any:
    result = fn(current, element)
    nest.assert_same_structure(current, result, check_types=False)
    return nest.pack_sequence_as(current, [_as_same(value, like) for value, like in _pairs(result, current)])


def _pairs(one: Any, other: Any) -> Sequence[tuple[Any, Any]]:
    return list(zip(nest.flatten(one), nest.flatten(other), strict=True))


def _as_same(value: Any, like: Node) -> Node:
    return value if isinstance(value, Node) or hasattr(value, "__node__") else as_node(value, like.dtype)


def _require_function(fn: Any) -> None:
    if not callable(fn):
        raise TypeError("fn must be callable.")

"""Sources of pipelines: arrays, generators, numbers, names of files.

Layer: tf1. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data.elements import (
    Component,
    Make,
    Pass,
    Values,
    component_of,
    components,
    joined,
    nodes_of,
    parts_of,
    shapes_like,
    slices_of,
    value_of,
)
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensorValue
from globalstep.tf1.text.file_ops import matching_files


class _Source(NamedTuple):
    element: Any
    captures: Sequence[Node]
    make: Make


def from_tensors(tensors: Any) -> _Source:
    """See Pipeline."""
    made = components(tensors)
    leaves = nest.flatten(made)
    return _Source(
        nest.map_structure(component_of, made), nodes_of(leaves), lambda run: iter([tuple(_values(leaves, run))])
    )


def from_tensor_slices(tensors: Any) -> _Source:
    """See Pipeline."""
    made = components(tensors)
    leaves = nest.flatten(made)
    _require_equal_axes(leaves)

    def slices(run: Pass) -> Any:
        columns = _values(leaves, run)
        sizes = [column.dense_shape[0] if isinstance(column, SparseTensorValue) else len(column) for column in columns]
        if len(set(sizes)) > 1:
            raise InvalidArgumentError(f"Components have first axes of different sizes: {sizes}.")
        return zip(*map(slices_of, columns), strict=True)

    return _Source(nest.map_structure(lambda leaf: component_of(leaf).sliced(), made), nodes_of(leaves), slices)


def _values(leaves: Sequence[Any], run: Pass) -> list[Any]:
    kinds = [component_of(leaf) for leaf in leaves]
    parts = [part for kind in kinds for part in parts_of(kind)]
    nodes = nodes_of(leaves)
    return joined(kinds, [value_of(part, run.values[node]) for part, node in zip(parts, nodes, strict=True)])


def _require_equal_axes(leaves: Sequence[Any]) -> None:
    sizes: dict[int, None] = {}
    for node in leaves:
        if node.shape.ndims == 0:
            raise ValueError(f"A scalar has no slices: {node.op_name!r} has insufficient rank for batching.")
        if node.shape.ndims and (size := node.shape.as_list()[0]) is not None:
            sizes[size] = None
    if len(sizes) > 1:
        one, other = list(sizes)[:2]
        raise ValueError(f"Dimensions {one} and {other} are not compatible")


def from_generator(
    generator: Callable[..., Any], output_types: Any, output_shapes: Any, args: Sequence[Any]
) -> _Source:
    """See Pipeline."""
    if not callable(generator):
        raise TypeError("`generator` must be callable.")
    kinds = [as_dtype(one) for one in nest.flatten(output_types)]
    shapes = [TensorShape(None)] * len(kinds) if output_shapes is None else shapes_like(output_types, output_shapes)
    nodes = [as_node(one) for one in args or ()]
    leaves = [Component(*pair) for pair in zip(kinds, shapes, strict=True)]

    def yielded(run: Pass) -> Any:
        source = iter(generator(*(run.values[node] for node in nodes)))
        return (_converted(value, output_types, leaves) for value in source)

    return _Source(nest.pack_sequence_as(output_types, leaves), nodes, yielded)


def numbers(*args: Any) -> _Source:
    """See Pipeline.range."""
    return _Source(
        Component(as_dtype("int64"), TensorShape([])),
        [one for one in args if isinstance(one, Node)],
        lambda run: ((np.int64(at),) for at in range(*(run.number(one) for one in args))),
    )


def list_files(file_pattern: Any) -> _Source:
    """See Pipeline; in order."""
    pattern = as_node(file_pattern, "string")
    names = matching_files(pattern)

    def found(run: Pass) -> Any:
        paths = run.values[names]
        if not len(paths):
            raise InvalidArgumentError(f"assertion failed: [No files matched pattern: {run.values[pattern]}]")
        return ((path,) for path in paths)

    return _Source(Component(as_dtype("string"), TensorShape([])), [names, pattern], found)


def _converted(value: Any, types: Any, leaves: Sequence[Component]) -> Values:
    try:
        parts = _parts_like(types, value)
    except (TypeError, KeyError, ValueError):
        raise TypeError(
            "`generator` yielded an element that did not match the expected structure. The expected structure was "
            f"{types!r}, but the yielded element was {value!r}."
        ) from None
    return tuple(_as_component(part, leaf) for part, leaf in zip(parts, leaves, strict=True))


def _parts_like(types: Any, value: Any) -> list[Any]:
    if not nest.is_sequence(types):
        return [value]
    if len(types) != len(value):
        raise ValueError
    keys = sorted(types) if isinstance(types, dict) else range(len(types))
    return [part for key in keys for part in _parts_like(types[key], value[key])]


def _as_component(value: Any, leaf: Component) -> Any:
    try:
        array = np.array(value, object if leaf.dtype.name == "string" else leaf.dtype.as_numpy_dtype)
    except (TypeError, ValueError):
        raise TypeError(
            "`generator` yielded an element that could not be converted to the expected type. The expected type was "
            f"{leaf.dtype.name}, but the yielded element was {value!r}."
        ) from None
    if not leaf.shape.is_compatible_with(array.shape):
        raise TypeError(
            f"`generator` yielded an element of shape {array.shape} where an element of shape {leaf.shape} was "
            "expected."
        )
    return value_of(leaf, array[()])

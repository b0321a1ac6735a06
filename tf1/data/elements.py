"""Elements of a Dataset: nests of components, each of one dtype and static shape.

Layer: tf1. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.errors import DataLossError, InvalidArgumentError
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.text.string_ops import as_bytes

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Component:
    """The static description of one component.

    Attributes:
        dtype: Of its value.
        shape: Static, of the whole.
        is_sparse: Whether the value is a SparseTensorValue.
    """

    dtype: DType
    shape: TensorShape
    is_sparse: bool = False

    def batched(self, size: int | None, shape: Any = None) -> Component:
        """Give the component of a batch.

        Args:
            size: How many elements, None if that is not known.
            shape: That of each element; default as it is.
        """
        within = self.shape if shape is None else shape
        dims = None if within.ndims is None else [size, *within.as_list()]
        return Component(self.dtype, TensorShape(dims), self.is_sparse)

    def sliced(self) -> Component:
        """Give the component of a slice of axis 0."""
        dims = None if self.shape.ndims is None else self.shape.as_list()[1:]
        return Component(self.dtype, TensorShape(dims), self.is_sparse)

    def merged(self, other: Component) -> Component:
        """Give the component that is this one or another one, of the same dtype."""
        if self.shape.ndims is None or self.shape.ndims != other.shape.ndims:
            return Component(self.dtype, TensorShape(None), self.is_sparse)
        pairs = zip(self.shape.as_list(), other.shape.as_list(), strict=True)
        return Component(self.dtype, TensorShape([one if one == two else None for one, two in pairs]), self.is_sparse)


class Structured:
    """Base class of datasets and iterators: the structure of an element.

    Args:
        element: A nest of Component.
    """

    def __init__(self, element: Any) -> None:
        self.element = element

    @property
    def output_types(self) -> Any:
        """The dtypes of an element, in its structure."""
        return nest.map_structure(lambda one: one.dtype, self.element)

    @property
    def output_shapes(self) -> Any:
        """The static shapes of an element, in its structure."""
        leaves = [one.shape for one in nest.flatten(self.element)]
        return nest.pack_sequence_as(self.element, leaves)

    @property
    def output_classes(self) -> Any:
        """The classes of an element, in its structure: Node or SparseTensor."""
        return nest.map_structure(lambda one: SparseTensor if one.is_sparse else Node, self.element)


def get_output_types(dataset_or_iterator: Any) -> Any:
    """Give the dtypes of an element of a Dataset or an Iterator, in its structure."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Any) -> Any:
    """Give the static shapes of an element of a Dataset or an Iterator, in its structure."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: Any) -> Any:
    """Give the classes of an element of a Dataset or an Iterator, in its structure."""
    return dataset_or_iterator.output_classes


def shapes_like(like: Any, shapes: Any) -> list[TensorShape]:
    """Give the shapes of a nest in order, though each of them may be a list or a tuple itself.

    Args:
        like: A nest of the structure.
        shapes: The nest; -1 stands for None.
    """
    if nest.is_sequence(like):
        keys = sorted(like) if isinstance(like, Mapping) else range(len(like))
        return [shape for key in keys for shape in shapes_like(like[key], shapes[key])]
    if isinstance(shapes, (list, tuple)):
        return [TensorShape([None if size == -1 else size for size in shapes])]
    return [shapes if isinstance(shapes, TensorShape) else TensorShape(shapes)]


def components(value: Any, returned_by: str = "") -> Any:
    """Give a nest of values as one of nodes and SparseTensors: tuples and dicts are structure, a list is one node.

    Args:
        value: The nest.
        returned_by: What returned it, if a function did: then lists are tuples.

    Raises:
        TypeError: If there is something in it that no component can be.
    """
    if isinstance(value, SparseTensor | SparseTensorValue):
        return SparseTensor.from_value(value)
    if returned_by and value is None:
        raise TypeError(f"Unsupported return value from function passed to {returned_by}: None.")
    if isinstance(value, Mapping) or (isinstance(value, tuple) or (returned_by and isinstance(value, list))):
        parts = [value[key] for key in sorted(value)] if isinstance(value, Mapping) else list(value)
        shallow = dict.fromkeys(value) if isinstance(value, Mapping) else value
        return _with_parts(shallow, [components(part, returned_by) for part in parts])
    return as_node(value)


def _with_parts(like: Any, parts: Sequence[Any]) -> Any:
    if isinstance(like, Mapping):
        return dict(zip(sorted(like), parts, strict=True))
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def component_of(leaf: Any) -> Component:
    """Give what is known of the value of a node or SparseTensor."""
    return Component(leaf.dtype, leaf.shape, isinstance(leaf, SparseTensor))


def nodes_of(leaves: Iterable[Any]) -> list[Node]:
    """Return the nodes of components: three of a SparseTensor."""
    return [node for leaf in leaves for node in _parts_of(leaf)]


def arrays_of(values: Iterable[Any]) -> list[Any]:
    """Return the arrays of the components of an element: three of a SparseTensorValue."""
    return [array for value in values for array in (value if isinstance(value, SparseTensorValue) else (value,))]


def joined(
    kinds: Iterable[Component], arrays: Iterable[Any], make: Callable[..., Any] = SparseTensorValue
) -> list[Any]:
    """Return the components of an element from its arrays, or nodes; `make` joins the three of a sparse one."""
    rest = iter(arrays)
    return [make(next(rest), next(rest), next(rest)) if kind.is_sparse else next(rest) for kind in kinds]


def parts_of(kind: Component) -> list[Component]:
    """Return what is known of the arrays of a component: indices, values and dense shape of a sparse one."""
    if not kind.is_sparse:
        return [kind]
    places, rank = as_dtype("int64"), kind.shape.ndims
    return [
        Component(places, TensorShape([None, rank])),
        Component(kind.dtype, TensorShape([None])),
        Component(places, TensorShape([rank])),
    ]


def sparse_like(kinds: Iterable[Component]) -> Callable[..., SparseTensor]:
    """Return what joins three nodes to a SparseTensor, whose static shape is that of the next sparse component."""
    shapes = iter([kind.shape for kind in kinds if kind.is_sparse])

    def make(indices: Node, values: Node, dense_shape: Node) -> SparseTensor:
        shape = next(shapes)
        if shape.ndims is not None:
            dense_shape.attrs["static_shape"] = shape.as_list()
        return SparseTensor(indices, values, dense_shape)

    return make


def _parts_of(leaf: Any) -> tuple[Node, ...]:
    return (leaf.indices, leaf.values, leaf.dense_shape) if isinstance(leaf, SparseTensor) else (leaf,)


def text_of(value: Any) -> str:
    """Give a string component as text."""
    plain = value.item() if isinstance(value, np.ndarray) else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)


def value_of(component: Component, value: Any) -> Any:
    """Give the value of a component as elements have it: text as bytes."""
    if component.dtype.name != "string":
        return value
    texts = np.frompyfunc(as_bytes, 1, 1)(_array(value))
    return texts if isinstance(texts, np.ndarray) else bytes(texts)


def stacked(rows: Sequence[Values]) -> Values:
    """Give the components of a batch of elements.

    Raises:
        InvalidArgumentError: If elements differ in shape.
    """
    return tuple(_stacked(column, at) for at, column in enumerate(zip(*rows, strict=True)))


def _stacked(column: Sequence[Any], index: int) -> Any:
    if isinstance(column[0], SparseTensorValue):
        return _stacked_sparse(column, index)
    arrays = [_array(value) for value in column]
    first = arrays[0].shape
    for at, array in enumerate(arrays):
        if array.shape != first:
            raise InvalidArgumentError(
                f"Cannot batch tensors with different shapes in component {index}. First element had shape "
                f"{list(first)} and element {at} had shape {list(array.shape)}."
            )
    return np.stack(arrays)


def _stacked_sparse(column: Sequence[SparseTensorValue], index: int) -> SparseTensorValue:
    """Return sparse values below each other; the whole is as large as the largest."""
    if len({len(value.dense_shape) for value in column}) > 1:
        raise InvalidArgumentError(f"Cannot batch sparse tensors of different ranks in component {index}.")
    rows = np.repeat(np.arange(len(column)), [len(value.indices) for value in column])
    places = np.concatenate([np.asarray(value.indices, np.int64) for value in column])
    largest = np.max([value.dense_shape for value in column], axis=0) if len(column[0].dense_shape) else []
    return SparseTensorValue(
        np.column_stack([rows, places]),
        np.concatenate([np.asarray(value.values) for value in column]),
        np.array([len(column), *largest], np.int64),
    )


def slices_of(value: Any) -> Iterator[Any]:
    """Give the slices of axis 0 of a component's value."""
    if not isinstance(value, SparseTensorValue):
        yield from np.asarray(value)
        return
    bounds = np.searchsorted(value.indices[:, 0], np.arange(value.dense_shape[0] + 1))
    for begin, end in pairwise(bounds):
        yield SparseTensorValue(value.indices[begin:end, 1:], value.values[begin:end], value.dense_shape[1:])


def padded(
    rows: Sequence[Values], shapes: Sequence[TensorShape], fill: Sequence[Any], kinds: Sequence[Component]
) -> Values:
    """Give the components of a batch of elements that are made equally large.

    Args:
        rows: The elements.
        shapes: That of each component, None for an axis as long as the longest.
        fill: What stands in the places that are added.
        kinds: The components.

    Raises:
        DataLossError: If an element is larger than its shape.
    """
    return tuple(
        _padded([_array(value) for value in column], shape.as_list(), value, kind.dtype)
        for column, shape, value, kind in zip(zip(*rows, strict=True), shapes, fill, kinds, strict=True)
    )


def _padded(arrays: Sequence[Any], shape: Sequence[int | None], fill: Any, dtype: DType) -> Any:
    longest = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    wanted = [have if size is None else size for have, size in zip(longest, shape, strict=True)]
    if any(have > size for have, size in zip(longest, wanted, strict=True)):
        raise DataLossError(
            f"Attempted to pad to a smaller size than the input element: {longest} does not fit into {wanted}."
        )
    made: Any = np.full([len(arrays), *wanted], fill, object if dtype.name == "string" else dtype.as_numpy_dtype)
    for at, array in enumerate(arrays):
        made[(at, *(slice(size) for size in array.shape))] = array
    return made


def _array(value: Any) -> Any:
    return np.array(value, object) if isinstance(value, bytes | str) else np.asarray(value)


Make = Callable[["Pass"], Any]


@dataclass
class Pass:
    """One pass over a dataset: from one initialization of an iterator to the next.

    Attributes:
        values: Of what the pipeline uses of the graph.
        memory: What a stage remembers from one repetition to the next.
    """

    values: Mapping[Node, Any]
    memory: dict[Any, Any]

    def number(self, value: Any) -> int:
        """Give an argument that is a number or a node."""
        return int(self.values[value] if isinstance(value, Node) else value)

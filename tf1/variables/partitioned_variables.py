"""Large Variables in parts: how many, along which axis, and the parts as one.

Each part is a Variable of its own, "<name>/part_<i>", so parts spread over the PS. A lookup pulls rows of
the parts it needs; used whole, they are concatenated.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/partitioned_variables.py` and `variables.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.cluster.program import WholePart
from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import identity
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.variables.variables import Variable

#: From the whole shape and dtype to the number of parts along each axis.
Partitioner = Callable[..., Sequence[int]]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Which part of a whole an initializer is asked for: the whole's shape, and where the part begins."""

    full_shape: list[int]
    var_offset: list[int]


class SaveSliceInfo(WholePart):
    """The part of a whole that a Variable holds, under TensorFlow's name."""

    __slots__ = ()


class PartitionedVariable:
    """The parts of a Variable, in order; as a value, their concatenation.

    Args:
        name: Name of the whole.
        shape: Shape of the whole.
        dtype: Their dtype.
        variable_list: The parts.
        partitions: Number of parts along each axis; more than one along one axis only.
    """

    def __init__(
        self, name: str, shape: Any, dtype: DTypeLike, variable_list: Sequence[Variable], partitions: Sequence[int]
    ) -> None:
        if len(variable_list) != math.prod(partitions):
            raise ValueError(
                f"Partitioned Variable {name!r} needs {math.prod(partitions)} parts for partitions "
                f"{list(partitions)}, not {len(variable_list)}."
            )
        self._name = name
        self._shape = TensorShape(shape)
        self._dtype = as_dtype(dtype)
        self._variable_list = list(variable_list)
        self._partitions = list(partitions)
        self._whole: Node | None = None

    @property
    def name(self) -> str:
        """Name of the whole."""
        return self._name

    @property
    def dtype(self) -> DType:
        """Dtype of the parts."""
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """Shape of the whole."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """The shape of the whole (TensorFlow's older spelling)."""
        return self._shape

    @property
    def graph(self) -> Graph:
        """Graph of the parts."""
        return self._variable_list[0].graph

    @property
    def axis(self) -> int:
        """The axis along which it is cut."""
        return next((i for i, count in enumerate(self._partitions) if count > 1), 0)

    def as_tensor(self) -> Node:
        """Give the whole as a node of its name."""
        if self._whole is None:
            with self.graph.as_default(), self.graph.control_dependencies(None), self.graph.name_scope(None):
                parts = self._variable_list
                joined = concat(parts, self.axis, f"{self._name}/ConcatPartitions/concat") if parts[1:] else parts[0]
                self._whole = identity(joined, self._name)
        return self._whole

    def __node__(self) -> Node:
        return self.as_tensor()

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None) -> list[Node]:
        """Make the ops that set each part to its part of `value`, an array of the whole shape."""
        array = np.asarray(value, dtype=self._dtype.as_numpy_dtype)
        if array.shape != tuple(int(size) for size in self._shape):
            raise ValueError(f"Variable {self._name!r} has shape {self._shape}; the value has {array.shape}.")
        cuts = np.cumsum([int(part.shape[self.axis]) for part in self._variable_list])[:-1]
        pieces = np.split(array, cuts, axis=self.axis)
        return [part.assign(piece, name=name) for part, piece in zip(self._variable_list, pieces, strict=True)]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variable_list)

    def __len__(self) -> int:
        return len(self._variable_list)

    def __getitem__(self, key: Any) -> Any:
        return self._variable_list[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        # Values and methods of a node (an operator's, an op's) are those of the whole.
        return getattr(self.as_tensor(), name)

    def __repr__(self) -> str:
        return f"<PartitionedVariable {self._name!r} shape={self._shape} dtype={self._dtype.name} partitions=[" + (
            ", ".join(map(repr, self._variable_list)) + "]>"
        )


def slices(shape: Sequence[int], partitions: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Cut a shape.

    Args:
        shape: The whole shape.
        partitions: Number of parts along each axis.

    Returns:
        (offset, shape) of each part, in order; the first ones get what does not divide evenly.

    Raises:
        ValueError: If the numbers do not fit the shape, or cut more than one axis.

    >>> slices([5, 2], [2, 1])
    [([0, 0], [3, 2]), ([3, 0], [2, 2])]
    """
    if len(partitions) != len(shape) or any(count < 1 for count in partitions):
        raise ValueError(
            f"Partitioner returned a partition list that does not match the Variable's rank: {list(partitions)} vs. "
            f"{list(shape)}"
        )
    cut = [i for i, count in enumerate(partitions) if count > 1]
    if len(cut) > 1:
        raise ValueError(f"Cannot slice Variable of shape {list(shape)} along more than one dimension: {cut}")
    axis = cut[0] if cut else 0
    count = partitions[axis]
    if count > shape[axis]:
        raise ValueError(f"Cannot cut {shape[axis]} rows of axis {axis} into {count} parts.")
    base, extra = divmod(shape[axis], count)
    parts: list[tuple[list[int], list[int]]] = []
    begin = 0
    for i in range(count):
        size = base + (i < extra)
        offset, extent = [0] * len(shape), list(shape)
        offset[axis], extent[axis] = begin, size
        parts.append((offset, extent))
        begin += size
    return parts


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Make a partitioner into `num_shards` parts along `axis`, fewer where there are fewer rows."""

    def partitioner(shape: Any, **unused: Any) -> list[int]:
        sizes = _sizes(shape, axis)
        return _along(sizes, axis, min(num_shards, sizes[axis]))

    return partitioner


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Partitioner:
    """Make a partitioner into as few parts as hold at most `max_shard_bytes` each.

    Args:
        max_shard_bytes: Size that no part exceeds, unless one row does or `max_shards` forbids.
        axis: The axis to cut.
        bytes_per_string_element: Assumed size of a string.
        max_shards: At most so many parts.

    Raises:
        ValueError: If a limit is not positive.
    """
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be positive, but got: {max_shard_bytes}")
    if max_shards is not None and max_shards < 1:
        raise ValueError(f"max_shards must be positive, but got: {max_shards}")

    def partitioner(shape: Any, dtype: DTypeLike = np.float32, **unused: Any) -> list[int]:
        sizes = _sizes(shape, axis)
        row = _element_bytes(dtype, bytes_per_string_element) * math.prod(sizes) // max(1, sizes[axis])
        count = math.ceil(sizes[axis] / max(1, max_shard_bytes // max(1, row)))
        return _along(sizes, axis, count if max_shards is None else min(max_shards, count))

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1, axis: int = 0, min_slice_size: int = 256 << 10, bytes_per_string_element: int = 16
) -> Partitioner:
    """Make a partitioner into at most `max_partitions` parts of about `min_slice_size` bytes or more.

    Args:
        max_partitions: At most so many parts.
        axis: The axis to cut.
        min_slice_size: Bytes for which a further part is worth it.
        bytes_per_string_element: Assumed size of a string.
    """

    def partitioner(shape: Any, dtype: DTypeLike = np.float32, **unused: Any) -> list[int]:
        sizes = _sizes(shape, axis)
        nbytes = math.prod(sizes) * _element_bytes(dtype, bytes_per_string_element)
        return _along(sizes, axis, min(sizes[axis], max_partitions, math.ceil(nbytes / min_slice_size)))

    return partitioner


def _sizes(shape: Any, axis: int) -> list[int]:
    whole = TensorShape(shape)
    if not whole.is_fully_defined():
        raise ValueError(f"shape is not fully defined: {whole}")
    sizes = [int(size) for size in whole]
    if axis >= len(sizes):
        raise ValueError(f"Cannot partition along axis {axis} when shape is only {whole}")
    return sizes


def _along(sizes: Sequence[int], axis: int, count: int) -> list[int]:
    partitions = [1] * len(sizes)
    partitions[axis] = max(1, count)
    return partitions


def _element_bytes(dtype: DTypeLike, bytes_per_string_element: int) -> int:
    kind = as_dtype(dtype)
    return bytes_per_string_element if kind.name == "string" else np.dtype(kind.as_numpy_dtype).itemsize

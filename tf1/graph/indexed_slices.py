"""Sparse values: some rows of a large array, without the rest of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import OfValues


class IndexedSlices(OfValues):
    """Rows of an array that has many more: `dense[indices[i]] += values[i]`, zero elsewhere.

    The gradient of a Variable that is read only by `gs.gather` or `gs.nn.embedding_lookup` is one, so
    that a push carries the touched rows alone. An index may occur more than once; such rows add up.

    Args:
        values: Node or array [n, ...]: the rows.
        indices: Integer node or array [n]: the row number of each.
        dense_shape: Shape of the whole array, where known.

    >>> slices = IndexedSlices(np.ones([2, 3]), np.array([4, 4]), (5, 3))
    >>> slices.dense().sum(axis=1)
    array([0., 0., 0., 0., 6.])
    """

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = dense_shape

    @property
    def shape(self) -> TensorShape:
        """Static shape of the whole array."""
        if self.dense_shape is None:
            return TensorShape(None)
        if isinstance(self.dense_shape, Node):
            static = self.dense_shape.attrs.get("value")
            return TensorShape(None if static is None else [int(size) for size in static])
        return TensorShape([int(size) for size in self.dense_shape])

    @property
    def name(self) -> str:
        """Name of the node of the values."""
        return str(self.values.name)

    @property
    def device(self) -> str:
        """Device of the node of the values."""
        return str(self.values.device)

    def dense(self) -> Any:
        """Give the whole array, for slices that hold arrays.

        Raises:
            ValueError: If the shape of the whole array is not known.
        """
        return _scatter(self.values, self.indices, self._known_shape())

    def __node__(self) -> Node:
        """Give the whole array as a node."""
        shape = self._known_shape()
        values, indices = as_node(self.values), as_node(self.indices)
        return Node(
            "ScatterRows", (values, indices), name=f"{values.op_name.split('/')[-1]}_dense", dtype=values.dtype,
            shape=shape,
        )  # fmt: skip

    def _known_shape(self) -> tuple[int, ...]:
        shape = self.shape
        if not shape.is_fully_defined():
            raise ValueError(
                "Tensor conversion requested for IndexedSlices without dense_shape: the shape of the whole "
                "array must be known; pass dense_shape to gs.IndexedSlices."
            )
        return tuple(int(size) for size in shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices!r}, values={self.values!r}, dense_shape={self.dense_shape!r})"


@kernel_of("ScatterRows")
def _scatter_rows(node: Node) -> Any:
    shape = tuple(int(size) for size in node.shape)
    return lambda rows, ids: _scatter(rows, ids, shape)


def _scatter(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    from globalstep.tf1.ops.primitives import scatter_rows

    return scatter_rows(rows, np.asarray(ids), shape)

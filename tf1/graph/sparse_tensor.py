"""Sparse tensors: arrays given by their filled places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.tf1.graph.graph import Graph, Node, Operation, as_node, session_or_default
from globalstep.tf1.graph.shapes import TensorShape


class SparseTensorValue(NamedTuple):
    """The value of a SparseTensor: what a run gives for one, and what may be fed for one.

    Attributes:
        indices: int64 [n, rank]: the filled places.
        values: [n].
        dense_shape: int64 [rank].
    """

    indices: Any
    values: Any
    dense_shape: Any


class OfValues:
    """Properties of a sparse value that are those of its `values` node."""

    values: Any
    shape: Any

    @property
    def dtype(self) -> DType:
        """Dtype of the values."""
        return as_dtype(self.values.dtype)

    @property
    def op(self) -> Operation:
        """Operation of the node of the values."""
        operation: Operation = self.values.op
        return operation

    @property
    def graph(self) -> Graph:
        """Graph of the node of the values."""
        graph: Graph = self.values.graph
        return graph

    def get_shape(self) -> TensorShape:
        """The static shape of the whole array (TensorFlow's older spelling)."""
        shape: TensorShape = self.shape
        return shape


class SparseTensor(OfValues):
    """An array given by its filled places.

    Args:
        indices: int64 node or array [n, rank]: the places, rows in ascending order.
        values: Node or array [n].
        dense_shape: int64 node or array [rank].
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self.indices = _int64(indices)
        self.values = as_node(values)
        self.dense_shape = _int64(dense_shape)

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """Make one of a SparseTensorValue, or of three parts; a SparseTensor is given back as it is."""
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if not isinstance(sparse_tensor_value, tuple) or len(sparse_tensor_value) != 3:
            raise TypeError(f"Neither a SparseTensor nor SparseTensorValue: {sparse_tensor_value}.")
        return cls(*sparse_tensor_value)

    @property
    def shape(self) -> TensorShape:
        """The static shape of the whole array."""
        static = self.dense_shape.attrs.get("value")
        if static is not None:
            return TensorShape([int(size) for size in np.asarray(static).reshape(-1)])
        if "static_shape" in self.dense_shape.attrs:
            return TensorShape(self.dense_shape.attrs["static_shape"])
        rank = self.dense_shape.shape.as_list()[0] if self.dense_shape.shape.ndims else None
        return TensorShape(None if rank is None else [None] * rank)

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> SparseTensorValue:
        """Give the value, run in `session` or in the default session."""
        feeds = None if feed_dict is None else dict(feed_dict)
        parts = self.indices, self.values, self.dense_shape
        # One run, so that the parts belong together.
        no_session = "Cannot evaluate tensor using `eval()`: No default session is registered."
        return SparseTensorValue(*session_or_default(session, no_session).run(parts, feeds))

    def __repr__(self) -> str:
        return (
            f"<gs.SparseTensor indices={self.indices.name!r} values={self.values.name!r} "
            f"dense_shape={self.dense_shape.name!r}>"
        )


def _int64(value: Any) -> Node:
    if isinstance(value, Node) or hasattr(value, "__node__"):
        return as_node(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, Node) for item in value):
        return as_node(value)
    return as_node(value, "int64")

"""`gs.TensorArray`: a list of arrays that a loop reads and writes, with gradients.

Its value, the flow, is an array of objects: an element that was not written is None. A write gives a new flow, so that
whoever goes on with the old one does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.flow_gradients import FlowGradient, gradient_at, gradient_of_elements, without
from globalstep.tf1.ops.building import static_value


class TensorArray:
    """A list of arrays of one dtype, for use in loops.

    `write`, `unstack`, `scatter` and `split` give the TensorArray to go on with, as in TensorFlow.

    Args:
        dtype: Dtype of the elements.
        size: How many there are: number or node.
        dynamic_size: Whether a write past the end makes it longer.
        clear_after_read: Accepted; an element may be read any number of times.
        tensor_array_name: Accepted as in TensorFlow.
        handle: A TensorArray's `handle`, in place of `size`.
        flow: The value to start from, in place of `size`.
        infer_shape: Whether all elements have one static shape.
        element_shape: It, where it is known.
        colocate_with_first_write_call: Accepted as in TensorFlow.
        name: Name of the nodes; default "TensorArray".
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if handle is not None and size is not None:
            raise ValueError("Cannot provide both a handle and size at the same time")
        if handle is not None and dynamic_size is not None:
            raise ValueError("Cannot provide both a handle and dynamic_size at the same time")
        if handle is None and flow is None and size is None:
            raise ValueError("Size must be provided if handle is not provided")
        self._dtype = as_dtype(dtype)
        self._dynamic = bool(dynamic_size)
        self._infer = infer_shape
        #: Known shape of the elements: shared by all that stand for this array, so that a write within a loop tells.
        self._shape = [TensorShape(element_shape)]
        self._count = None if size is None or self._dynamic else static_value(size)
        flow = handle if flow is None else flow
        if flow is None:
            flow = Node("TensorArray", (as_node(size),), name=name, dtype="float32", shape=TensorShape(None))
        self.flow: Node = flow

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self._dtype

    @property
    def handle(self) -> Node:
        """The flow, which identifies the array."""
        return self.flow

    @property
    def element_shape(self) -> TensorShape:
        """The static shape of the elements, as far as it is known."""
        return self._shape[0]

    def with_flow(self, flow: Node) -> TensorArray:
        """Give this array with another value."""
        other = object.__new__(TensorArray)
        other.__dict__.update(self.__dict__)
        other.flow = flow
        return other

    def identity(self) -> TensorArray:
        """Give the array itself, as of now."""
        return self._put("Identity", (), None)

    def size(self, name: str | None = None) -> Node:
        """Give the number of elements."""
        attrs = {"stops_gradient": True}
        return Node("TensorArraySize", (self.flow,), name=name, dtype="int32", shape=[], attrs=attrs)

    def close(self, name: str | None = None) -> Node:
        """Give an operation that does nothing: the value is dropped when nobody needs it."""
        return Node("NoOp", name=name or "TensorArrayClose", operation=True)

    def read(self, index: Any, name: str | None = None) -> Node:
        """Give an element.

        Args:
            index: Which: number or node.
            name: Name of the node.

        Returns:
            A node; zeros for an element that was not written.
        """
        return self._value_node("TensorArrayRead", (as_node(index),), self.element_shape, name)

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """Set an element.

        Args:
            index: Which: number or node.
            value: Node or array of the array's dtype.
            name: Name of the node.

        Returns:
            The array to go on with.

        Raises:
            InvalidArgumentError: If the dtype is another one; in the run, if it was written already or does not exist.
        """
        node = self._element(value)
        self._merge(node.shape)
        attrs = {"dynamic": self._dynamic, "infer": self._infer}
        return self._put("TensorArrayWrite", (as_node(index), node), name, **attrs)

    def stack(self, name: str | None = None) -> Node:
        """Give all elements as one array, whose first dimension is the array's."""
        return self._value_node("TensorArrayStack", (), self._rows(self._count), name)

    def gather(self, indices: Any, name: str | None = None) -> Node:
        """Give some elements as one array."""
        ids = as_node(indices)
        count = ids.shape.as_list()[0] if ids.shape.ndims else None
        return self._value_node("TensorArrayGather", (ids,), self._rows(count), name)

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """Set all elements to the rows of `value`; its first dimension gives their number."""
        node = self._element(value)
        if node.shape.dims is not None:
            self._merge(node.shape[1:])
            self._count = node.shape.as_list()[0] if self._count is None and not self._dynamic else self._count
        return self._put("TensorArrayUnstack", (node,), name, dynamic=self._dynamic)

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """Set the elements `indices` to the rows of `value`."""
        node, ids = self._element(value), as_node(indices)
        if node.shape.dims is not None:
            self._merge(node.shape[1:])
        return self._put("TensorArrayScatter", (ids, node), name, dynamic=self._dynamic)

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """Set the elements to pieces of `value`, of `lengths` rows."""
        return self._put("TensorArraySplit", (self._element(value), as_node(lengths)), name)

    def concat(self, name: str | None = None) -> Node:
        """Give the elements joined along their first dimension."""
        shape = self.element_shape
        rows = TensorShape(None) if not shape.ndims else TensorShape([None, *shape.as_list()[1:]])
        return Node("TensorArrayConcat", (self.flow,), name=name, dtype=self._dtype, shape=rows)

    def _element(self, value: Any) -> Node:
        node = as_node(value) if isinstance(value, Node) or hasattr(value, "__node__") else as_node(value, self._dtype)
        if node.dtype != self._dtype:
            raise InvalidArgumentError(
                f"TensorArray dtype is {self._dtype.name} but Op is trying to write dtype {node.dtype.name}."
            )
        return node

    def _merge(self, shape: TensorShape) -> None:
        merged = self._shape[0]
        if not self._infer or shape.dims is None:
            return
        if not shape.is_compatible_with(merged):
            raise ValueError(f"Inconsistent shapes: saw {shape} but expected {merged}")
        self._shape[0] = merged.merge_with(shape)

    def _rows(self, count: Any) -> TensorShape:
        """Return the static shape of so many elements."""
        if self.element_shape.dims is None:
            return TensorShape(None)
        return TensorShape([None if count is None else int(count), *self.element_shape.as_list()])

    def _put(self, kind: str, inputs: Sequence[Node], name: str | None, **attrs: Any) -> TensorArray:
        inputs = (self.flow, *inputs)
        return self.with_flow(Node(kind, inputs, name=name, dtype="float32", shape=TensorShape(None), attrs=attrs))

    def _value_node(self, kind: str, at: Sequence[Node], shape: TensorShape, name: str | None) -> Node:
        # A write that comes later may still tell the shape of an element.
        attrs = {"element_shape": self._shape, "dtype": self._dtype}
        return Node(kind, (self.flow, *at), name=name, dtype=self._dtype, shape=shape, attrs=attrs)


computes("TensorArray", lambda count: np.full(int(count), None, object))
computes("TensorArraySize", lambda flow: np.int32(len(flow)))
computes("TensorArraySplit", lambda flow, rows, sizes: _flow_of(_split(rows, sizes)))
computes("TensorArrayConcat", lambda flow: np.concatenate(list(flow)))
computes("TensorArrayLengths", lambda flow: np.array([len(element) for element in flow]))
computes("TensorArrayConcatGrad", lambda gradient, sizes: FlowGradient(dict(enumerate(_split(gradient, sizes)))))


def _split(rows: Any, sizes: Any) -> list[Any]:
    return np.split(rows, np.cumsum(sizes)[:-1])


@computes("TensorArrayRead")
def _picked(flow: Any, at: Any, *, element_shape: Sequence[TensorShape], dtype: DType) -> Any:
    """Give an element, or zeros in place of one that was not written."""
    element = flow[_place(at, len(flow), "read from")]
    if element is not None:
        return element
    written = next((other for other in flow if other is not None), None)
    if written is not None:
        return np.zeros_like(written)
    if element_shape[0].is_fully_defined():
        return np.zeros(element_shape[0].as_list(), dtype.as_numpy_dtype)
    raise InvalidArgumentError(
        "Could not read from TensorArray: no element was written, and the shape of its elements is not known."
    )


@computes("TensorArrayGather")
@computes("TensorArrayStack")
def _stacked(flow: Any, at: Any = None, *, element_shape: Sequence[TensorShape], dtype: DType) -> Any:
    wanted = range(len(flow)) if at is None else np.asarray(at).reshape(-1)
    if not len(wanted):
        sizes = element_shape[0].as_list() if element_shape[0].ndims else []
        return np.zeros((0, *(size or 0 for size in sizes)), dtype.as_numpy_dtype)
    return np.stack([_picked(flow, place, element_shape=element_shape, dtype=dtype) for place in wanted])


@computes("TensorArrayWrite")
def _written(flow: Any, at: Any, element: Any, *, dynamic: bool, infer: bool) -> Any:
    wanted = int(at)
    if dynamic and wanted >= len(flow):
        flow = np.concatenate([flow, np.full(wanted + 1 - len(flow), None, object)])
    place = _place(at, len(flow), "write to")
    if flow[place] is not None:
        raise InvalidArgumentError(
            f"Could not write to TensorArray index {place} because it has already been written to."
        )
    if infer:
        _require_same_shape(flow, place, element)
    written = flow.copy()
    written[place] = element[()] if isinstance(element, np.ndarray) and not element.ndim else element
    return written


@computes("TensorArrayUnstack")
def _unstacked(flow: Any, rows: Any, *, dynamic: bool) -> Any:
    if len(rows) != len(flow) and not (dynamic and len(rows) > len(flow)):
        raise InvalidArgumentError(
            f"Input value must have first dimension equal to the array size ({len(rows)} vs. {len(flow)})"
        )
    return _flow_of(rows)


@computes("TensorArrayScatter")
def _scattered(flow: Any, at: Any, rows: Any, *, dynamic: bool) -> Any:
    places = [int(i) for i in np.asarray(at).reshape(-1)]
    longest = max([len(flow), *(place + 1 for place in places)]) if dynamic else len(flow)
    written = np.full(longest, None, object)
    written[: len(flow)] = flow
    for place, row in zip(places, rows, strict=True):
        written[_place(place, longest, "write to")] = row
    return written


def _flow_of(elements: Sequence[Any]) -> Any:
    """Return the flow whose elements these are."""
    plain = [item[()] if isinstance(item, np.ndarray) and not item.ndim else item for item in elements]
    return np.fromiter(plain, dtype=object, count=len(plain))


@gradient_of("TensorArrayRead")
def _read_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return gradient_of_elements(grad, node.inputs[1], one=True), None


@gradient_of("TensorArrayWrite")
def _write_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    _, at, element = node.inputs
    return without(grad, at), None, gradient_at(grad, element, at, one=True)


@gradient_of("TensorArrayUnstack")
def _unstack_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return None, gradient_at(grad, node.inputs[1], None, one=False)


@gradient_of("TensorArrayScatter")
def _scatter_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    _, at, rows = node.inputs
    return without(grad, at), None, gradient_at(grad, rows, at, one=False)


@gradient_of("TensorArrayStack", "TensorArrayGather")
def _stack_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    _, *at = node.inputs
    return gradient_of_elements(grad, at[0] if at else None, one=False), *[None] * len(at)


@computes("TensorArraySplitGrad")
def _joined_pieces(gradient: FlowGradient, rows: Any, sizes: Any) -> Any:
    ends = np.cumsum(sizes)
    joined = np.zeros_like(rows)
    for place, part in gradient.parts.items():
        joined[ends[place] - len(part) : ends[place]] = part
    return joined


def _joined(gradient: Node, like: Node, lengths: Node) -> Node:
    """Return the gradient of rows that a flow's elements, of these lengths, were split from."""
    inputs = (gradient, like, lengths)
    return Node("TensorArraySplitGrad", inputs, dtype=like.dtype, shape=like.shape)


@gradient_of("TensorArraySplit")
def _split_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return None, _joined(grad, *node.inputs[1:]), None


@gradient_of("TensorArraySplitGrad")
def _split_second_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return _pieces(grad, node.inputs[2]), None, None


@gradient_of("TensorArrayConcat")
def _concat_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    lengths = Node("TensorArrayLengths", node.inputs, dtype="int64", shape=[None])
    return (_pieces(grad, lengths),)


def _pieces(rows: Node, lengths: Node) -> Node:
    """Return the gradient of a flow whose elements, of these lengths, were joined."""
    return Node("TensorArrayConcatGrad", (rows, lengths), dtype="float32", shape=TensorShape(None))


@gradient_of("TensorArrayConcatGrad")
def _concat_second_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return _joined(grad, *node.inputs), None


def _place(at: Any, size: int, what: str) -> int:
    place = int(at)
    if 0 <= place < size:
        return place
    if what == "write to":
        raise InvalidArgumentError(f"Tried to write to index {place} but array is not resizeable and size is: {size}")
    raise InvalidArgumentError(f"Tried to read from index {place} but array size is: {size}")


def _require_same_shape(flow: Any, place: int, element: Any) -> None:
    other = next((item for item in flow if item is not None), None)
    if other is not None and np.shape(other) != np.shape(element):
        raise InvalidArgumentError(
            f"Could not write to TensorArray index {place} because the value shape is {list(np.shape(element))} which "
            f"is incompatible with the TensorArray's inferred element shape: {list(np.shape(other))} (consider setting "
            "infer_shape=False)."
        )

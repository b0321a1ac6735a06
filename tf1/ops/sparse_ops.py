"""Functions of sparse tensors.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/sparse_ops.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.ops.array_ops import matrix_transpose
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import from_front, operands, sizes_of, static_value
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.gradient_ops import rearranges
from globalstep.tf1.ops.indexing_ops import gather, gather_nd, scatter_nd
from globalstep.tf1.ops.primitives import scatter_rows, take_rows
from globalstep.tf1.ops.reduction_ops import reduce_sum


def sparse_placeholder(dtype: DTypeLike, shape: Any = None, name: str | None = None) -> SparseTensor:
    """Make a SparseTensor that is fed.

    Args:
        dtype: Dtype of its values.
        shape: Shape of the whole array, where it is known; None for sizes that are not.
        name: Name scope of its parts; default "Placeholder".

    Returns:
        A SparseTensor, for which a SparseTensorValue, or three arrays, may be fed.

    >>> import globalstep as gs
    >>> x = gs.sparse_placeholder(gs.float32, [2, 3])
    >>> y = gs.sparse_tensor_dense_matmul(x, gs.ones([3, 1]))
    >>> with gs.Session() as sess:
    ...     print(sess.run(y, {x: gs.SparseTensorValue([[0, 1], [1, 2]], [2.0, 3.0], [2, 3])}))
    [[2.]
     [3.]]
    """
    static = None if shape is None else TensorShape(shape)
    rank = None if static is None else static.ndims
    with get_default_graph().name_scope(name or "Placeholder"):
        values = placeholder(dtype, [None], "values")
        indices = placeholder("int64", [None, rank], "indices")
        if static is not None and static.is_fully_defined():
            return SparseTensor(indices, values, [int(size) for size in static])
        sizes = placeholder("int64", [rank], "shape")
        if static is not None:
            sizes.attrs["static_shape"] = static.as_list()
        return SparseTensor(indices, values, sizes)


def _parts(op_type: str, inputs: Sequence[Node], dtype: Any, shape: Any, n: Any = None, **attrs: Any) -> SparseTensor:
    """Make the SparseTensor of a node that gives its three parts; gradients go through the values."""
    made, static = Node(op_type, inputs, attrs={"tuple": True, **attrs}), TensorShape(shape)
    count = TensorShape(n).merge_with([None])
    sizes = tuple_item(made, 2, name="dense_shape", dtype="int64", shape=[static.ndims])
    if static.ndims is not None:
        sizes.attrs["static_shape"] = static.as_list()
    return SparseTensor(
        tuple_item(made, 0, name="indices", dtype="int64", shape=count.concatenate([static.ndims])),
        tuple_item(made, 1, name="values", dtype=dtype, shape=count),
        sizes,
    )


def _inputs(sp: SparseTensor) -> tuple[Node, Node, Node]:
    return sp.indices, sp.values, sp.dense_shape


def _in_order(places: Any) -> Any:
    """Give the order in which places ascend, row by row."""
    return np.lexsort(tuple(places[:, axis] for axis in reversed(range(places.shape[1]))))


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Node:
    """Multiply a sparse matrix by a dense one.

    Args:
        sp_a: The sparse matrix.
        b: Node or array: the dense one.
        adjoint_a: Whether the first is transposed before.
        adjoint_b: Whether the second is.
        name: Name of the node; default "SparseTensorDenseMatMul".

    Returns:
        A dense node, with gradients for the values of the first and for the second.

    Raises:
        InvalidArgumentError: In the run, if the sizes do not fit.
    """
    sp_a = SparseTensor.from_value(sp_a)
    values, dense = operands("SparseTensorDenseMatMul", sp_a.values, b, ("a_values", "b"))
    height = sp_a.shape.as_list()[1 if adjoint_a else 0] if sp_a.shape.ndims == 2 else None
    width = dense.shape.as_list()[0 if adjoint_b else 1] if dense.shape.ndims == 2 else None
    return Node(
        "SparseTensorDenseMatMul", (sp_a.indices, values, sp_a.dense_shape, dense),
        name=name or "SparseTensorDenseMatMul", dtype=dense.dtype, shape=[height, width],
        attrs={"adjoint_a": adjoint_a, "adjoint_b": adjoint_b},
    )  # fmt: skip


@computes("SparseTensorDenseMatMul")
def _sparse_matmul(places: Any, filled: Any, shape: Any, other: Any, *, adjoint_a: Any, adjoint_b: Any) -> Any:
    rows, columns = (places[:, 1], places[:, 0]) if adjoint_a else (places[:, 0], places[:, 1])
    height, width = (int(shape[1]), int(shape[0])) if adjoint_a else (int(shape[0]), int(shape[1]))
    other = np.transpose(other) if adjoint_b else other
    if np.shape(other)[0] != width:
        raise InvalidArgumentError(
            f"Cannot multiply A and B because inner dimension does not match: {width} vs. {np.shape(other)[0]}. "
            "Did you forget a transpose?"
        )
    parts = take_rows(other, columns) * np.reshape(filled, (-1, 1))
    return scatter_rows(parts, rows, (height, np.shape(other)[1]))


@gradient_of("SparseTensorDenseMatMul")
def _sparse_matmul_gradient(node: Node, grad: Node) -> Any:
    places, filled, shape, dense = node.inputs
    adjoint_a, adjoint_b = node.attrs["adjoint_a"], node.attrs["adjoint_b"]
    to_dense = sparse_tensor_dense_matmul(SparseTensor(places, filled, shape), grad, not adjoint_a)
    rows, columns = (places[:, 1], places[:, 0]) if adjoint_a else (places[:, 0], places[:, 1])
    other = matrix_transpose(dense) if adjoint_b else dense
    to_filled = reduce_sum(gather(grad, rows) * gather(other, columns), 1)
    return None, to_filled, None, matrix_transpose(to_dense) if adjoint_b else to_dense


def sparse_reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool | None = None,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> Node:
    """Sum a sparse tensor over axes; the result is dense.

    Args:
        sp_input: The SparseTensor.
        axis: An int or a list of them; None for all.
        keepdims: Whether the axes stay, with size 1.
        reduction_axes: Older name of `axis`.
        keep_dims: Older name of `keepdims`.

    Returns:
        A node.
    """
    sp_input = SparseTensor.from_value(sp_input)
    chosen = reduction_axes if axis is None else axis
    keeps = bool(keep_dims if keepdims is None else keepdims)
    axes = None if chosen is None else [int(item) for item in np.asarray(chosen).reshape(-1)]
    dims = None if sp_input.shape.dims is None else _sizes_left(sp_input.shape.as_list(), axes, keeps)
    return Node("SparseReduceSum", _inputs(sp_input), dtype=sp_input.dtype, shape=TensorShape(dims),
                attrs={"axes": axes, "keeps": keeps})  # fmt: skip


@computes("SparseReduceSum")
def _sparse_sum(places: Any, filled: Any, shape: Any, *, axes: Any, keeps: Any) -> Any:
    sizes = [int(size) for size in shape]
    flat, count = _flat_places(places, sizes, axes)
    return np.reshape(scatter_rows(filled, flat, (count,)), _sizes_left(sizes, axes, keeps))


def _sizes_left(sizes: Sequence[Any], axes: Sequence[int] | None, keeps: bool) -> list[Any]:
    """Give the sizes of what is summed over axes, all for None."""
    gone = from_front(axes, len(sizes))
    return [1 if axis in gone else size for axis, size in enumerate(sizes) if keeps or axis not in gone]


def _flat_places(places: Any, sizes: Sequence[int], axes: Sequence[int] | None) -> tuple[Any, int]:
    """Give the place in what is summed over axes to which each value goes, and how many places there are."""
    gone = from_front(axes, len(sizes))
    rest = [axis for axis in range(len(sizes)) if axis not in gone]
    left = [sizes[axis] for axis in rest]
    flat = np.ravel_multi_index(tuple(places[:, axis] for axis in rest), left) if rest else np.zeros(len(places), int)
    return flat, int(np.prod(left))


@gradient_of("SparseReduceSum")
def _sparse_reduce_sum_gradient(node: Node, grad: Node) -> Any:
    shape, attrs = node.inputs[1].shape, {"axes": node.attrs["axes"]}
    return None, Node("SparseReduceSumGrad", (grad, *node.inputs), dtype=grad.dtype, shape=shape, attrs=attrs), None


@computes("SparseReduceSumGrad")
def _sparse_sum_grad(g: Any, at: Any, values: Any, sizes: Any, *, axes: Any) -> Any:
    return g.reshape(-1)[_flat_places(at, [int(size) for size in sizes], axes)[0]]


rearranges("SparseReduceSumGrad")


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Give a SparseTensor with its places in ascending order.

    Args:
        sp_input: The SparseTensor.
        name: Accepted as in TensorFlow.
    """
    sp_input = SparseTensor.from_value(sp_input)
    return _parts("SparseReorder", _inputs(sp_input), sp_input.dtype, sp_input.shape, sp_input.values.shape)


@computes("SparseReorder")
def _reorder(places: Any, filled: Any, shape: Any) -> Any:
    at = _in_order(places)
    return places[at], take_rows(filled, at), shape


def sparse_retain(sp_input: SparseTensor, to_retain: Any) -> SparseTensor:
    """Give the filled places for which `to_retain` holds.

    Args:
        sp_input: The SparseTensor.
        to_retain: Boolean node or array [n].
    """
    sp_input = SparseTensor.from_value(sp_input)
    kept = as_node(to_retain)
    kept.shape.assert_is_compatible_with(sp_input.values.shape)
    return _parts("SparseRetain", (*_inputs(sp_input), kept), sp_input.dtype, sp_input.shape)


@computes("SparseRetain")
def _retain(places: Any, filled: Any, shape: Any, mask: Any) -> Any:
    at = np.flatnonzero(mask)
    return places[at], take_rows(filled, at), shape


def sparse_reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """Give a SparseTensor in another shape, as `gs.reshape` does.

    Args:
        sp_input: The SparseTensor.
        shape: Ints or integer node; one may be -1.
        name: Accepted as in TensorFlow.
    """
    sp_input = SparseTensor.from_value(sp_input)
    wanted = as_node(shape, None if isinstance(shape, Node) else "int64")
    known, count = static_value(wanted), sp_input.shape.num_elements()
    static = sizes_of(wanted) if known is None or count is None else _resized(count, known)
    return _parts("SparseReshape", (*_inputs(sp_input), wanted), sp_input.dtype, static, sp_input.values.shape)


def _resized(count: int, new: Any) -> list[int]:
    sizes = [int(size) for size in new]
    if sizes.count(-1) > 1:
        raise ValueError(f"At most one dimension can be inferred (-1). Found: {sizes}")
    if -1 in sizes:
        sizes[sizes.index(-1)] = count // max(int(-np.prod(sizes)), 1)
    if int(np.prod(sizes)) != count:
        raise ValueError(f"Cannot reshape a tensor with {count} elements to shape {[int(size) for size in new]}.")
    return sizes


@computes("SparseReshape")
def _reshape(places: Any, filled: Any, old: Any, new: Any) -> Any:
    sizes = _resized(int(np.prod(old)), new)
    flat = np.ravel_multi_index(tuple(places.T), [int(size) for size in old])
    return np.stack(np.unravel_index(flat, sizes), axis=1).astype(np.int64), filled, np.array(sizes, np.int64)


def sparse_transpose(
    sp_input: SparseTensor, perm: Sequence[int] | None = None, name: str | None = None
) -> SparseTensor:
    """Give a SparseTensor with its axes in another order.

    Args:
        sp_input: The SparseTensor.
        perm: The order; None to reverse it.
        name: Accepted as in TensorFlow.
    """
    sp_input = SparseTensor.from_value(sp_input)
    axes, dims = None if perm is None else list(perm), sp_input.shape.dims
    static = None if dims is None else dims[::-1] if axes is None else [dims[axis] for axis in axes]
    return _parts("SparseTranspose", _inputs(sp_input), sp_input.dtype, static, perm=axes)


@computes("SparseTranspose")
def _transpose(places: Any, filled: Any, shape: Any, *, perm: Any) -> Any:
    axes = list(reversed(range(len(shape)))) if perm is None else perm
    turned = places[:, axes]
    at = _in_order(turned)
    return turned[at], take_rows(filled, at), np.asarray(shape)[axes]


def sparse_concat(axis: int, sp_inputs: Sequence[SparseTensor], name: str | None = None) -> SparseTensor:
    """Join sparse tensors along an axis.

    Args:
        axis: The axis.
        sp_inputs: The SparseTensors, of equal sizes along the other axes.
        name: Accepted as in TensorFlow.

    Raises:
        TypeError: If one is none.
        InvalidArgumentError: In the run, if sizes differ.
    """
    sp_inputs = [SparseTensor.from_value(sp) for sp in sp_inputs]
    if len(sp_inputs) == 1:
        return sp_inputs[0]
    rank, counts = TensorShape([None]), [sp.values.shape.num_elements() for sp in sp_inputs]
    for sp in sp_inputs:
        rank = rank.merge_with(sp.dense_shape.shape).merge_with(sp.indices.shape[1:])
    static, count = None if rank[0].value is None else [None] * int(rank[0]), None if None in counts else sum(counts)
    inputs = [part for sp in sp_inputs for part in _inputs(sp)]
    return _parts("SparseConcat", inputs, sp_inputs[0].dtype, static, [count], axis=axis)


@computes("SparseConcat")
def _concat(*parts: Any, axis: Any) -> Any:
    groups = [parts[at : at + 3] for at in range(0, len(parts), 3)]
    sizes = np.array(groups[0][2])
    (along,) = from_front([axis], len(sizes))
    moved, start = [], 0
    for places, _, shape in groups:
        if np.any(np.delete(shape, along) != np.delete(sizes, along)):
            raise InvalidArgumentError(f"Sizes differ along other axes than {along}: {list(sizes)} and {list(shape)}.")
        places = np.array(places)
        places[:, along] += start
        start += int(shape[along])
        moved.append(places)
    sizes[along] = start
    whole = np.concatenate(moved)
    at = _in_order(whole)
    filled = [group[1] for group in groups]
    if filled and np.asarray(filled[0]).dtype == object:
        return whole[at], np.concatenate(filled)[at], sizes
    return whole[at], take_rows(np.concatenate(filled), at), sizes


def sparse_slice(sp_input: SparseTensor, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """Give the part that starts at `start` and has `size`.

    Args:
        sp_input: The SparseTensor.
        start: Ints or integer node [rank].
        size: The same.
        name: Accepted as in TensorFlow.
    """
    sp_input = SparseTensor.from_value(sp_input)
    first, count = (as_node(item, None if isinstance(item, Node) else "int64") for item in (start, size))
    unknown = None if sp_input.shape.dims is None else [None] * len(sp_input.shape)
    return _parts("SparseSlice", (*_inputs(sp_input), first, count), sp_input.dtype, unknown)


@computes("SparseSlice")
def _slice(places: Any, filled: Any, shape: Any, begin: Any, sizes: Any) -> Any:
    end = np.minimum(np.asarray(begin) + sizes, shape)
    at = np.flatnonzero(np.all((places >= begin) & (places < end), axis=1))
    return places[at] - begin, take_rows(filled, at), np.maximum(end - begin, 0).astype(np.int64)


def sparse_add(a: Any, b: Any, threshold: Any = 0, thresh: Any = None) -> Any:
    """Add two tensors, at least one of them sparse.

    Args:
        a: SparseTensor, node or array.
        b: Another of the same shape.
        threshold: Where both of two sparse ones have a value, a sum whose absolute value is below it is left out.
        thresh: Older name of `threshold`.

    Returns:
        A SparseTensor for two of them, else a node.

    Raises:
        TypeError: If neither is a SparseTensor.
    """
    a, b = (SparseTensor.from_value(one) if isinstance(one, SparseTensorValue) else one for one in (a, b))
    least = threshold if thresh is None else thresh
    if not isinstance(a, SparseTensor) and not isinstance(b, SparseTensor):
        raise TypeError("At least one input should be SparseTensor; do you mean to use gs.add()?")
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return _parts("SparseAdd", (*_inputs(a), *_inputs(b)), a.dtype, a.shape.merge_with(b.shape), least=least)
    sparse, dense = (a, b) if isinstance(a, SparseTensor) else (b, a)
    node = as_node(dense, None if isinstance(dense, Node) else sparse.dtype)
    return Node("SparseTensorDenseAdd", (*_inputs(sparse), node), dtype=node.dtype, shape=node.shape)


@computes("SparseTensorDenseAdd")
def _dense_add(places: Any, filled: Any, shape: Any, whole: Any) -> Any:
    sizes = [int(size) for size in shape]
    flat = np.ravel_multi_index(tuple(places.T), sizes)
    return whole + np.reshape(scatter_rows(filled, flat, (int(np.prod(sizes)),)), sizes)


@computes("SparseAdd")
def _add(places: Any, filled: Any, shape: Any, others: Any, values: Any, other_shape: Any, *, least: Any) -> Any:
    if np.any(np.asarray(shape) != other_shape):
        raise InvalidArgumentError(f"The shapes differ: {list(shape)} and {list(other_shape)}.")
    sizes = [int(size) for size in shape]
    flat = np.ravel_multi_index(tuple(np.concatenate([places, others]).T), sizes)
    distinct, position, counts = np.unique(flat, return_inverse=True, return_counts=True)
    total = scatter_rows(np.concatenate([filled, values]), position.reshape(-1), (len(distinct),))
    large = np.flatnonzero((counts == 1) | (np.abs(total) >= least))
    indices = np.stack(np.unravel_index(distinct[large], sizes), axis=1).astype(np.int64)
    return indices, take_rows(total, large), shape


def sparse_to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Node:
    """Give a boolean array that says for each row, and each id below `vocab_size`, whether the row has it.

    Args:
        sp_input: SparseTensor of ids, int32 or int64.
        vocab_size: How many ids there are.
        name: Name of the node; default "SparseToIndicator".

    Raises:
        TypeError: If the ids are no integers.
    """
    sp_input = SparseTensor.from_value(sp_input)
    if not sp_input.dtype.is_integer:
        raise TypeError("sp_input must have int32 or int64 values")
    lead = sp_input.shape.as_list()[:-1] if sp_input.shape.dims is not None else None
    return Node(
        "SparseToIndicator", _inputs(sp_input), name=name or "SparseToIndicator", dtype="bool",
        shape=TensorShape(None if lead is None else [*lead, int(vocab_size)]),
        attrs={"stops_gradient": True, "vocab_size": int(vocab_size)},
    )  # fmt: skip


@computes("SparseToIndicator")
def _indicator(places: Any, ids: Any, shape: Any, *, vocab_size: Any) -> Any:
    indicator = np.zeros([*(int(size) for size in shape[:-1]), vocab_size], np.bool_)
    indicator[(*places[:, :-1].T, np.asarray(ids))] = True
    return indicator


def sparse_fill_empty_rows(
    sp_input: SparseTensor, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Node]:
    """Give a sparse matrix with a value in the first column of each row that has none.

    Args:
        sp_input: SparseTensor of rank 2.
        default_value: The value.
        name: Accepted as in TensorFlow.

    Returns:
        The SparseTensor, and a boolean vector that says which rows had none.
    """
    sp_input = SparseTensor.from_value(sp_input)
    default = as_node(default_value, None if isinstance(default_value, Node) else sp_input.dtype)
    sparse = _parts("SparseFillEmptyRows", (*_inputs(sp_input), default), sp_input.dtype, sp_input.shape)
    rows = sp_input.shape.as_list()[0] if sp_input.shape.dims is not None else None
    return sparse, tuple_item(sparse.values.inputs[0], 3, name="empty_row_indicator", dtype="bool", shape=[rows])


@computes("SparseFillEmptyRows")
def _fill_rows(places: Any, filled: Any, shape: Any, value: Any) -> Any:
    empty = np.setdiff1d(np.arange(int(shape[0])), places[:, 0])
    added = np.zeros((len(empty), places.shape[1]), np.int64)
    added[:, 0] = empty
    whole = np.concatenate([places, added])
    at = _in_order(whole)
    if np.asarray(filled).dtype == object:
        more = np.empty(len(empty), object)
        more[:] = [value[()] if isinstance(value, np.ndarray) else value] * len(empty)
        values = np.concatenate([filled, more])[at]
    else:
        values = take_rows(np.concatenate([filled, np.reshape(value, (1,)) * np.ones(len(empty), filled.dtype)]), at)
    bare = np.zeros(int(shape[0]), np.bool_)
    bare[empty] = True
    return whole[at], values, shape, bare


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """Give the elements of a dense value that are not zero.

    Args:
        tensor: Node or array.
        name: Accepted as in TensorFlow.
    """
    node = as_node(tensor)
    return _parts("DenseToSparse", (node,), node.dtype, node.shape)


@computes("DenseToSparse")
def _find(whole: Any) -> Any:
    places = np.argwhere(whole != (b"" if whole.dtype == object else 0)).astype(np.int64)
    flat = np.ravel_multi_index(tuple(places.T), whole.shape) if whole.ndim else np.zeros(len(places), int)
    return places, take_rows(np.reshape(whole, (-1,)), flat), np.array(whole.shape, np.int64)


def _values(node: Node) -> list[int]:
    """Give where the filled values are among the inputs, each between places and a shape."""
    return [at for at, item in enumerate(node.inputs) if item.dtype.is_floating]


rearranges("SparseReorder", "SparseReshape", "SparseRetain", "SparseTranspose", "SparseSlice", data=lambda node: [1])
rearranges("SparseFillEmptyRows", "SparseConcat", data=_values)


@gradient_of("SparseTensorDenseAdd")
def _sparse_dense_add_gradient(node: Node, grad: Node) -> Any:
    return None, gather_nd(grad, node.inputs[0]), None, grad


@gradient_of("DenseToSparse")
def _from_dense_gradient(node: Node, grads: Any) -> Any:
    (whole,) = node.inputs
    places = tuple_item(node, 0, dtype="int64", shape=[None, whole.shape.ndims])
    return (scatter_nd(places, grads[1], shape_of(whole)),)


@gradient_of("SparseAdd")
def _sparse_add_gradient(node: Node, grads: Any) -> Any:
    """Each summand's values get the gradient of the sum at their places, 0 where that was left out."""
    places = tuple_item(node, 0, dtype="int64", shape=[None, None])

    def of(at: int) -> Node:
        inputs = (grads[1], places, node.inputs[2], node.inputs[at])
        return Node("SparseAddGrad", inputs, dtype=grads[1].dtype, shape=node.inputs[at + 1].shape)

    return None, of(0), None, None, of(3), None


@computes("SparseAddGrad")
def _add_grad(g: Any, at: Any, sizes: Any, own: Any) -> Any:
    sizes = [int(size) for size in sizes]
    of_sum, mine = (np.ravel_multi_index(tuple(np.asarray(item).T), sizes) for item in (at, own))
    found = np.minimum(np.searchsorted(of_sum, mine), max(len(of_sum) - 1, 0))
    held = of_sum[found] == mine if len(of_sum) else np.zeros(len(mine), bool)
    return np.where(held, g[found] if len(of_sum) else 0, 0).astype(g.dtype)


rearranges("SparseAddGrad")

"""Lookups in embedding tables, whole or spread over several Variables.

Of a table that is a Variable, a run pulls only the rows that it looks up, and the gradient is
IndexedSlices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import composed, gradient_of, no_gradient
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import reshape, reshape_like
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import is_node, sizes_of
from globalstep.tf1.ops.gradient_ops import ones, rearranges, zeros
from globalstep.tf1.ops.indexing_ops import gather
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.primitives import distinct_ids, scatter_rows, take_rows
from globalstep.tf1.ops.reduction_ops import reduce_prod, reduce_sum
from globalstep.tf1.ops.segment_ops import unsorted_segment_sum
from globalstep.tf1.ops.sparse_ops import sparse_reshape


def _tables(params: Any) -> list[Node]:
    if params is None or (isinstance(params, (list, tuple)) and not params):
        raise ValueError("Need at least one param")
    if isinstance(params, (list, tuple)):
        return [as_node(table) for table in params]
    if not isinstance(params, Node) and hasattr(params, "__iter__") and is_node(params):
        return [as_node(table) for table in params]  # a partitioned Variable gives its parts
    return [as_node(params)]


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Node:
    """Give the rows `ids` of a table that may be spread over several Variables.

    Args:
        params: A table (Variable, node or array), a list of tables, or a partitioned Variable.
        ids: Integer node or array of any shape.
        partition_strategy: Where row i of the whole is: "mod", in table i % n at i // n; "div", in the
            table in whose contiguous range i lies, the first ones being one row longer.
        name: Name of the node.
        validate_indices: Accepted; indices are always checked.
        max_norm: If given, rows with a larger 2-norm are scaled down to it.

    Returns:
        A node of shape ids.shape + params.shape[1:].

    Raises:
        ValueError: Without tables, or for an unknown strategy.
        InvalidArgumentError: In the run, if an id is out of range.
    """
    tables, numbers = _tables(params), as_node(ids)
    if len(tables) == 1:
        rows = gather(tables[0], numbers, name=name or "embedding_lookup")
        return _clipped(rows, numbers, max_norm)
    if partition_strategy not in ("mod", "div"):
        raise ValueError(f"Unrecognized partition strategy: {partition_strategy}")
    return _clipped(_spread(tables, numbers, partition_strategy, name), numbers, max_norm)


def _rows_of_all(tables: list[Node]) -> int:
    sizes = [None if t.shape.dims is None else t.shape.as_list()[0] for t in tables]
    if any(size is None for size in sizes):
        raise ValueError("partition_strategy 'div' needs tables whose number of rows is known.")
    return sum(size for size in sizes if size is not None)


def _places(ids: Any, count: int, total: int | None) -> tuple[Any, Any]:
    """Give the table, of `count`, that each id [n] is in, and its row there; without a total they alternate."""
    if total is None:
        return ids % count, ids // count
    each, longer = divmod(total, count)
    border = longer * (each + 1)
    early = ids < border
    owner = np.where(early, ids // (each + 1), longer + (ids - border) // max(each, 1))
    return owner, np.where(early, ids % (each + 1), (ids - border) % max(each, 1))


def _sort(numbers: Any, count: int, total: int | None) -> Any:
    distinct, position = distinct_ids(np.asarray(numbers).reshape(-1))
    owner, place = _places(distinct, count, total)
    if owner.size and (owner.min() < 0 or owner.max() >= count):
        wrong = distinct[(owner < 0) | (owner >= count)][0]
        raise InvalidArgumentError(f"Row id {wrong} is in none of the {count} tables of this lookup.")
    order = np.argsort(owner, kind="stable")
    where = np.empty(order.size, np.int64)
    where[order] = np.arange(order.size)
    ends = np.cumsum(np.bincount(owner, minlength=count))[:-1]
    return (*np.split(place[order], ends), where[position])


kernel_of("SortIds")(lambda node: partial(_sort, count=node.attrs["tables"], total=node.attrs["rows"]))


def _spread(tables: list[Node], ids: Node, strategy: str, name: str | None) -> Node:
    """Look up ids in several tables: each id once in its table, and its row given to all who name it."""
    count, total = len(tables), _rows_of_all(tables) if strategy == "div" else None
    attrs = {"tuple": True, "stops_gradient": True, "tables": count, "rows": total}
    sorted_ids = Node("SortIds", (ids,), attrs=attrs)
    parts = [tuple_item(sorted_ids, i, dtype=ids.dtype, shape=[None]) for i in range(count)]
    position = tuple_item(sorted_ids, count, dtype="int64", shape=[None])
    gathered = [gather(table, part) for table, part in zip(tables, parts, strict=True)]
    shape = TensorShape(None)
    if tables[0].shape.dims is not None and ids.shape.dims is not None:
        shape = TensorShape([*ids.shape.as_list(), *tables[0].shape.as_list()[1:]])
    return Node(
        "EmbeddingLookup", (ids, position, *gathered), name=name or "embedding_lookup", dtype=tables[0].dtype,
        shape=shape, attrs={"partition_strategy": strategy},
    )  # fmt: skip


@computes("EmbeddingLookup")
def _restore(numbers: Any, where: Any, *rows: Any) -> Any:
    values = take_rows(np.concatenate(rows), where)
    return np.reshape(values, (*np.shape(numbers), *np.shape(values)[1:]))


no_gradient("SortIds")


@gradient_of("EmbeddingLookup")
def _lookup_gradient(node: Node, grad: Node) -> Any:
    """Each table's gathered rows get the sum of the gradients of those who named them."""
    _, position, *tables = node.inputs
    row = tables[0].shape.as_list()[1:]
    parts = Node("EmbeddingLookupGrad", (grad, position, *tables), attrs={"tuple": True})
    return [
        None,
        None,
        *(tuple_item(parts, at, dtype=table.dtype, shape=[None, *row]) for at, table in enumerate(tables)),
    ]


@computes("EmbeddingLookupGrad")
def _add_up(g: Any, where: Any, *rows: Any) -> Any:
    counts = [len(part) for part in rows]
    whole = scatter_rows(g, where, (sum(counts), *rows[0].shape[1:]))
    return tuple(np.split(whole, np.cumsum(counts)[:-1]))


@gradient_of("EmbeddingLookupGrad")
def _lookup_grad_gradient(node: Node, grads: Any) -> Any:
    grad, position, *tables = node.inputs
    given = [*grads, *[None] * (len(tables) - len(grads))]
    rows = [zeros(table) if part is None else part for table, part in zip(tables, given, strict=True)]
    return [reshape_like(gather(concat(rows, 0), position), grad), *[None] * (1 + len(tables))]


def _clipped(rows: Node, ids: Node, max_norm: float | None) -> Node:
    if max_norm is None:
        return rows
    attrs = {"max_norm": float(max_norm)}
    return Node("ClipRowsByNorm", (rows, ids), dtype=rows.dtype, shape=rows.shape, attrs=attrs)


@computes("ClipRowsByNorm")
def _clip_rows(values: Any, numbers: Any, *, max_norm: float) -> Any:
    axes = tuple(range(np.ndim(numbers), np.ndim(values)))
    norms = np.sqrt(np.sum(values * values, axis=axes, keepdims=True))
    return values * max_norm / np.maximum(norms, np.asarray(max_norm, values.dtype))


@gradient_of("ClipRowsByNorm")
@composed
def _clipped_gradient(node: Node) -> Node:
    rows, ids = node.inputs
    most: float = node.attrs["max_norm"]
    axes = list(range(len(ids.shape), len(rows.shape)))
    norms = math_ops.sqrt(reduce_sum(math_ops.square(rows), axes, True))
    return rows * most / math_ops.maximum(norms, most)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Node:
    """Look up several ids for each row and combine what is found.

    Args:
        params: As for `embedding_lookup`.
        sp_ids: The ids of each row; every row has at least one.
        sp_weights: What each id weighs, at the same places; None for 1.
        partition_strategy: As for `embedding_lookup`.
        name: Name of the node.
        combiner: "sum", "mean" (divided by the sum of weights; the default) or "sqrtn" (divided by the
            root of the sum of squared weights).
        max_norm: As for `embedding_lookup`.

    Returns:
        A node [rows, ...].

    Raises:
        ValueError: For an unknown combiner.
        TypeError: If `sp_ids` or `sp_weights` is no SparseTensor.
    """
    combiner = "mean" if combiner is None else combiner
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError("combiner must be one of 'mean', 'sqrtn' or 'sum'")
    if not isinstance(sp_ids, SparseTensor):
        raise TypeError("sp_ids must be SparseTensor")
    if sp_weights is not None and not isinstance(sp_weights, SparseTensor):
        raise TypeError("sp_weights must be either None or SparseTensor")
    sp_ids.values.shape.assert_is_compatible_with((sp_weights or sp_ids).values.shape)
    dense = embedding_lookup(params, sp_ids.values, partition_strategy, max_norm=max_norm)
    inputs = [dense, sp_ids.indices] + ([] if sp_weights is None else [math_ops.cast(sp_weights.values, dense.dtype)])
    dims = sizes_of(sp_ids.dense_shape)
    shape = None
    if dense.shape.dims is not None:
        shape = [dims[0] if dims else None, *dense.shape.as_list()[1:]]
    return Node(
        "EmbeddingLookupSparse", inputs, name=name or "embedding_lookup_sparse", dtype=dense.dtype,
        shape=TensorShape(shape), attrs={"combiner": combiner},
    )  # fmt: skip


@computes("EmbeddingLookupSparse")
def _combine(rows: Any, places: Any, weights: Any = None, *, combiner: str) -> Any:
    owner = places[:, 0]
    count = int(owner[-1]) + 1 if owner.size else 0
    weights = np.ones(owner.shape, rows.dtype) if weights is None else weights
    column = (-1, *(1,) * (np.ndim(rows) - 1))
    total = scatter_rows(rows * np.reshape(weights, column), owner, (count, *np.shape(rows)[1:]))
    if combiner == "sum":
        return total
    if combiner == "mean":
        return total / np.reshape(scatter_rows(weights, owner, (count,)), column)
    return total / np.sqrt(np.reshape(scatter_rows(weights * weights, owner, (count,)), column))


@gradient_of("EmbeddingLookupSparse")
@composed
def _combined(node: Node) -> Node:
    rows, places, *weights = node.inputs
    owner, count = places[:, 0], shape_of(node)[0]
    column = [-1, *[1] * (len(rows.shape) - 1)]
    weight = weights[0] if weights else ones(math_ops.cast(owner, rows.dtype))
    total = unsorted_segment_sum(rows * reshape(weight, column), owner, count)
    if node.attrs["combiner"] == "sum":
        return total
    if node.attrs["combiner"] == "mean":
        return total / reshape(unsorted_segment_sum(weight, owner, count), column)
    return total / math_ops.sqrt(reshape(unsorted_segment_sum(math_ops.square(weight), owner, count), column))


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Node:
    """Look up several ids for each row, where a row may have none, and ids may be invalid.

    Ids below 0, and those whose weight is not above 0 (but for `combiner` "sum"), are left out.

    Args:
        embedding_weights: As `params` of `embedding_lookup`.
        sparse_ids: The ids of each row.
        sparse_weights: What each id weighs, at the same places; None for 1.
        combiner: As for `embedding_lookup_sparse`.
        default_id: The id of rows without any; None for a row of zeros.
        name: Name scope of the nodes; default "embedding_lookup".
        partition_strategy: As for `embedding_lookup`.
        max_norm: As for `embedding_lookup`.

    Returns:
        A node [rows, ...].

    Raises:
        ValueError: Without a table.
    """
    if embedding_weights is None or (isinstance(embedding_weights, (list, tuple)) and not embedding_weights):
        raise ValueError(f"Missing embedding_weights {embedding_weights}.")
    rank = sparse_ids.indices.shape.as_list()[1] if sparse_ids.indices.shape.ndims else None
    if rank is not None and rank > 2:
        # The last axis has what is combined; all before it are rows.
        sizes = sparse_ids.dense_shape
        rows = concat([reshape(reduce_prod(sizes[:-1]), [1]), sizes[-1:]], 0)
        weighed = None if sparse_weights is None else sparse_reshape(sparse_weights, rows)
        dense = safe_embedding_lookup_sparse(
            embedding_weights, sparse_reshape(sparse_ids, rows), weighed, combiner, default_id, name,
            partition_strategy, max_norm,
        )  # fmt: skip
        whole = reshape(dense, concat([math_ops.cast(sizes[:-1], "int32"), shape_of(dense)[1:]], 0))
        whole.set_shape([*[None] * (rank - 1), *dense.shape.as_list()[1:]])
        return whole
    with sparse_ids.graph.name_scope(name or "embedding_lookup"):
        weights = [] if sparse_weights is None else [sparse_weights.values]
        inputs = (sparse_ids.indices, sparse_ids.values, sparse_ids.dense_shape, *weights)
        attrs = {"tuple": True, "stops_gradient": True, "combiner": combiner, "default_id": default_id or 0}
        parts = Node("FillRowsWithoutIds", inputs, name="SparseFillEmptyRows", attrs=attrs)
        places = tuple_item(parts, 0, dtype="int64", shape=[None, 2])
        ids = SparseTensor(places, tuple_item(parts, 1, dtype=sparse_ids.dtype, shape=[None]), sparse_ids.dense_shape)
        weighed = None
        if sparse_weights is not None:
            values = tuple_item(parts, 2, dtype=sparse_weights.dtype, shape=[None])
            weighed = SparseTensor(places, values, sparse_ids.dense_shape)
        dense = embedding_lookup_sparse(embedding_weights, ids, weighed, partition_strategy, None, combiner, max_norm)
        if default_id is not None:
            return dense
        bare = tuple_item(parts, 3, dtype="bool", shape=[None])
        return Node("ClearRows", (dense, bare), dtype=dense.dtype, shape=dense.shape)


@computes("FillRowsWithoutIds")
def _fill_rows(places: Any, ids: Any, shape: Any, factors: Any = None, *, combiner: str, default_id: int) -> Any:
    valid = np.asarray(ids) >= 0
    if factors is not None and combiner != "sum":
        valid = valid & (factors > 0)
    places, ids = places[valid], ids[valid]
    factors = np.ones(len(ids), np.float32) if factors is None else factors[valid]
    empty = np.setdiff1d(np.arange(int(shape[0])), places[:, 0])
    added = np.zeros((len(empty), places.shape[1]), places.dtype)
    added[:, 0] = empty
    places = np.concatenate([places, added])
    order = np.lexsort(tuple(places[:, axis] for axis in reversed(range(places.shape[1]))))
    ids = np.concatenate([ids, np.full(len(empty), default_id, ids.dtype)])
    factors = np.concatenate([factors, np.ones(len(empty), factors.dtype)])
    bare = np.zeros(int(shape[0]), np.bool_)
    bare[empty] = True
    return places[order], ids[order], factors[order], bare


@computes("ClearRows")
def _clear_rows(rows: Any, bare: Any) -> Any:
    return np.where(np.reshape(bare, (-1, *(1,) * (np.ndim(rows) - 1))), np.zeros((), rows.dtype), rows)


rearranges("ClearRows")

"""Confusion matrices.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/confusion_matrix.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.ops.array_ops import expand_dims, reshape, squeeze
from globalstep.tf1.ops.array_ops import shape as shape_of


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
    weights: Any = None,
) -> Node:
    """Count how often each class (row) was taken for each class (column).

    Args:
        labels: The true classes: integers [n], or [n, 1].
        predictions: The predicted ones, of the same shape.
        num_classes: How many classes there are: an int or a scalar node; default one more than the largest.
        dtype: Dtype of the counts.
        name: Name of the node; default "confusion_matrix".
        weights: What each pair counts: [n]; default 1.

    Returns:
        A node [classes, classes].

    Raises:
        InvalidArgumentError: In the run, if a class is negative, or not below `num_classes`.
    """
    truth, guessed = as_node(labels), as_node(predictions)
    truth, guessed = of_rank(truth, guessed), of_rank(guessed, truth)
    counted = [] if num_classes is None else [as_node(num_classes)]
    weighed = [] if weights is None else [as_node(weights)]
    for one in (guessed, *weighed):
        truth.shape.assert_is_compatible_with(one.shape)
    static = None if not counted else counted[0].attrs.get("value")
    size = None if static is None else int(static)
    return Node(
        "ConfusionMatrix", (truth, guessed, *counted, *weighed), name=name or "confusion_matrix", dtype=dtype,
        shape=[size, size],
        attrs={"stops_gradient": True, "counted": num_classes is not None, "weighed": weights is not None},
    )  # fmt: skip


def of_rank(value: Node, like: Node, more: int = 0, expands: bool = False) -> Node:
    """Drop a last dimension of size 1 where a value has one more than another's and `more`.

    With `expands`, give one to what has one less and is no scalar.
    """
    own, other = value.shape.ndims, like.shape.ndims
    if own is None or other is None:
        if own == 0 or (own and not expands and value.shape.as_list()[-1] not in (1, None)):
            return value
        return Node("OfRank", (value, like), dtype=value.dtype, attrs={"more": more, "expands": expands})
    longer = own and own - other - more
    return squeeze(value, [-1]) if longer == 1 else expand_dims(value, -1) if expands and longer == -1 else value


@computes("OfRank")
def _of_rank(value: Any, like: Any, *, more: int, expands: bool) -> Any:
    longer = np.ndim(value) and np.ndim(value) - np.ndim(like) - more
    return np.squeeze(value, -1) if longer == 1 else value[..., None] if expands and longer == -1 else value


@gradient_of("OfRank")
def _of_rank_gradient(node: Node, grad: Node) -> Any:
    return reshape(grad, shape_of(node.inputs[0])), None


@kernel_of("ConfusionMatrix")
def _counting(node: Node) -> Any:
    counted, weighed, dtype = node.attrs["counted"], node.attrs["weighed"], node.dtype.as_numpy_dtype

    def count(true: Any, predicted: Any, *others: Any) -> Any:
        pairs = [np.asarray(item).astype(np.int64).reshape(-1) for item in (true, predicted)]
        classes = int(others[0]) if counted else int(max((one.max(initial=-1) for one in pairs), default=-1)) + 1
        for values, what, bound in zip(pairs, ("`labels`", "`predictions`"), ("label", "prediction"), strict=True):
            if values.size and values.min() < 0:
                raise InvalidArgumentError(f"assertion failed: [{what} contains negative values]")
            if values.size and values.max() >= classes:
                raise InvalidArgumentError(
                    f"assertion failed: [{what} out of bound] {bound} {values.max()} >= {classes}"
                )
        each = np.asarray(others[-1]).reshape(-1).astype(dtype) if weighed else None
        counts = np.bincount(pairs[0] * classes + pairs[1], each, classes * classes)
        return counts.astype(dtype).reshape(classes, classes)

    return count

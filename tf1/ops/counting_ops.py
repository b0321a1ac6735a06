"""Confusion matrices.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/confusion_matrix.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.ops.array_ops import squeeze


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
    if truth.shape.ndims == 2 and truth.shape.as_list()[1] == 1 and guessed.shape.ndims == 1:
        truth = squeeze(truth, [1])
    if guessed.shape.ndims == 2 and guessed.shape.as_list()[1] == 1 and truth.shape.ndims == 1:
        guessed = squeeze(guessed, [1])
    if not truth.shape.is_compatible_with(guessed.shape):
        raise ValueError(f"Shapes {truth.shape} and {guessed.shape} are incompatible")
    counted = [] if num_classes is None else [as_node(num_classes)]
    weighed = [] if weights is None else [as_node(weights)]
    static = None if not counted else counted[0].attrs.get("value")
    size = None if static is None else int(static)
    return Node(
        "ConfusionMatrix", (truth, guessed, *counted, *weighed), name=name or "confusion_matrix", dtype=dtype,
        shape=[size, size],
        attrs={"stops_gradient": True, "counted": num_classes is not None, "weighed": weights is not None},
    )  # fmt: skip


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
        each = np.asarray(others[-1]).reshape(-1) if weighed else np.ones(pairs[0].size, np.int64)
        matrix = np.zeros((classes, classes), dtype)
        np.add.at(matrix, (pairs[0], pairs[1]), each.astype(dtype))
        return matrix

    return count

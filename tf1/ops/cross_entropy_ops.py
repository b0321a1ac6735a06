"""Losses of classifiers from unscaled scores: the cross entropies."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.execution.products import in_parts
from globalstep.tf1.gradients.registry import composed, gradient_of, no_gradient, saved
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes, saving_kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import expand_dims, stop_gradient
from globalstep.tf1.ops.building import elementwise, normal_axes, operands, require_float
from globalstep.tf1.ops.gradient_ops import unbroadcast

#: A cross entropy takes as long as so many multiplications for each score.
_PASSES = 16


def _check_arguments(function: str, sentinel: Any, labels: Any, logits: Any) -> None:
    if sentinel is not None:
        raise ValueError(f"Only call `{function}` with named arguments (labels=..., logits=..., ...)")
    if labels is None or logits is None:
        raise ValueError("Both labels and logits must be provided.")


def _log_softmax(x: Any, *, axis: int) -> Any:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def log_softmax_of(scores: Node, axis: int, name: str | None = None) -> Node:
    """Give log(softmax(scores)); see `globalstep.tf1.ops.nn_ops.log_softmax`."""
    return elementwise("LogSoftmax", scores, name or "LogSoftmax", axis=axis)


computes("LogSoftmax", _log_softmax)


def _like(labels: Any, logits: Any) -> Any:
    """Give labels in the dtype of the scores, as TensorFlow casts them: one_hot gives integers by itself."""
    if not isinstance(logits, Node) or (wanted := as_node(labels)).dtype == logits.dtype:
        return labels
    return math_ops.cast(wanted, logits.dtype)


def softmax_cross_entropy_with_logits_v2(
    _sentinel: Any = None,
    labels: Any = None,
    logits: Any = None,
    dim: int | None = None,
    name: str | None = None,
    axis: int | None = None,
) -> Node:
    """Give the cross entropy of softmax(logits) with distributions of classes.

    Args:
        _sentinel: Must not be given: call it with named arguments.
        labels: Node or array [..., classes]: each row a distribution; cast to the dtype of `logits`.
        logits: Floating node or array of the same shape: unscaled scores.
        dim: Older name of `axis`.
        name: Name of the node.
        axis: The axis of the classes; default the last.

    Returns:
        A node [...], one loss for each row. Gradients flow to `labels` too.

    Raises:
        ValueError: If an argument is missing, or the shapes differ.
    """
    _check_arguments("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    scores, wanted = operands("SoftmaxCrossEntropyWithLogits", logits, _like(labels, logits), ("logits", "labels"))
    require_float("SoftmaxCrossEntropyWithLogits", scores, "features")
    if not scores.shape.is_compatible_with(wanted.shape):
        raise ValueError(
            f"logits and labels must have the same shape ({scores.shape} vs {wanted.shape}): "
            f"{scores.name!r}, {wanted.name!r}"
        )
    which = dim if axis is None else axis
    place = normal_axes(-1 if which is None else which, scores)[0]
    shape = scores.shape if scores.shape.dims is not None else wanted.shape
    rest = None if shape.dims is None else [n for i, n in enumerate(shape.as_list()) if i != place % len(shape)]
    return Node(
        "SoftmaxCrossEntropyWithLogits",
        (scores, wanted),
        name=name or "softmax_cross_entropy_with_logits",
        dtype=scores.dtype,
        shape=TensorShape(rest),
        attrs={"axis": place},
    )


def _cross_entropy_found(logits: Any, labels: Any, axis: int) -> tuple[Any, Any]:
    logs = _log_softmax(logits, axis=axis)
    return -np.sum(labels * logs, axis=axis), logs


computes("SoftmaxCrossEntropyWithLogits", lambda x, labels, *, axis: _cross_entropy_found(x, labels, axis)[0])
saving_kernel_of("SoftmaxCrossEntropyWithLogits")(lambda node: partial(_cross_entropy_found, axis=node.attrs["axis"]))


# TensorFlow's gradient at the scores takes the labels of a row as a distribution: they add up to 1.
@gradient_of("SoftmaxCrossEntropyWithLogits")
def _cross_entropy_gradient(node: Node, grad: Node) -> Any:
    (scores, labels), logs, attrs = node.inputs, saved(node), {"axis": node.attrs["axis"]}
    inputs, others = (grad, scores, labels, logs), (grad, scores, logs)
    return (
        Node("SoftmaxCrossEntropyGrad", inputs, dtype=scores.dtype, shape=scores.shape, attrs=dict(attrs)),
        Node("SoftmaxCrossEntropyLabelsGrad", others, dtype=labels.dtype, shape=labels.shape, attrs=dict(attrs)),
    )


computes("SoftmaxCrossEntropyGrad", lambda g, x, p, logs, *, axis: np.expand_dims(g, axis) * (np.exp(logs) - p))
computes("SoftmaxCrossEntropyLabelsGrad", lambda g, x, logs, *, axis: -np.expand_dims(g, axis) * logs)


@gradient_of("SoftmaxCrossEntropyGrad")
@composed
def _cross_entropy_grad_gradient(node: Node) -> Node:
    g, scores, labels, _ = node.inputs
    return expand_dims(g, node.attrs["axis"]) * (math_ops.exp(log_softmax_of(scores, node.attrs["axis"])) - labels)


@gradient_of("SoftmaxCrossEntropyLabelsGrad")
@composed
def _cross_entropy_labels_grad_gradient(node: Node) -> Node:
    g, scores, _ = node.inputs
    return -expand_dims(g, node.attrs["axis"]) * log_softmax_of(scores, node.attrs["axis"])


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: Any = None,
    logits: Any = None,
    dim: int | None = None,
    name: str | None = None,
    axis: int | None = None,
) -> Node:
    """Give the cross entropy of softmax(logits), with labels taken as constants by gradients.

    The arguments are those of `softmax_cross_entropy_with_logits_v2`.
    """
    _check_arguments("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    _, wanted = operands("SoftmaxCrossEntropyWithLogits", logits, _like(labels, logits), ("logits", "labels"))
    return softmax_cross_entropy_with_logits_v2(
        labels=stop_gradient(wanted), logits=logits, dim=dim, name=name, axis=axis
    )


def _sparse_parts(logits: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Give the losses [...], the powers exp(logits - peak) [n, classes] and their totals [n, 1], a row a label."""
    scores, classes = logits.reshape(labels.size, logits.shape[-1]), labels.reshape(-1)
    powers, total = np.empty_like(scores), np.empty((labels.size, 1), scores.dtype)
    at_label = np.empty(labels.size, scores.dtype)

    def find(part: slice) -> None:
        rows = powers[part]
        np.subtract(scores[part], scores[part].max(axis=1, keepdims=True), out=rows)
        at_label[part] = rows[np.arange(len(rows)), classes[part]]
        np.exp(rows, out=rows)
        rows.sum(axis=1, keepdims=True, out=total[part])

    in_parts(find, labels.size, _PASSES * scores.size)
    return (np.log(total[:, 0]) - at_label).reshape(labels.shape), powers, total


def _check_classes(scores: Any, classes: Any) -> None:
    count = np.shape(scores)[-1]
    if np.shape(scores)[:-1] != np.shape(classes):
        raise InvalidArgumentError(
            f"logits and labels must have the same first dimension, got logits shape {np.shape(scores)} and "
            f"labels shape {np.shape(classes)}"
        )
    if classes.size and (classes.min() < 0 or classes.max() >= count):
        wrong = classes[(classes < 0) | (classes >= count)].reshape(-1)[0]
        raise InvalidArgumentError(
            f"Received a label value of {wrong} which is outside the valid range of [0, {count}).  Label "
            f"values: {' '.join(map(str, np.reshape(classes, -1)[:10]))}"
        )


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Node:
    """Give the cross entropy of softmax(logits) with class numbers.

    Args:
        _sentinel: Must not be given: call it with named arguments.
        labels: Integer node or array [...]: each in [0, classes).
        logits: Floating node or array [..., classes]: unscaled scores.
        name: Name of the node.

    Returns:
        A node [...], one loss for each row.

    Raises:
        ValueError: If an argument is missing, or the ranks do not fit.
        InvalidArgumentError: In the run, if a label is out of range.
    """
    _check_arguments("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    scores = require_float("SparseSoftmaxCrossEntropyWithLogits", as_node(logits), "features")
    wanted = as_node(labels)
    if not wanted.dtype.is_integer:
        raise TypeError(
            f"Value passed to parameter 'labels' has DataType {wanted.dtype.name} not in list of allowed "
            "values: int32, int64"
        )
    rank = scores.shape.ndims
    if rank == 0:
        raise ValueError(f"Logits cannot be scalars - received shape {scores.shape}.")
    if rank is not None and wanted.shape.ndims is not None and wanted.shape.ndims != rank - 1:
        raise ValueError(
            f"Rank mismatch: Rank of labels (received {wanted.shape.ndims}) should equal rank of logits "
            f"minus 1 (received {rank})."
        )
    kind = "SparseSoftmaxCrossEntropyWithLogits"
    return Node(kind, (scores, wanted), name=name, dtype=scores.dtype, shape=wanted.shape)


@gradient_of("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy_gradient(node: Node, grad: Node) -> Any:
    scores, labels = node.inputs
    inputs = (grad, scores, labels, saved(node))
    return Node("SparseSoftmaxCrossEntropyGrad", inputs, dtype=scores.dtype, shape=scores.shape), None


def _sparse_found(logits: Any, labels: Any) -> tuple[Any, Any]:
    _check_classes(logits, labels)
    losses, *rest = _sparse_parts(logits, labels)
    return losses, rest


computes("SparseSoftmaxCrossEntropyWithLogits", lambda logits, labels: _sparse_found(logits, labels)[0])
saving_kernel_of("SparseSoftmaxCrossEntropyWithLogits")(lambda node: _sparse_found)


# It is g * softmax - g at the label, with the softmax as powers / total: no second pass of exp.
@computes("SparseSoftmaxCrossEntropyGrad")
def _sparse_back(g: Any, logits: Any, labels: Any, found: Any) -> Any:
    powers, total = found
    weights = g.reshape(-1)
    gradient = powers * (weights[:, None] / total)
    gradient[np.arange(labels.size), labels.reshape(-1)] -= weights
    return gradient.reshape(logits.shape)


@gradient_of("SparseSoftmaxCrossEntropyGrad")
@composed
def _sparse_cross_entropy_grad_gradient(node: Node) -> Node:
    g, scores, labels, _ = node.inputs
    hot = Node("MarkClasses", (labels, scores), dtype=scores.dtype, shape=scores.shape)
    return expand_dims(g, -1) * (math_ops.exp(log_softmax_of(scores, -1)) - hot)


computes("MarkClasses", lambda labels, x: (labels[..., None] == np.arange(np.shape(x)[-1])).astype(x.dtype))
no_gradient("MarkClasses", "Stirling")


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Node:
    """Give the cross entropy of sigmoid(logits) with probabilities, each class by itself.

    The formula is log(1 + exp(x)) - x * z for logits x and labels z, evaluated without overflow.

    Args:
        _sentinel: Must not be given: call it with named arguments.
        labels: Node or array of the shape and dtype of `logits`.
        logits: Floating node or array: unscaled scores.
        name: Name of the node.

    Returns:
        A node of the shape of `logits`.

    Raises:
        ValueError: If an argument is missing, or the shapes differ.
    """
    _check_arguments("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    x, z = operands("SigmoidCrossEntropyWithLogits", logits, labels, ("logits", "labels"))
    if not x.shape.is_compatible_with(z.shape):
        raise ValueError(f"logits and labels must have the same shape ({x.shape} vs {z.shape})")
    return Node("SigmoidCrossEntropyWithLogits", (x, z), name=name or "logistic_loss", dtype=x.dtype, shape=x.shape)


@gradient_of("SigmoidCrossEntropyWithLogits")
def _sigmoid_cross_entropy_gradient(node: Node, grad: Node) -> Any:
    x, z = node.inputs
    inputs = (grad, x, z, saved(node))
    to_x = Node("SigmoidCrossEntropyGrad", inputs, dtype=x.dtype, shape=node.shape)
    return unbroadcast(to_x, x, z), unbroadcast(-grad * x, z, x)


def _logistic_found(scores: Any, labels: Any) -> tuple[Any, Any]:
    logs = np.logaddexp(scores, 0)
    return logs - scores * labels, logs


computes("SigmoidCrossEntropyWithLogits", lambda scores, labels: _logistic_found(scores, labels)[0])
saving_kernel_of("SigmoidCrossEntropyWithLogits")(lambda node: _logistic_found)
computes("SigmoidCrossEntropyGrad", lambda g, scores, labels, logs: g * np.exp(scores - logs) + -g * labels)


@gradient_of("SigmoidCrossEntropyGrad")
@composed
def _sigmoid_cross_entropy_grad_gradient(node: Node) -> Node:
    g, x, z, _ = node.inputs
    return g * (math_ops.sigmoid(x) - z)


def weighted_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, pos_weight: Any = None, name: str | None = None, targets: Any = None
) -> Node:
    """Give the sigmoid cross entropy with positive labels weighing `pos_weight`.

    The formula is (1 - z) * x + l * log(1 + exp(-x)) with l = 1 + (q - 1) * z for logits x, labels z
    (older name: `targets`) and weight q, evaluated without overflow.

    Raises:
        ValueError: If the shapes differ.
    """
    x, z = operands("WeightedCrossEntropy", logits, labels if targets is None else targets, ("logits", "labels"))
    if not x.shape.is_compatible_with(z.shape):
        raise ValueError(f"logits and targets must have the same shape ({x.shape} vs {z.shape})")
    _, q = operands("WeightedCrossEntropy", x, pos_weight, ("logits", "pos_weight"))
    return Node("WeightedCrossEntropy", (x, z, q), name=name or "logistic_loss", dtype=x.dtype, shape=x.shape)


@computes("WeightedCrossEntropy")
def _weighted(scores: Any, wanted: Any, weight: Any) -> Any:
    factor = 1 + (weight - 1) * wanted
    return (1 - wanted) * scores + factor * np.logaddexp(-scores, 0)


@gradient_of("WeightedCrossEntropy")
@composed
def _weighted_cross_entropy_gradient(node: Node) -> Node:
    x, z, q = node.inputs
    return (1.0 - z) * x - (1.0 + (q - 1.0) * z) * math_ops.log_sigmoid(x)


def log_poisson_loss(targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None) -> Node:
    """Give exp(log_input) - log_input * targets; with `compute_full_loss`, Stirling's term besides."""
    x, z = operands("LogPoissonLoss", log_input, targets, ("log_input", "targets"))
    loss = math_ops.subtract(math_ops.exp(x), math_ops.multiply(x, z), name=name or "log_poisson_loss")
    if not compute_full_loss:
        return loss
    return math_ops.add(loss, elementwise("Stirling", z, None, stops_gradient=True))


@computes("Stirling")
def _stirling(t: Any) -> Any:
    safe = np.where(t > 1, t, 1)
    term = safe * np.log(safe) - safe + 0.5 * np.log(2 * np.pi * safe)
    return np.where(t > 1, term, 0).astype(t.dtype)


def deprecated_flipped_softmax_cross_entropy_with_logits(
    logits: Any, labels: Any, dim: int = -1, name: str | None = None
) -> Node:
    """Take the arguments in the order of before TensorFlow 1.0."""
    return softmax_cross_entropy_with_logits(labels=labels, logits=logits, dim=dim, name=name)


def deprecated_flipped_sparse_softmax_cross_entropy_with_logits(
    logits: Any, labels: Any, name: str | None = None
) -> Node:
    """Take the arguments in the order of before TensorFlow 1.0."""
    return sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits, name=name)


def deprecated_flipped_sigmoid_cross_entropy_with_logits(logits: Any, targets: Any, name: str | None = None) -> Node:
    """Take the arguments in the order of before TensorFlow 1.0."""
    return sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name=name)

"""What of tf.keras models of `gs.layers` use: its losses, functions of its backend, and layers called on nodes.

Layer: tf1. Source: TensorFlow 1.15 `python/keras/losses.py`, `backend.py`, `layers/core.py`, `layers/normalization.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from globalstep.tf1.absent import KERAS_MODELS
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.layer import Layer, last_size
from globalstep.tf1.losses import Reduction, compute_weighted_loss
from globalstep.tf1.ops import cross_entropy_ops, math_ops, normalization_ops
from globalstep.tf1.ops.array_ops import expand_dims, reshape, squeeze
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.clipping import clip_by_value
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_sum

ABSENT = dict.fromkeys(
    ("Input", "Model", "Sequential", "callbacks", "datasets", "estimator", "models", "optimizers"), KERAS_MODELS
)
_HERE = "globalstep.tf1.keras"
#: Namespace below `gs.keras` -> module -> its names.
PARTS: dict[str, dict[str, str]] = {
    "activations": {"globalstep.nn": "elu relu selu sigmoid softmax softplus softsign tanh"},
    "backend": {
        "globalstep": (
            "abs cast clip=clip_by_value exp log max=reduce_max maximum mean=reduce_mean min=reduce_min minimum pow "
            "prod=reduce_prod reshape round shape sign square stop_gradient sum=reduce_sum zeros_like ones_like"
        ),
        "globalstep.nn": "elu relu sigmoid softmax softplus softsign tanh",
        _HERE: "batch_dot binary_crossentropy=binary_terms categorical_crossentropy=categorical_terms epsilon",
    },
    "layers": {"globalstep.layers": "Conv1D Conv2D Dense Dropout Flatten Layer", _HERE: "Lambda LayerNormalization"},
    "losses": {_HERE: "BinaryCrossentropy CategoricalCrossentropy binary_crossentropy categorical_crossentropy"},
}

_EPSILON = 1e-7


def epsilon() -> float:
    """Give what keeps logarithms finite."""
    return _EPSILON


def binary_terms(target: Any, output: Any, from_logits: bool = False) -> Node:
    """Give the cross entropy of each probability `output`, or logit, from its `target`."""
    p = as_node(output)
    if not from_logits and p.op_type != "Sigmoid":
        p = clip_by_value(p, _EPSILON, 1.0 - _EPSILON)
        terms: Node = target * math_ops.log(p + _EPSILON) + (1.0 - target) * math_ops.log(1.0 - p + _EPSILON)
        return -terms
    logits = p if from_logits else p.inputs[0]
    return cross_entropy_ops.sigmoid_cross_entropy_with_logits(labels=target, logits=logits)


def categorical_terms(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Node:
    """Give the cross entropy of each row of probabilities, or logits, from a row of `target`."""
    p = as_node(output)
    if not from_logits and p.op_type != "Softmax":
        p = clip_by_value(p / reduce_sum(p, axis, True), _EPSILON, 1.0 - _EPSILON)
        return -reduce_sum(target * math_ops.log(p), axis)
    logits = p if from_logits else p.inputs[0]
    return cross_entropy_ops.softmax_cross_entropy_with_logits_v2(labels=target, logits=logits, axis=axis)


def batch_dot(x: Any, y: Any, axes: Any = None) -> Node:
    """Give the product of each `x` of a batch with its `y`, both of known ranks, summed over one axis of each.

    Args:
        x: Node [batch, ...].
        y: As `x`.
        axes: The axis of each; one number for both; by default the last of `x` and the last but one of `y`.
    """
    a, b = as_node(x), as_node(y)
    ranks = (len(a.shape), len(b.shape))
    first, second = (ranks[0] - 1, ranks[1] - 2) if axes is None else (axes, axes) if isinstance(axes, int) else axes
    if ranks == (2, 2):
        return expand_dims(reduce_sum(math_ops.multiply(a, b), 1), 1)
    missing = ranks[0] - ranks[1]
    ones = [1] * abs(missing)
    a = a if missing >= 0 else reshape(a, concat([shape_of(a), ones], 0))
    b = b if missing <= 0 else reshape(b, concat([shape_of(b), ones], 0))
    result = matmul(a, b, transpose_a=first != len(a.shape) - 1, transpose_b=second == len(b.shape) - 1)
    at = sum(ranks) - 3 if missing > 0 else ranks[0] - 1
    result = squeeze(result, list(range(at, at + len(ones)))) if ones else result
    return expand_dims(result, 1) if len(result.shape) == 1 else result


def binary_crossentropy(y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0) -> Node:
    """Give the mean over the last axis of the binary cross entropies of labels and predictions."""
    labels = math_ops.cast(y_true, as_node(y_pred).dtype) * (1.0 - label_smoothing) + 0.5 * label_smoothing
    return reduce_mean(binary_terms(labels, y_pred, from_logits), -1)


def categorical_crossentropy(y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0) -> Node:
    """Give the cross entropies of rows of labels and predictions."""
    labels = math_ops.cast(y_true, as_node(y_pred).dtype)
    spread = label_smoothing / math_ops.cast(shape_of(y_pred)[-1], labels.dtype)
    return categorical_terms(labels * (1.0 - label_smoothing) + spread, y_pred, from_logits)


class _Loss:
    """A loss as an object, called with labels, predictions and perhaps weights; in no collection."""

    _fn: ClassVar[Callable[..., Node]]
    _REDUCTIONS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("auto", "sum_over_batch_size"), Reduction.SUM_OVER_BATCH_SIZE),
        "none": Reduction.NONE, "sum": Reduction.SUM,
    }  # fmt: skip

    def __init__(
        self, from_logits: bool = False, label_smoothing: float = 0, reduction: str = "auto", name: str | None = None
    ) -> None:
        self._options, self._reduction, self.name = (from_logits, label_smoothing), self._REDUCTIONS[reduction], name

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Node:
        labels, predictions = as_node(y_true), as_node(y_pred)
        ranks = labels.shape.ndims, predictions.shape.ndims
        if ranks[0] is not None and ranks[1] == ranks[0] + 1 and predictions.shape.as_list()[-1] == 1:
            predictions = squeeze(predictions, [-1])
        elif ranks[1] is not None and ranks[0] == ranks[1] + 1 and labels.shape.as_list()[-1] == 1:
            labels = squeeze(labels, [-1])
        terms = type(self)._fn(labels, predictions, *self._options)
        return compute_weighted_loss(
            terms, 1.0 if sample_weight is None else sample_weight, self.name, None, self._reduction
        )


class BinaryCrossentropy(_Loss):
    """See binary_crossentropy."""

    _fn = staticmethod(binary_crossentropy)


class CategoricalCrossentropy(_Loss):
    """See categorical_crossentropy."""

    _fn = staticmethod(categorical_crossentropy)


class Lambda(Layer):
    """A function of nodes as a layer; `output_shape` and `mask` are accepted as in TensorFlow."""

    def __init__(
        self, function: Callable[..., Any], output_shape: Any = None, mask: Any = None,
        arguments: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.function, self.arguments = function, dict(arguments or {})

    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """See Layer."""
        return self.function(inputs, **self.arguments)


class LayerNormalization(Layer):
    """Normalization of each example over its last axis, with Variables `gamma` and `beta`."""

    def __init__(
        self, axis: Any = -1, epsilon: float = 1e-3, center: bool = True, scale: bool = True,
        beta_initializer: Any = "zeros", gamma_initializer: Any = "ones", **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
        self.epsilon, self.center, self.scale = epsilon, center, scale
        self.gamma: Any = None
        self.beta: Any = None
        self._initializers = (gamma_initializer, beta_initializer)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        if self.axis not in (-1, len(input_shape) - 1):
            raise ValueError(f"gs.keras.layers.LayerNormalization normalizes the last axis, not {self.axis}.")
        size = [last_size(input_shape, "LayerNormalization")]
        if self.scale:
            self.gamma = self.add_weight("gamma", size, initializer=self._initializers[0])
        if self.center:
            self.beta = self.add_weight("beta", size, initializer=self._initializers[1])

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        mean, variance = normalization_ops.moments(inputs, [-1], keep_dims=True)
        return normalization_ops.batch_normalization(inputs, mean, variance, self.beta, self.gamma, self.epsilon)

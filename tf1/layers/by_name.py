"""Activations and initializers that a program names by a string, as layers and cells take them.

Layer: tf1. Source: TensorFlow 1.15 `python/keras/activations.py`, `python/keras/initializers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops import init_ops, math_ops, nn_ops
from globalstep.tf1.ops.clipping import clip_by_value


def _hard_sigmoid(x: Node) -> Any:
    return clip_by_value(0.2 * x + 0.5, 0.0, 1.0)


#: None stands for the result as it is.
_ACTIVATIONS: dict[str, Callable[..., Any] | None] = {
    "elu": nn_ops.elu,
    "exponential": math_ops.exp,
    "hard_sigmoid": _hard_sigmoid,
    "leaky_relu": nn_ops.leaky_relu,
    "linear": None,
    "relu": nn_ops.relu,
    "relu6": nn_ops.relu6,
    "selu": nn_ops.selu,
    "sigmoid": math_ops.sigmoid,
    "softmax": nn_ops.softmax,
    "softplus": nn_ops.softplus,
    "softsign": nn_ops.softsign,
    "swish": nn_ops.swish,
    "tanh": math_ops.tanh,
}


# Keras' random ones are narrower than those of `gs.initializers`.
_INITIALIZERS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("constant", "Constant"), init_ops.Constant),
    **dict.fromkeys(("glorot_normal", "GlorotNormal"), init_ops.glorot_normal_initializer),
    **dict.fromkeys(("glorot_uniform", "GlorotUniform"), init_ops.glorot_uniform_initializer),
    **dict.fromkeys(("he_normal", "HeNormal"), init_ops.he_normal),
    **dict.fromkeys(("he_uniform", "HeUniform"), init_ops.he_uniform),
    **dict.fromkeys(("identity", "Identity"), init_ops.Identity),
    **dict.fromkeys(("lecun_normal", "LecunNormal"), init_ops.lecun_normal),
    **dict.fromkeys(("lecun_uniform", "LecunUniform"), init_ops.lecun_uniform),
    **dict.fromkeys(("normal", "random_normal", "RandomNormal"), partial(init_ops.RandomNormal, stddev=0.05)),
    **dict.fromkeys(("one", "ones", "Ones"), init_ops.Ones),
    **dict.fromkeys(("orthogonal", "Orthogonal"), init_ops.Orthogonal),
    **dict.fromkeys(("truncated_normal", "TruncatedNormal"), partial(init_ops.TruncatedNormal, stddev=0.05)),
    **dict.fromkeys(("uniform", "random_uniform", "RandomUniform"), partial(init_ops.RandomUniform, -0.05, 0.05)),
    **dict.fromkeys(("variance_scaling", "VarianceScaling"), init_ops.VarianceScaling),
    **dict.fromkeys(("zero", "zeros", "Zeros"), init_ops.Zeros),
}


def activation_of(activation: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """Return an activation: the function itself, the one of a name, or None for none.

    Raises:
        ValueError: If no activation has the name.
    """
    return _named(activation, _ACTIVATIONS, "activation function")  # type: ignore[no-any-return]


def initializer_of(initializer: Any) -> Any:
    """Return an initializer: as it is, or a new one of the kind that a string names.

    Raises:
        ValueError: If no initializer has the name.
    """
    return _named(initializer, _INITIALIZERS, "initializer")() if isinstance(initializer, str) else initializer


def _named(value: Any, table: dict[str, Any], what: str) -> Any:
    if not isinstance(value, str):
        return value
    if value not in table:
        raise ValueError(f"Unknown {what}: {value}. Give a function, or one of {', '.join(sorted(table))}.")
    return table[value]

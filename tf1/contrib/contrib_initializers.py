"""Initializers as `tf.contrib.layers` has them, with arguments of their own.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/initializers.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.init_ops import Initializer
from globalstep.tf1.ops.random_ops import random_uniform, truncated_normal


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: DTypeLike = "float32") -> Initializer:
    """Draw with a variance of 2 / (inputs + outputs) (Glorot and Bengio 2010).

    Args:
        uniform: Evenly; otherwise from a truncated normal distribution.
        seed: Seed of the operation.
        dtype: Dtype where the Variable names none.
    """
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: DTypeLike = "float32",
) -> Initializer:
    """Draw with a variance of factor / n, where n is a number of inputs or outputs.

    Args:
        factor: Positive factor.
        mode: n is the number of inputs ("FAN_IN"), of outputs ("FAN_OUT"), or their mean ("FAN_AVG").
        uniform: Evenly; otherwise from a truncated normal distribution, of 1.3 times the variance before it is cut.
        seed: Seed of the operation.
        dtype: Dtype where the Variable names none.

    Raises:
        TypeError: For a dtype that is not floating, or another mode.
    """
    own = as_dtype(dtype)
    if not own.is_floating:
        raise TypeError("Cannot create initializer for non-floating point type.")
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise TypeError(f"Unknown mode {mode} [FAN_IN, FAN_OUT, FAN_AVG]")

    def initialize(shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        kind = own if dtype is None else as_dtype(dtype)
        sizes = [int(size) for size in TensorShape(shape)]
        whole = sizes if partition_info is None else [int(size) for size in partition_info.full_shape]
        field = float(np.prod(whole[:-2])) if whole else 1.0
        fan_in = field * (whole[-2] if len(whole) > 1 else whole[-1] if whole else 1)
        fan_out = field * (whole[-1] if whole else 1)
        n = {"FAN_IN": fan_in, "FAN_OUT": fan_out, "FAN_AVG": (fan_in + fan_out) / 2}[mode]
        if uniform:
            limit = math.sqrt(3 * factor / n)
            return random_uniform(sizes, -limit, limit, kind, seed)
        return truncated_normal(sizes, 0.0, math.sqrt(1.3 * factor / n), kind, seed)

    return initialize

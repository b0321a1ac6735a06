"""Learning-rate schedules: values that follow a step, evaluated where the authoritative step is.

Each function gives a node. Handed to an optimizer, its closed expression (`attrs["expr"]`) crosses the
wire, and the parameter servers evaluate it for every push, in float64 at the exact integer step, so that a
decayed rate is right whatever the number of workers. Fetched by a session, the node gives the same value
at the step that the run reads. TensorFlow computes schedules in the learning rate's dtype, and so loses
float32 steps above 2^24.

Formulas, names and errors are those of TensorFlow 1.15 `tf.train.*_decay`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.optimizers import optimizer_rule as formula
from globalstep.optimizers.optimizer_rule import Formula
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.ops.building import is_node
from globalstep.tf1.ops.random_ops import random_normal
from globalstep.tf1.optimizers.schedule_formula import Operands


def _start(missing: str, learning_rate: Any, global_step: Any) -> tuple[Operands, Formula, Formula, DType]:
    if global_step is None:
        raise ValueError(missing)
    operands = Operands()
    dtype = _rate_dtype(learning_rate)
    return operands, operands.take(learning_rate), operands.take(global_step), dtype


def _rate_dtype(rate: Any) -> DType:
    if is_node(rate) or isinstance(rate, (np.ndarray, np.generic)):
        dtype = as_node(rate).dtype
        return dtype if dtype.is_floating else as_dtype("float32")
    return as_dtype("float32")


def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Node:
    """Give learning_rate * decay_rate ** (global_step / decay_steps).

    Args:
        learning_rate: The rate at step 0: number or scalar node.
        global_step: The step: Variable, node or number.
        decay_steps: Number of steps after which the rate has decayed once by `decay_rate`; positive.
        decay_rate: The factor.
        staircase: Whether the rate decays at whole multiples of `decay_steps` only.
        name: Name of the node; default "ExponentialDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`, float32 for a number.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("global_step is required for exponential_decay.", learning_rate, global_step)
    rate = formula.exponential(rate, step, operands.take(decay_steps), operands.take(decay_rate), staircase)
    return operands.node("ExponentialDecay", rate, dtype, name)


def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Node:
    """Give learning_rate * exp(-decay_rate * global_step / decay_steps).

    The arguments are those of `exponential_decay`.
    """
    operands, rate, step, dtype = _start("global_step is required for natural_exp_decay.", learning_rate, global_step)
    p = step / operands.take(decay_steps)
    p = p.apply("floor") if staircase else p
    exponent = (operands.take(decay_rate) * p).apply("neg")
    return operands.node("ExponentialTimeDecay", rate * exponent.apply("exp"), dtype, name)


def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Node:
    """Give learning_rate / (1 + decay_rate * global_step / decay_steps).

    The arguments are those of `exponential_decay`.
    """
    operands, rate, step, dtype = _start("global_step is required for inverse_time_decay.", learning_rate, global_step)
    p = step / operands.take(decay_steps)
    p = p.apply("floor") if staircase else p
    return operands.node("InverseTimeDecay", rate / (1.0 + operands.take(decay_rate) * p), dtype, name)


def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Node:
    """Give a rate that falls to `end_learning_rate` in `decay_steps` steps and stays there.

    It is (learning_rate - end) * (1 - step / decay_steps) ** power + end.

    Args:
        learning_rate: The rate at step 0.
        global_step: The step.
        decay_steps: Number of steps; positive.
        end_learning_rate: The rate at the end.
        power: The power.
        cycle: Whether, beyond `decay_steps`, the rate falls anew over twice, three times, ... the steps.
        name: Name of the node; default "PolynomialDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("global_step is required for polynomial_decay.", learning_rate, global_step)
    steps, end = operands.take(decay_steps), operands.take(end_learning_rate)
    rate = formula.polynomial(rate, step, steps, end, operands.take(power), cycle)
    return operands.node("PolynomialDecay", rate, dtype, name)


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Node:
    """Give values[0] up to x <= boundaries[0], then values[1] up to boundaries[1], and so on.

    Args:
        x: The step: Variable, node or number.
        boundaries: Ascending numbers or scalar nodes of the dtype of `x`.
        values: One more number or scalar node than boundaries, all of one dtype.
        name: Name of the node; default "PiecewiseConstant".

    Returns:
        A scalar node of the dtype of `values`.

    Raises:
        ValueError: If the lengths or the dtypes do not fit.
    """
    if len(boundaries) != len(values) - 1:
        raise ValueError("The length of boundaries should be 1 less than the length of values")
    x_dtype = _dtype_of(x)
    for boundary in boundaries:
        dtype = _dtype_of(boundary)
        if dtype != x_dtype and (dtype.name, x_dtype.name) != ("int32", "int64"):
            raise ValueError(f"Boundaries ({dtype.name}) must have the same dtype as x ({x_dtype.name}).")
    kinds = [_dtype_of(value) for value in values]
    for kind in kinds:
        if kind != kinds[0]:
            raise ValueError(f"Values must have elements all with the same dtype ({kinds[0].name} vs {kind.name}).")
    operands = Operands()
    step = operands.take(x)
    chosen = formula.piecewise(step, list(map(operands.take, boundaries)), list(map(operands.take, values)))
    return operands.node("PiecewiseConstant", chosen, kinds[0], name)


piecewise_constant_decay = piecewise_constant


def _dtype_of(value: Any) -> DType:
    if is_node(value):
        return as_node(value).dtype
    if isinstance(value, (np.ndarray, np.generic)):
        return as_dtype(value.dtype)
    return as_dtype("float32" if isinstance(value, float) else "int32")


def cosine_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, alpha: Any = 0.0, name: str | None = None
) -> Node:
    """Give a rate that falls along half a cosine to `alpha` times itself in `decay_steps` steps.

    Args:
        learning_rate: The rate at step 0.
        global_step: The step.
        decay_steps: Number of steps; positive.
        alpha: The fraction of the rate that is left at the end.
        name: Name of the node; default "CosineDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("cosine decay requires global_step", learning_rate, global_step)
    steps, least = operands.take(decay_steps), operands.take(alpha)
    return operands.node("CosineDecay", formula.cosine(rate, step, steps, least), dtype, name)


# At a restart the logarithm below is a whole number, which rounding may have made a little smaller.
_ROUNDING = 1e-12


def cosine_decay_restarts(
    learning_rate: Any,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: Any = 2.0,
    m_mul: Any = 1.0,
    alpha: Any = 0.0,
    name: str | None = None,
) -> Node:
    """Give a rate that falls along half a cosine again and again (Loshchilov and Hutter 2016).

    Args:
        learning_rate: The rate at step 0.
        global_step: The step.
        first_decay_steps: Number of steps of the first fall.
        t_mul: How many times as long each fall is as the one before.
        m_mul: How many times as high each fall starts as the one before.
        alpha: The fraction of the rate that is left at the end of a fall.
        name: Name of the node; default "SGDRDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("cosine decay restarts requires global_step", learning_rate, global_step)
    done = step / operands.take(first_decay_steps)
    t, m, least = (operands.take(value) for value in (t_mul, m_mul, alpha))
    equally_long = t.apply("equal", 1.0)
    growing = (1.0 - done * (1.0 - t)).apply("log") / t.apply("log")
    restarts = equally_long.apply("where", done, growing + _ROUNDING).apply("floor")
    before = equally_long.apply("where", restarts, (1.0 - t**restarts) / (1.0 - t))
    fraction = (done - before) / t**restarts
    cosine = m**restarts * formula.zero_to_pi_cosine(fraction)
    return operands.node("SGDRDecay", rate * ((1.0 - least) * cosine + least), dtype, name)


def linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    num_periods: Any = 0.5,
    alpha: Any = 0.0,
    beta: Any = 0.001,
    name: str | None = None,
) -> Node:
    """Give learning_rate * ((alpha + linear) * cosine + beta) (Bello et al. 2017).

    `linear` falls from 1 to 0 in `decay_steps` steps; `cosine` swings `num_periods` times meanwhile.

    Args:
        learning_rate: The rate at step 0.
        global_step: The step.
        decay_steps: Number of steps; positive.
        num_periods: Number of periods of the cosine.
        alpha: See above.
        beta: See above.
        name: Name of the node; default "LinearCosineDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("linear cosine decay requires global_step", learning_rate, global_step)
    steps = operands.take(decay_steps)
    step = step.apply("min", steps)
    linear = (steps - step) / steps
    cosine = formula.zero_to_pi_cosine(2.0 * operands.take(num_periods) * (step / steps))
    decayed = (operands.take(alpha) + linear) * cosine + operands.take(beta)
    return operands.node("LinearCosineDecay", rate * decayed, dtype, name)


def noisy_linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    initial_variance: Any = 1.0,
    variance_decay: Any = 0.55,
    num_periods: Any = 0.5,
    alpha: Any = 0.0,
    beta: Any = 0.001,
    name: str | None = None,
) -> Node:
    """Give `linear_cosine_decay` with normal noise added to its linear part.

    The variance of the noise is initial_variance / (1 + step) ** variance_decay. Each worker draws its
    own noise, so the rate is computed by the worker and sent with each push.

    Args:
        learning_rate: The rate at step 0.
        global_step: The step.
        decay_steps: Number of steps; positive.
        initial_variance: Variance of the noise at step 0.
        variance_decay: How fast it falls.
        num_periods: See `linear_cosine_decay`.
        alpha: See `linear_cosine_decay`.
        beta: See `linear_cosine_decay`.
        name: Name of the node; default "NoisyLinearCosineDecay".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("noisy linear cosine decay requires global_step", learning_rate, global_step)
    steps = operands.take(decay_steps)
    step = step.apply("min", steps)
    variance = operands.take(initial_variance) / (1.0 + step) ** operands.take(variance_decay)
    noise = operands.take(random_normal([], dtype="float64")) * variance.apply("sqrt")
    linear = (steps - step) / steps + noise
    cosine = formula.zero_to_pi_cosine(2.0 * operands.take(num_periods) * (step / steps))
    decayed = (operands.take(alpha) + linear) * cosine + operands.take(beta)
    return operands.node("NoisyLinearCosineDecay", rate * decayed, dtype, name)


def linear_warmup(
    learning_rate: Any, global_step: Any, warmup_steps: Any, init: Any = 0.0, name: str | None = None
) -> Node:
    """Give a rate that rises evenly from `init` to `learning_rate` in `warmup_steps` steps.

    Args:
        learning_rate: The rate to reach: a number, or a schedule that goes on from there.
        global_step: The step.
        warmup_steps: Number of steps; 0 for no warm-up.
        init: The rate at step 0.
        name: Name of the node; default "LinearWarmup".

    Returns:
        A scalar node of the dtype of `learning_rate`.

    Raises:
        ValueError: Without a `global_step`.
    """
    operands, rate, step, dtype = _start("global_step is required for linear_warmup.", learning_rate, global_step)
    steps, least = operands.take(warmup_steps), operands.take(init)
    rising = least + (rate - least) * (step / steps)
    return operands.node("LinearWarmup", step.apply("less", steps).apply("where", rising, rate), dtype, name)

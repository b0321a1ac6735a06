"""Training ops that do the whole of a step: `optimize_loss` and slim's `create_train_op`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/optimizers.py` and
`contrib/slim/python/slim/learning.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.tf1.graph.graph import (
    GraphKeys,
    Node,
    as_node,
    control_dependencies,
    get_collection,
    get_collection_ref,
    get_default_graph,
)
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import check_numerics as checked_numerics
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.clipping import clip_by_global_norm, clip_by_norm, global_norm
from globalstep.tf1.ops.control_flow_ops import with_dependencies
from globalstep.tf1.ops.init_ops import constant_initializer
from globalstep.tf1.ops.random_ops import truncated_normal
from globalstep.tf1.ops.summary_ops import histogram, scalar
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.tf1.optimizers.optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    RMSPropOptimizer,
)
from globalstep.tf1.optimizers.optimizers_online import FtrlOptimizer
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.training_util import assert_global_step, get_global_step, get_or_create_global_step
from globalstep.tf1.variables.variable_collections import trainable_variables
from globalstep.tf1.variables.variable_scope import variable_scope

_log = logging.getLogger("globalstep")
_Pairs = list[tuple[Any, Any]]

#: What `optimize_loss` knows by name.
OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Optimizer]] = {
    "Adagrad": AdagradOptimizer,
    "Adam": AdamOptimizer,
    "Ftrl": FtrlOptimizer,
    "Momentum": lambda learning_rate: MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}
#: What `optimize_loss` can make summaries of.
OPTIMIZER_SUMMARIES = ["learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"]
_USE_GLOBAL_STEP = 0


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[..., Any] | None = None,
    update_ops: Sequence[Any] | None = None,
    variables: Sequence[Any] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Node:
    """Make the whole of a training step: gradients, clipping, update, and summaries of them.

    Args:
        loss: Scalar node.
        global_step: The step; None for the graph's.
        learning_rate: Float, which becomes the Variable "OptimizeLoss/learning_rate", or scalar node; None if the
            optimizer has its own.
        optimizer: Name ("Adagrad", "Adam", "Ftrl", "Momentum", "RMSProp" or "SGD"), class of `gs.train`, optimizer, or
            a function of the rate, or of nothing, that gives one.
        gradient_noise_scale: Adds a normal noise of this deviation, cut at two of them, to gradients.
        gradient_multipliers: Variable, or its name with ":0" -> factor of its gradient.
        clip_gradients: Global norm to clip to, or a function of the list of (gradient, Variable).
        learning_rate_decay_fn: Function of the rate and the step that gives the rate.
        update_ops: What runs before the update; default the collection UPDATE_OPS.
        variables: What is trained; default the trainable Variables.
        name: Scope; default "OptimizeLoss".
        summaries: What of OPTIMIZER_SUMMARIES is written; default the loss, the rate and the global norm.
        colocate_gradients_with_ops: Accepted as in TensorFlow.
        increment_global_step: Whether the update moves the step on.

    Returns:
        A node of the loss; to compute it is to make a step.

    Raises:
        ValueError: For arguments that mean nothing, or a loss that is no scalar.
    """
    value = as_node(loss)
    if value.shape.ndims not in (0, None):
        raise ValueError(f"Expected scalar shape, saw shape: {value.shape}.")
    wanted = ["loss", "learning_rate", "global_gradient_norm"] if summaries is None else list(summaries)
    for one in wanted:
        if one not in OPTIMIZER_SUMMARIES:
            names = ", ".join(OPTIMIZER_SUMMARIES)
            raise ValueError(f"Summaries should be one of [{names}], you provided {one}.")
    if global_step is None:
        global_step = get_global_step()
    else:
        assert_global_step(global_step)
    with variable_scope(name, "OptimizeLoss", [value, global_step]):
        rate = _rate(learning_rate)
        if rate is not None and learning_rate_decay_fn is not None:
            if global_step is None:
                raise ValueError("global_step is required for learning_rate_decay_fn.")
            rate = learning_rate_decay_fn(rate, global_step)
            if "learning_rate" in wanted:
                scalar("learning_rate", rate)
        chosen = _optimizer(optimizer, rate)
        trained = trainable_variables() if variables is None else list(variables)
        pairs = _noisy(chosen.compute_gradients(value, trained), gradient_noise_scale)
        if gradient_multipliers is not None:
            pairs = _multiplied(pairs, gradient_multipliers)
        norms = "global_gradient_norm" in wanted or "gradient_norm" in wanted
        if norms:
            scalar("global_norm/gradient_norm", global_norm([gradient for gradient, _ in pairs]))
        pairs = _clipped(pairs, clip_gradients)
        if "loss" in wanted:
            scalar("loss", value)
        _summarize(pairs, wanted)
        if norms and clip_gradients is not None:
            scalar("global_norm/clipped_gradient_norm", global_norm([gradient for gradient, _ in pairs]))
        before = get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else list(update_ops)
        with control_dependencies(before):
            step = global_step if increment_global_step else None
            update = chosen.apply_gradients(pairs, global_step=step, name="train")
        result: Node = with_dependencies([update], value)
        return result


def create_train_op(
    total_loss: Any,
    optimizer: Optimizer,
    global_step: Any = _USE_GLOBAL_STEP,
    update_ops: Sequence[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = 1,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> Node:
    """Make slim's training op: a node of the loss, whose computation is a step.

    Args:
        total_loss: Scalar node.
        optimizer: An optimizer.
        global_step: The step to move on; default the graph's, which is made if need be; None for none.
        update_ops: What runs before the update; default the collection UPDATE_OPS.
        variables_to_train: What is trained; default the trainable Variables.
        clip_gradient_norm: Norm that each gradient is clipped to; 0 for none.
        summarize_gradients: Whether each gradient gets summaries.
        gate_gradients: As for `Optimizer.compute_gradients`.
        aggregation_method: As for `Optimizer.compute_gradients`.
        colocate_gradients_with_ops: Accepted as in TensorFlow.
        gradient_multipliers: Variable, or its name -> factor of its gradient.
        check_numerics: Whether a loss that is not finite is an error.

    Returns:
        A node of the loss.

    Raises:
        ValueError: Without anything to train, or for a factor of a gradient that is None.
    """
    if global_step is _USE_GLOBAL_STEP:
        global_step = get_or_create_global_step()
    graph = get_default_graph()
    collected = get_collection(GraphKeys.UPDATE_OPS)
    before = collected if update_ops is None else list(update_ops)
    if not set(collected) <= set(before):
        _log.warning("update_ops in create_train_op does not contain all the update_ops in GraphKeys.UPDATE_OPS")
    trained = trainable_variables() if variables_to_train is None else list(variables_to_train)
    if not trained:
        raise ValueError("There is no Variable to train: variables_to_train is empty.")
    value = as_node(total_loss)
    pairs = optimizer.compute_gradients(
        value, trained, gate_gradients=gate_gradients, aggregation_method=aggregation_method
    )
    if gradient_multipliers:
        with graph.name_scope("multiply_grads"):
            pairs = multiply_gradients(pairs, gradient_multipliers)
    if clip_gradient_norm > 0:
        with graph.name_scope("clip_grads"):
            pairs = clip_gradient_norms(pairs, clip_gradient_norm)
    if summarize_gradients:
        with graph.name_scope("summarize_grads"):
            add_gradients_summaries(pairs)
    with control_dependencies(before):
        update = optimizer.apply_gradients(pairs, global_step=global_step)
    with graph.name_scope("train_op"):
        if check_numerics:
            value = checked_numerics(value, "LossTensor is inf or nan")
        result: Node = with_dependencies([update], value)
    train_ops = get_collection_ref(GraphKeys.TRAIN_OP)
    if result not in train_ops:
        train_ops.append(result)
    return result


def multiply_gradients(grads_and_vars: _Pairs, gradient_multipliers: Mapping[Any, Any]) -> _Pairs:
    """Multiply some gradients.

    Args:
        grads_and_vars: (gradient, Variable).
        gradient_multipliers: Variable, or its name -> factor.

    Raises:
        ValueError: For arguments that mean nothing, or a factor of a gradient that is None.
    """
    if not isinstance(grads_and_vars, list):
        raise ValueError("`grads_and_vars` must be a list.")
    if not gradient_multipliers:
        raise ValueError("`gradient_multipliers` is empty.")
    if not isinstance(gradient_multipliers, dict):
        raise ValueError("`gradient_multipliers` must be a dict.")
    pairs = []
    for gradient, variable in grads_and_vars:
        key = variable if variable in gradient_multipliers else variable.op_name
        if key in gradient_multipliers:
            if gradient is None:
                raise ValueError("Requested multiple of `None` gradient.")
            gradient = _scaled(gradient, gradient_multipliers[key])
        pairs.append((gradient, variable))
    return pairs


def clip_gradient_norms(gradients_to_variables: _Pairs, max_norm: float) -> _Pairs:
    """Clip each gradient of `gradients_to_variables`, (gradient, Variable), to the norm `max_norm`."""
    return [
        (gradient if gradient is None else _mapped(gradient, lambda values: clip_by_norm(values, max_norm)), variable)
        for gradient, variable in gradients_to_variables
    ]


def add_gradients_summaries(grads_and_vars: _Pairs) -> list[Node]:
    """Make a histogram of each gradient of `grads_and_vars`, (gradient, Variable), and a summary of its norm."""
    summaries = []
    for gradient, variable in grads_and_vars:
        if gradient is None:
            _log.info("Var %s has no gradient", variable.op_name)
            continue
        values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
        summaries.append(histogram(f"{variable.op_name}_gradient", values))
        summaries.append(scalar(f"{variable.op_name}_gradient_norm", global_norm([values])))
    return summaries


def _rate(learning_rate: Any) -> Any:
    if learning_rate is None:
        return None
    if isinstance(learning_rate, Node) and learning_rate.shape.ndims == 0:
        return learning_rate
    if isinstance(learning_rate, float):
        if learning_rate < 0.0:
            raise ValueError(f"Invalid learning_rate {learning_rate}.")
        initial = constant_initializer(learning_rate)
        return get_variable("learning_rate", [], trainable=False, initializer=initial)
    raise ValueError(f"Learning rate should be 0d Tensor or float. Got {learning_rate} of type {type(learning_rate)}")


def _optimizer(optimizer: Any, rate: Any) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        return optimizer
    named = isinstance(optimizer, str)
    if named and rate is None:
        raise ValueError(f"Learning rate is None, but should be specified if optimizer is string ({optimizer}).")
    if named:
        if optimizer not in OPTIMIZER_CLS_NAMES:
            names = ", ".join(OPTIMIZER_CLS_NAMES)
            raise ValueError(f"Optimizer name should be one of [{names}], you provided {optimizer}.")
        return OPTIMIZER_CLS_NAMES[optimizer](learning_rate=rate)
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        if rate is None:
            raise ValueError(f"Learning rate is None, but should be specified if optimizer is class ({optimizer}).")
        made: Any = optimizer
        return made(learning_rate=rate)  # type: ignore[no-any-return]
    if not callable(optimizer):
        raise ValueError(
            "Unrecognized optimizer: should be string, subclass of Optimizer, instance of subclass of Optimizer or "
            f"function with one argument. Got {optimizer}."
        )
    built = optimizer() if rate is None else optimizer(rate)
    if not isinstance(built, Optimizer):
        raise ValueError(f"Unrecognized optimizer: function should return subclass of Optimizer. Got {built}.")
    return built


def _mapped(gradient: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def _scaled(gradient: Any, factor: Any) -> Any:
    return _mapped(gradient, lambda values: math_ops.multiply(values, math_ops.cast(factor, values.dtype)))


def _noisy(pairs: _Pairs, deviation: float | None) -> _Pairs:
    def noisy(values: Any) -> Any:
        noise = truncated_normal(shape_of(values), dtype=values.dtype)
        return math_ops.add(values, math_ops.multiply(noise, deviation))

    if deviation is None:
        return pairs
    return [(gradient if gradient is None else _mapped(gradient, noisy), variable) for gradient, variable in pairs]


def _multiplied(pairs: _Pairs, factors: Mapping[Any, Any]) -> _Pairs:
    products = []
    for gradient, variable in pairs:
        key = variable if variable in factors else variable.name
        if gradient is not None and key in factors:
            gradient = _scaled(gradient, factors[key])
        products.append((gradient, variable))
    if not products:
        raise ValueError(
            "Empty list of (gradient, var) pairs encountered. This is most likely to be caused by an improper value of "
            "gradient_multipliers."
        )
    return products


def _clipped(pairs: _Pairs, clip_gradients: Any) -> _Pairs:
    if clip_gradients is None:
        return pairs
    if isinstance(clip_gradients, float):
        clipped, _ = clip_by_global_norm([gradient for gradient, _ in pairs], clip_gradients)
        return [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)]
    if callable(clip_gradients):
        clip: Any = clip_gradients
        after: _Pairs = clip(pairs)
        return after
    raise ValueError(f"Unknown type {type(clip_gradients)} for clip_gradients")


def _summarize(pairs: _Pairs, wanted: Sequence[str]) -> None:
    for gradient, variable in pairs:
        if gradient is None:
            continue
        values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
        name = variable.name.replace(":", "_")
        if "gradients" in wanted:
            histogram(f"gradients/{name}", values)
        if "gradient_norm" in wanted:
            scalar(f"gradient_norm/{name}", global_norm([values]))

"""Regularizers: functions of a Variable to a loss, as `get_variable` and layers take them.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/regularizers.py`.
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection, as_node, get_collection, get_default_graph
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.constant_ops import constant
from globalstep.tf1.ops.nn_ops import l2_loss
from globalstep.tf1.ops.reduction_ops import reduce_sum

_log = logging.getLogger("globalstep")
Regularizer = Callable[[Any], Node | None]


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Give the regularizer scale * sum(abs(weights)).

    Args:
        scale: 0 or a positive float; 0 for no regularizer.
        scope: Name scope of the nodes; default "l1_regularizer".

    Returns:
        A function of a Variable to a scalar node, or to None with a scale of 0.

    Raises:
        ValueError: If `scale` is negative or an int.
    """
    return _scaled(scale, scope or "l1_regularizer", lambda weights: reduce_sum(math_ops.abs(weights)))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """Give the regularizer scale * sum(weights^2) / 2.

    Args:
        scale: 0 or a positive float; 0 for no regularizer.
        scope: Name scope of the nodes; default "l2_regularizer".

    Returns:
        A function of a Variable to a scalar node, or to None with a scale of 0.

    Raises:
        ValueError: If `scale` is negative or an int.

    >>> import globalstep as gs
    >>> w = gs.get_variable("w", initializer=[3.0, 4.0], regularizer=gs.contrib.layers.l2_regularizer(0.1))
    >>> with gs.Session() as sess:
    ...     sess.run(gs.global_variables_initializer())
    ...     print(sess.run(gs.losses.get_regularization_loss()))
    1.25
    """
    return _scaled(scale, scope or "l2_regularizer", l2_loss)


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None) -> Regularizer:
    """Give the sum of both regularizers.

    Args:
        scale_l1: As for `l1_regularizer`.
        scale_l2: As for `l2_regularizer`.
        scope: Name scope of the nodes; default "l1_l2_regularizer".

    Returns:
        As of `l1_regularizer`.

    Raises:
        ValueError: If a scale is negative or an int.
    """
    for name, scale in (("scale_l1", scale_l1), ("scale_l2", scale_l2)):
        if isinstance(scale, numbers.Integral):
            raise ValueError(f"{name} cannot be an integer: {scale}")
    scope = scope or "l1_l2_regularizer"
    if scale_l1 == 0:
        return l2_regularizer(scale_l2, scope)
    if scale_l2 == 0:
        return l1_regularizer(scale_l1, scope)
    both = sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope)
    assert both is not None
    return both


def sum_regularizer(regularizer_list: Sequence[Regularizer | None], scope: str | None = None) -> Regularizer | None:
    """Give the sum of several regularizers.

    Args:
        regularizer_list: The regularizers; None among them counts for nothing.
        scope: Name scope of the nodes; default "sum_regularizer".

    Returns:
        As of `l1_regularizer`; None without any.
    """
    regularizers = [one for one in regularizer_list if one is not None]
    if not regularizers:
        return None

    def regularize(weights: Any) -> Node | None:
        with get_default_graph().name_scope(scope or "sum_regularizer"):
            losses = [loss for loss in (one(weights) for one in regularizers) if loss is not None]
            return math_ops.add_n(losses) if losses else None

    return regularize


def apply_regularization(regularizer: Regularizer, weights_list: Sequence[Any] | None = None) -> Node:
    """Regularize several Variables, and add the sum of their losses to REGULARIZATION_LOSSES.

    Args:
        regularizer: The regularizer.
        weights_list: The Variables; default the collection WEIGHTS.

    Returns:
        The sum, a scalar node.

    Raises:
        ValueError: Without Variables, or if a loss is no scalar.
    """
    weights = get_collection(GraphKeys.WEIGHTS) if weights_list is None else list(weights_list)
    if not weights:
        raise ValueError("No weights to regularize.")
    with get_default_graph().name_scope("get_regularization_penalty") as scope:
        losses = [regularizer(variable) for variable in weights]
        penalties = [constant(0.0) if loss is None else as_node(loss) for loss in losses]
        for penalty in penalties:
            if penalty.shape.ndims != 0:
                raise ValueError(
                    f"regularizer must return a scalar Tensor instead of a Tensor with rank {penalty.shape.ndims}."
                )
        total = math_ops.add_n(penalties, name=scope)
    add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total


def _scaled(scale: float, scope: str, loss: Callable[[Any], Node]) -> Regularizer:
    if isinstance(scale, numbers.Integral):
        raise ValueError(f"scale cannot be an integer: {scale}")
    if isinstance(scale, numbers.Real):
        if scale < 0:
            raise ValueError(f"Setting a scale less than 0 on a regularizer: {scale:g}")
        if scale == 0:
            _log.info("Scale of 0 disables regularizer.")
            return lambda _: None

    def regularize(weights: Any) -> Node:
        node = as_node(weights)
        with node.graph.name_scope(scope) as name:
            return math_ops.multiply(as_node(scale, node.dtype, name="scale"), loss(node), name=name)

    return regularize

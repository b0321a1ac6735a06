"""Parts of all metrics: totals in local Variables, what a batch adds to them, and the value made of them.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DTypeLike
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collections, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import broadcast_to
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.counting_ops import of_rank
from globalstep.tf1.variables.variables import Variable

#: The value of a metric made of its totals: function of the totals and of the name of its node.
Compute = Callable[[Sequence[Node], str | None], Node]


class Collections(NamedTuple):
    """The collections that a metric is added to.

    Attributes:
        values: Collections that its value is added to.
        updates: Collections that its update is added to.
    """

    values: Any = None
    updates: Any = None

    def add(self, value: Any, update: Any) -> tuple[Any, Any]:
        """Add a metric's value and update, and give both."""
        add_to_collections(self.values, value)
        add_to_collections(self.updates, update)
        return value, update


def metric_variable(shape: Any, dtype: DTypeLike, name: str) -> Variable:
    """Make a total: zeros that live in this process, in LOCAL_VARIABLES and METRIC_VARIABLES.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Its name.
    """
    keys = [GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES]
    return Variable(lambda: zeros(shape, dtype), trainable=False, collections=keys, name=name)


def streamed(batch: Mapping[str, Node], compute: Compute, into: Collections) -> tuple[Node, Node]:
    """Make a metric.

    Args:
        batch: Name of each total -> what this batch adds to it, of a known shape.
        compute: Gives the value.
        into: Where both go.

    Returns:
        The value of the totals as they are, and the op that adds the batch and gives the new value.
    """
    totals = [metric_variable(amount.shape, amount.dtype, name) for name, amount in batch.items()]
    updated = [total.assign_add(amount) for total, amount in zip(totals, batch.values(), strict=True)]
    return into.add(compute(totals, "value"), compute(updated, "update_op"))


def ratio(totals: Sequence[Node], name: str | None) -> Node:
    """Divide the first total by the second; 0 where that is not positive."""
    return math_ops.div_no_nan(totals[0], math_ops.maximum(totals[1], 0), name=name)


def aligned(predictions: Any, labels: Any, weights: Any) -> tuple[Node, Any, Node | None]:
    """Drop a last dimension of size 1 that only some of three values have, or give one to the weights.

    Args:
        predictions: Node or array.
        labels: The same, of the same shape but for that dimension; or None.
        weights: The same, or None.

    Returns:
        Nodes, None where None was given.

    Raises:
        ValueError: If predictions and labels have different shapes.
    """
    predicted = as_node(predictions)
    wanted = None if labels is None else as_node(labels)
    if wanted is not None:
        predicted, wanted = of_rank(predicted, wanted), of_rank(wanted, predicted)
        predicted.shape.assert_is_compatible_with(wanted.shape)
    return predicted, wanted, None if weights is None else of_rank(as_node(weights), predicted, expands=True)


def _misfit(own: TensorShape, shape: TensorShape) -> str:
    """Say why weights of one shape cannot weigh what has another; "" where they can."""
    if not own.ndims or shape.ndims is None:
        return ""
    why = f"values.rank={shape.ndims}. weights.rank={own.ndims}."
    if own.ndims == shape.ndims:
        pairs = zip(own.as_list(), shape.as_list(), strict=True)
        misfits = [i for i, (n, m) in enumerate(pairs) if n not in (1, None, m) and m is not None]
        if not misfits:
            return ""
        why = f"Mismatch at dim {misfits[0]}."
    return f"weights can not be broadcast to values. {why} values.shape={shape}. weights.shape={own}."


def fitting(weights: Any, values: Node) -> Node:
    """Give weights as a node of the dtype of `values`: a number, or of its rank with each size its own or 1.

    Raises:
        ValueError: If they do not fit; in the run an InvalidArgumentError.
    """
    factors = math_ops.cast(weights, values.dtype)
    own, shape = factors.shape, values.shape
    if misfit := _misfit(own, shape):
        raise ValueError(misfit)
    if own.ndims == 0 or (own.is_fully_defined() and shape.is_fully_defined()):
        return factors
    return Node("FittingWeights", (factors, values), dtype=factors.dtype, shape=own)


@computes("FittingWeights")
def _fitting(weights: Any, values: Any) -> Any:
    if misfit := _misfit(TensorShape(np.shape(weights)), TensorShape(np.shape(values))):
        raise InvalidArgumentError(misfit)
    return weights


gradient_of("FittingWeights")(lambda node, grad: (grad, None))


def broadcast_weights(weights: Any, values: Node) -> Node:
    """Give weights, which must be `fitting`, as a node like `values`."""
    factors = fitting(weights, values)
    same = values.shape.is_fully_defined() and factors.shape.dims == values.shape.dims
    return factors if same else broadcast_to(factors, shape_of(values))

"""Parts of all metrics: totals in local Variables, what a batch adds to them, and the value made of them.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from globalstep.dtypes import DTypeLike
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collections, as_node
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import broadcast_to, expand_dims, squeeze
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import zeros
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
        predicted, wanted = _of_one_rank(predicted, wanted)
        if not predicted.shape.is_compatible_with(wanted.shape):
            raise ValueError(f"Shapes {predicted.shape} and {wanted.shape} are incompatible")
    if weights is None:
        return predicted, wanted, None
    factors = as_node(weights)
    rank, own = predicted.shape.ndims, factors.shape.ndims
    if rank is not None and own:
        if own - rank == 1:
            factors = squeeze(factors, [-1])
        elif rank - own == 1:
            factors = expand_dims(factors, -1)
    return predicted, wanted, factors


def _of_one_rank(one: Node, other: Node) -> tuple[Node, Node]:
    if one.shape.ndims is None or other.shape.ndims is None:
        return one, other
    longer = one.shape.ndims - other.shape.ndims
    if longer == 1 and one.shape.as_list()[-1] in (1, None):
        return squeeze(one, [-1]), other
    if longer == -1 and other.shape.as_list()[-1] in (1, None):
        return one, squeeze(other, [-1])
    return one, other


def broadcast_weights(weights: Any, values: Node) -> Node:
    """Give weights as a node like `values`.

    Args:
        weights: A number, or of the rank of `values` with each size that of `values` or 1.
        values: What is weighed.

    Raises:
        ValueError: If they do not fit.
    """
    factors = math_ops.cast(weights, values.dtype)
    own, shape = factors.shape, values.shape
    if own.ndims and shape.ndims is not None:
        prefix = "weights can not be broadcast to values."
        if own.ndims != shape.ndims:
            raise ValueError(
                f"{prefix} values.rank={shape.ndims}. weights.rank={own.ndims}. values.shape={shape}. "
                f"weights.shape={own}."
            )
        for i, (n, m) in enumerate(zip(own.as_list(), shape.as_list(), strict=True)):
            if n not in (None, 1) and m is not None and n != m:
                raise ValueError(f"{prefix} Mismatch at dim {i}. values.shape={shape}. weights.shape={own}.")
        if own.is_fully_defined() and shape.is_fully_defined() and own.as_list() == shape.as_list():
            return factors
    return broadcast_to(factors, shape_of(values))

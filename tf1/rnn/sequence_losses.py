"""Losses of sequences: `gs.contrib.seq2seq.sequence_loss`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/seq2seq/python/ops/loss.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.cross_entropy_ops import sparse_softmax_cross_entropy_with_logits
from globalstep.tf1.ops.math_ops import cast, div_no_nan
from globalstep.tf1.ops.reduction_ops import count_nonzero, reduce_sum


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Node:
    """Give the weighted cross entropy of sequences of logits.

    Args:
        logits: [batch, time, classes].
        targets: Classes, integers [batch, time].
        weights: [batch, time]; 0 for what does not count.
        average_across_timesteps: Whether to divide by the sum of weights along time.
        average_across_batch: Whether to divide by the sum of weights along the batch.
        sum_over_timesteps: Whether to sum along time, divided by the number of weights that are not 0.
        sum_over_batch: Whether to sum along the batch, divided by the number of weights that are not 0.
        softmax_loss_function: Function of labels and logits in place of softmax cross entropy.
        name: Name scope of the nodes; default "sequence_loss".

    Returns:
        A scalar where both axes are averaged or summed; [time] or [batch] for one of them; else [batch, time].

    Raises:
        ValueError: If a rank is not the right one, or an axis is to be averaged and summed.
    """
    values, classes, counted = as_node(logits), as_node(targets), as_node(weights)
    for node, rank, text in (
        (values, 3, "Logits must be a [batch_size x sequence_length x logits] tensor"),
        (classes, 2, "Targets must be a [batch_size x sequence_length] tensor"),
        (counted, 2, "Weights must be a [batch_size x sequence_length] tensor"),
    ):
        if node.shape.ndims not in (None, rank):
            raise ValueError(text)
    for average, total, axis in (
        (average_across_timesteps, sum_over_timesteps, "timesteps"),
        (average_across_batch, sum_over_batch, "batch"),
    ):
        if average and total:
            raise ValueError(f"average_across_{axis} and sum_over_{axis} cannot be set to True at same time.")
    with get_default_graph().name_scope(name or "sequence_loss"):
        size = values.shape.as_list()[-1] if values.shape.ndims else None
        flat = reshape(values, [-1, size if size is not None else shape_of(values)[2]])
        labels = reshape(classes, [-1])
        if softmax_loss_function is None:
            losses = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=flat)
        else:
            losses = softmax_loss_function(labels=labels, logits=flat)
        weighted = losses * reshape(counted, [-1])
        if average_across_timesteps and average_across_batch:
            return div_no_nan(reduce_sum(weighted), reduce_sum(counted))
        if sum_over_timesteps and sum_over_batch:
            return div_no_nan(reduce_sum(weighted), cast(count_nonzero(counted), weighted.dtype))
        each = reshape(weighted, shape_of(values)[:2])
        each.set_shape(values.shape[:2])
        along = 0 if average_across_batch or (sum_over_batch and not average_across_timesteps) else 1
        if average_across_timesteps or average_across_batch:
            return div_no_nan(reduce_sum(each, axis=along), reduce_sum(counted, axis=along))
        if sum_over_timesteps or sum_over_batch:
            return div_no_nan(reduce_sum(each, axis=along), count_nonzero(counted, axis=along, dtype=weighted.dtype))
        return each

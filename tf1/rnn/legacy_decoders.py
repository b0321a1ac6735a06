"""Losses and decoders over lists of steps: `gs.contrib.legacy_seq2seq`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/legacy_seq2seq/python/ops/seq2seq.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.cross_entropy_ops import sparse_softmax_cross_entropy_with_logits
from globalstep.tf1.ops.math_ops import add_n, cast
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.rnn.sequences import static_rnn
from globalstep.tf1.variables.variable_scope import variable_scope


def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Callable[[Any, int], Any] | None = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """Run a cell over a list of inputs, or over what it gave before.

    Args:
        decoder_inputs: A list of [batch, size].
        initial_state: The first state.
        cell: The cell.
        loop_function: Function of the last output and the step to the next input, which replaces the one in the list.
        scope: Scope of the Variables; default "rnn_decoder".

    Returns:
        A list of outputs, and the last state.
    """
    with variable_scope(scope or "rnn_decoder") as entered:
        state, outputs, before = initial_state, [], None
        for step, inputs in enumerate(decoder_inputs):
            if loop_function is not None and before is not None:
                with variable_scope("loop_function", reuse=True):
                    inputs = loop_function(before, step)
            if step > 0:
                entered.reuse_variables()
            output, state = cell(inputs, state)
            outputs.append(output)
            if loop_function is not None:
                before = output
        return outputs, state


def basic_rnn_seq2seq(
    encoder_inputs: Sequence[Any], decoder_inputs: Sequence[Any], cell: Any, dtype: Any = "float32", scope: Any = None
) -> tuple[list[Any], Any]:
    """Run a cell over one list of inputs, and another one from its last state on over a second list.

    Args:
        encoder_inputs: A list of [batch, size].
        decoder_inputs: A list of [batch, size].
        cell: The cell of both, which share no Variables.
        dtype: Dtype of the first state.
        scope: Scope of the Variables; default "basic_rnn_seq2seq".

    Returns:
        A list of outputs, and the last state.
    """
    with variable_scope(scope or "basic_rnn_seq2seq"):
        _, state = static_rnn(copy.deepcopy(cell), encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Node:
    """Give the weighted cross entropy of each sequence.

    Args:
        logits: For each step, [batch, classes].
        targets: For each step, classes [batch].
        weights: For each step, [batch].
        average_across_timesteps: Whether to divide by the sum of weights of each sequence.
        softmax_loss_function: Function of labels and logits in place of softmax cross entropy.
        name: Name scope of the nodes; default "sequence_loss_by_example".

    Returns:
        A node [batch].

    Raises:
        ValueError: If the lists differ in length.
    """
    if len(targets) != len(logits) or len(weights) != len(logits):
        raise ValueError(
            f"Lengths of logits, weights, and targets must be the same {len(logits)}, {len(weights)}, {len(targets)}."
        )
    with get_default_graph().name_scope(name or "sequence_loss_by_example"):
        terms = []
        for logit, target, weight in zip(logits, targets, weights, strict=True):
            if softmax_loss_function is None:
                labels = reshape(as_node(target), [-1])
                loss = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logit)
            else:
                loss = softmax_loss_function(labels=target, logits=logit)
            terms.append(loss * as_node(weight))
        total = add_n(terms)
        if average_across_timesteps:
            total = total / (add_n([as_node(weight) for weight in weights]) + 1e-12)
        return total


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Node:
    """Give the weighted cross entropy of all sequences.

    Args:
        logits: As for `sequence_loss_by_example`.
        targets: As for `sequence_loss_by_example`.
        weights: As for `sequence_loss_by_example`.
        average_across_timesteps: As for `sequence_loss_by_example`.
        average_across_batch: Whether to divide by the size of the batch.
        softmax_loss_function: As for `sequence_loss_by_example`.
        name: Name scope of the nodes; default "sequence_loss".

    Returns:
        A scalar node.

    Raises:
        ValueError: If the lists differ in length.
    """
    with get_default_graph().name_scope(name or "sequence_loss"):
        cost = reduce_sum(
            sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        )
        if average_across_batch:
            return cost / cast(shape_of(as_node(targets[0]))[0], cost.dtype)
        return cost

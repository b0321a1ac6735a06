"""Conditional random fields over sequences of tags: `tf.contrib.crf`.

A whole batch is one node: a loop over the steps in numpy, and for the gradient one back over them.

Layer: tf1. Source: TensorFlow 1.15 `tensorflow/contrib/crf/python/ops/crf.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import gradient_of, saved
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, saving_kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.math_ops import cast, maximum
from globalstep.tf1.variables.named_variables import get_variable


def _counts(lengths: Any, steps: int) -> Any:
    """Say which steps of which sequences count: [batch, time]."""
    return np.arange(steps)[None, :] < np.asarray(lengths)[:, None]


def _summed(values: Any, axis: int) -> Any:
    """Give log(sum(exp(values))) along an axis."""
    highest = np.max(values, axis=axis, keepdims=True)
    return np.squeeze(highest, axis) + np.log(np.sum(np.exp(values - highest), axis=axis))


def _places(tags: Any) -> tuple[Any, ...]:
    """Give the places of tags among the scores of all."""
    batch, steps = np.shape(tags)
    return np.arange(batch)[:, None], np.arange(steps)[None, :], tags


@computes("CrfUnaryScore")
def _unary(inputs: Any, tags: Any, lengths: Any) -> Any:
    return np.sum(inputs[_places(tags)] * _counts(lengths, np.shape(tags)[1]), axis=1)


@computes("CrfUnaryScoreGrad")
def _unary_back(gradient: Any, inputs: Any, tags: Any, lengths: Any) -> Any:
    found = np.zeros_like(inputs)
    found[_places(tags)] = gradient[:, None] * _counts(lengths, np.shape(tags)[1])
    return found


@computes("CrfBinaryScore")
def _binary(tags: Any, lengths: Any, transitions: Any) -> Any:
    counts = _counts(np.asarray(lengths) - 1, np.shape(tags)[1] - 1)
    return np.sum(transitions[tags[:, :-1], tags[:, 1:]] * counts, axis=1)


@computes("CrfBinaryScoreGrad")
def _binary_back(gradient: Any, tags: Any, lengths: Any, transitions: Any) -> Any:
    found = np.zeros_like(transitions)
    counts = _counts(np.asarray(lengths) - 1, np.shape(tags)[1] - 1)
    np.add.at(found, (tags[:, :-1], tags[:, 1:]), gradient[:, None] * counts)
    return found


def _forward(inputs: Any, lengths: Any, transitions: Any) -> list[Any]:
    """Give, after each step, the logarithm of the sum of exp(score) over all ways to each tag: [batch, tags]."""
    counts, alphas = _counts(lengths, np.shape(inputs)[1]), [inputs[:, 0]]
    for t in range(1, np.shape(inputs)[1]):
        new = _summed(alphas[-1][:, :, None] + transitions[None], 1) + inputs[:, t]
        alphas.append(np.where(counts[:, t, None], new, alphas[-1]))
    return alphas


@computes("CrfLogNorm")
def _log_norm(inputs: Any, lengths: Any, transitions: Any) -> Any:
    return _log_norm_found(inputs, lengths, transitions)[0]


def _log_norm_found(inputs: Any, lengths: Any, transitions: Any) -> tuple[Any, list[Any]]:
    alphas = _forward(inputs, lengths, transitions)
    return np.where(np.asarray(lengths) > 0, _summed(alphas[-1], 1), 0), alphas


saving_kernel_of("CrfLogNorm")(lambda node: _log_norm_found)


def _softmax(values: Any) -> Any:
    parts = np.exp(values - np.max(values, axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True)


@computes("CrfLogNormGrad")
def _log_norm_back(gradient: Any, alphas: list[Any], inputs: Any, lengths: Any, transitions: Any) -> tuple[Any, Any]:
    counts = _counts(lengths, inputs.shape[1])
    of_inputs, of_transitions = np.zeros_like(inputs), np.zeros_like(transitions)
    flowing = _softmax(alphas[-1]) * np.where(np.asarray(lengths) > 0, gradient, 0)[:, None]
    for t in range(inputs.shape[1] - 1, 0, -1):
        counted = np.where(counts[:, t, None], flowing, 0)
        of_inputs[:, t] = counted
        paths = _softmax(alphas[t - 1][:, :, None] + transitions[None]) * counted[:, None, :]
        of_transitions += paths.sum(axis=0)
        flowing = np.where(counts[:, t, None], paths.sum(axis=2), flowing)
    of_inputs[:, 0] = flowing
    return of_inputs, of_transitions


@computes("CrfDecode")
def _best_tags(inputs: Any, transitions: Any, lengths: Any) -> Any:
    """Give the tags of the best path, [batch, time], 0 past the lengths."""
    batch, steps, _ = inputs.shape
    counts, score, came_from = _counts(lengths, steps), inputs[:, 0], []
    for t in range(1, steps):
        paths = score[:, :, None] + transitions[None]
        came_from.append(paths.argmax(1))
        score = np.where(counts[:, t, None], paths.max(1) + inputs[:, t], score)
    tags = np.zeros((batch, steps), np.int32)
    tag, rows = score.argmax(1), np.arange(batch)
    for t in range(steps - 1, 0, -1):
        tags[:, t] = np.where(counts[:, t], tag, 0)
        tag = np.where(counts[:, t], came_from[t - 1][rows, tag], tag)
    tags[:, 0] = tag
    return tags


def _of_batch(op_type: str, like: Node, *inputs: Any) -> Node:
    """Make a node of one number for each sequence."""
    size = like.shape.as_list()[:1] if like.shape.dims is not None else None
    nodes = [as_node(value) for value in inputs]
    kind = next(node.dtype for node in nodes if node.dtype.is_floating)
    return Node(op_type, nodes, dtype=kind, shape=TensorShape(size))


@gradient_of("CrfUnaryScore")
def _unary_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    inputs = node.inputs[0]
    return (
        Node("CrfUnaryScoreGrad", (grad, *node.inputs), dtype=inputs.dtype, shape=inputs.shape),
        None,
        None,
    )


@gradient_of("CrfBinaryScore")
def _binary_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    scores = node.inputs[2]
    return None, None, Node(
        "CrfBinaryScoreGrad", (grad, *node.inputs), dtype=scores.dtype, shape=scores.shape
    )  # fmt: skip


@gradient_of("CrfLogNorm")
def _log_norm_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    inputs, _, scores = node.inputs
    kept = saved(node)
    both = Node("CrfLogNormGrad", (grad, kept, *node.inputs), attrs={"tuple": True})
    of_inputs, of_scores = (tuple_item(both, at, dtype=x.dtype, shape=x.shape) for at, x in enumerate((inputs, scores)))
    return of_inputs, None, of_scores


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Node:
    """Give the sum of the scores of some tags.

    Args:
        tag_indices: int node or array [batch, time].
        sequence_lengths: int node or array [batch].
        inputs: Scores of all tags, [batch, time, tags].

    Returns:
        A node [batch].
    """
    node = as_node(inputs)
    return _of_batch("CrfUnaryScore", node, node, tag_indices, sequence_lengths)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Node:
    """Give the sum of the scores of going from each tag to the next one, [batch]; see `crf_unary_score`."""
    tags = as_node(tag_indices)
    return _of_batch("CrfBinaryScore", tags, tags, sequence_lengths, transition_params)


def crf_sequence_score(inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Node:
    """Give the score of some tags, unnormalized, [batch]; see `crf_log_likelihood`."""
    unary = crf_unary_score(tag_indices, sequence_lengths, inputs)
    return unary + crf_binary_score(tag_indices, sequence_lengths, transition_params)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Node:
    """Give the logarithm of the sum over all tags of exp(score), [batch]; see `crf_log_likelihood`."""
    node = as_node(inputs)
    return _of_batch("CrfLogNorm", node, node, sequence_lengths, transition_params)


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Node, Any]:
    """Give the logarithm of the probability of some tags.

    Args:
        inputs: Scores of all tags, [batch, time, tags].
        tag_indices: int node or array [batch, time].
        sequence_lengths: int node or array [batch].
        transition_params: Scores of going from one tag to another, [tags, tags]; default a Variable "transitions".

    Returns:
        A node [batch], and the `transition_params`.
    """
    node = as_node(inputs)
    if transition_params is None:
        tags = node.shape.as_list()[2]
        transition_params = get_variable("transitions", [tags, tags])
    score = crf_sequence_score(node, tag_indices, sequence_lengths, transition_params)
    return score - crf_log_norm(node, sequence_lengths, transition_params), transition_params


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Node, Node]:
    """Find the tags with the highest score.

    Args:
        potentials: Scores of all tags, [batch, time, tags].
        transition_params: Scores of going from one tag to another, [tags, tags].
        sequence_length: int node or array [batch].

    Returns:
        The tags [batch, time], int32, 0 past the lengths; and their scores [batch].
    """
    node, lengths = as_node(potentials), maximum(cast(as_node(sequence_length), "int32"), 1)
    size = node.shape.as_list()[:2] if node.shape.dims is not None else None
    tags = Node(
        "CrfDecode", (node, as_node(transition_params), lengths), dtype="int32", shape=TensorShape(size),
        attrs={"stops_gradient": True},
    )  # fmt: skip
    return tags, crf_sequence_score(node, tags, lengths, transition_params)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], Any]:
    """Find the tags with the highest score, of arrays.

    Args:
        score: Scores of all tags, [time, tags].
        transition_params: Scores of going from one tag to another, [tags, tags].

    Returns:
        The tags, and their score.
    """
    scores, transitions, lengths = np.asarray(score)[None], np.asarray(transition_params), [len(score)]
    tags = _best_tags(scores, transitions, lengths)
    return tags[0].tolist(), (_unary(scores, tags, lengths) + _binary(tags, lengths, transitions))[0]

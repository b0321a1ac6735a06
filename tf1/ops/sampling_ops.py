"""Losses over many classes from a sample of them, and the samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import reshape, stop_gradient
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import ones_like, zeros_like
from globalstep.tf1.ops.cross_entropy_ops import sigmoid_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.ops.gradient_ops import rearranges
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.random_ops import Generator
from globalstep.tf1.ops.reduction_ops import reduce_sum


class CandidateSampler(NamedTuple):
    """The result of a `*_candidate_sampler`.

    Attributes:
        sampled_candidates: The classes drawn, an int64 node [num_sampled].
        true_expected_count: How often each true class is expected in a draw, a float32 node [batch, num_true].
        sampled_expected_count: The same for the drawn ones, a float32 node [num_sampled].
    """

    sampled_candidates: Node
    true_expected_count: Node
    sampled_expected_count: Node


@computes("LogUniformCandidateSampler")
@computes("UniformCandidateSampler")
def _sample(
    true: Any, *, generator: Generator, num_sampled: int, unique: bool, range_max: int, log_uniform: bool
) -> Any:
    def draw_ids(random: np.random.Generator) -> Any:
        if not log_uniform:
            return random.integers(0, range_max, num_sampled)
        drawn = np.exp(random.random(num_sampled) * np.log(range_max + 1.0)).astype(np.int64) - 1
        return np.clip(drawn, 0, range_max - 1)

    def draw(random: np.random.Generator) -> tuple[Any, int]:
        if not unique:
            return draw_ids(random), num_sampled
        distinct: dict[int, None] = {}
        tries = 0
        while len(distinct) < num_sampled:
            for number in draw_ids(random):
                tries += 1
                distinct.setdefault(int(number))
                if len(distinct) == num_sampled:
                    break
        return np.fromiter(distinct, np.int64), tries

    def expected(numbers: Any) -> Any:
        ids = np.asarray(numbers, np.float64)
        p = np.full(ids.shape, 1 / range_max)
        if log_uniform:
            p = np.log((ids + 2.0) / (ids + 1.0)) / np.log(range_max + 1.0)
        counts = p * num_sampled if tries == num_sampled else -np.expm1(tries * np.log1p(-p))
        return counts.astype(np.float32)

    drawn, tries = generator.draw(draw)
    return drawn, expected(true), expected(drawn)


def _sampler(op_type: str, name: str, first_line: str) -> Callable[..., CandidateSampler]:
    """Make the public function of a sampler."""
    doc = f"""{first_line}

    Args:
        true_classes: int64 node or array [batch, num_true].
        num_true: Number of target classes of an example.
        num_sampled: How many classes to draw for the batch.
        unique: Whether no class is drawn twice.
        range_max: Number of classes.
        seed: Seed of this operation; see `gs.set_random_seed`.
        name: Name of the node.

    Returns:
        `sampled_candidates`, `true_expected_count` and `sampled_expected_count`.

    Raises:
        ValueError: If fewer classes than unique samples exist.
    """

    @named(name, doc)
    def function(
        true_classes: Any,
        num_true: int,
        num_sampled: int,
        unique: bool,
        range_max: int,
        seed: int | None = None,
        name: str | None = None,
    ) -> CandidateSampler:
        if unique and num_sampled > range_max:
            raise ValueError(f"Sampler's range is too small: {range_max} classes, {num_sampled} unique samples.")
        classes = as_node(true_classes)
        attrs = {
            "tuple": True, "stops_gradient": True, "generator": Generator(seed), "num_sampled": num_sampled,
            "unique": unique, "range_max": range_max, "log_uniform": op_type == "LogUniformCandidateSampler",
        }  # fmt: skip
        parts = Node(op_type, (classes,), name=name or op_type, stateful=True, attrs=attrs)
        return CandidateSampler(
            tuple_item(parts, 0, dtype="int64", shape=[num_sampled]),
            tuple_item(parts, 1, dtype="float32", shape=classes.shape),
            tuple_item(parts, 2, dtype="float32", shape=[num_sampled]),
        )

    return function


log_uniform_candidate_sampler = _sampler(
    "LogUniformCandidateSampler",
    "log_uniform_candidate_sampler",
    "Draw classes with probability (log(k + 2) - log(k + 1)) / log(range_max + 1): Zipf's law.",
)
uniform_candidate_sampler = _sampler("UniformCandidateSampler", "uniform_candidate_sampler", "Draw classes evenly.")


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    partition_strategy: str,
    seed: int | None,
) -> tuple[Node, Node]:
    """Give the scores of the true classes and the drawn ones, and their targets."""
    true = reshape(math_ops.cast(labels, "int64"), [-1, num_true])
    features = as_node(inputs)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(true, num_true, num_sampled, True, num_classes, seed)
    drawn, true_expected, drawn_expected = (stop_gradient(part) for part in sampled_values)
    flat = reshape(true, [-1])
    # One lookup for both kinds of class, so that each table gives one IndexedSlices.
    every = concat([flat, math_ops.cast(drawn, "int64")], 0)
    rows = embedding_lookup(weights, every, partition_strategy)
    offsets = embedding_lookup(biases, every, partition_strategy)
    count = shape_of(flat)[:1]
    true_rows, drawn_rows = _cut(rows, count)
    true_offsets, drawn_offsets = _cut(offsets, count)
    size = features.shape.as_list()[-1]
    if size is None:
        raise ValueError(
            f"The size of the inputs of a sampled loss must be known; {features.name!r} is {features.shape}."
        )
    products = math_ops.multiply(reshape(features, [-1, 1, size]), reshape(true_rows, [-1, num_true, size]))
    true_scores = math_ops.add(reduce_sum(products, -1), reshape(true_offsets, [-1, num_true]))
    drawn_scores = math_ops.add(matmul(features, drawn_rows, transpose_b=True), drawn_offsets)
    if remove_accidental_hits:
        drawn_scores = math_ops.add(drawn_scores, _hits(true, drawn, drawn_scores))
    true_scores = math_ops.subtract(true_scores, math_ops.log(math_ops.cast(true_expected, features.dtype)))
    drawn_scores = math_ops.subtract(drawn_scores, math_ops.log(math_ops.cast(drawn_expected, features.dtype)))
    scores = concat([true_scores, drawn_scores], 1)
    targets = concat([math_ops.divide(ones_like(true_scores), float(num_true)), zeros_like(drawn_scores)], 1)
    return scores, targets


def _cut(rows: Node, count: Node) -> tuple[Node, Node]:
    """Give the first `count` rows and the others."""
    parts = Node("SplitAt", (rows, count), name="Split", attrs={"tuple": True})
    shape = None if rows.shape.dims is None else [None, *rows.shape.as_list()[1:]]
    first, second = (tuple_item(parts, i, dtype=rows.dtype) for i in (0, 1))
    first.set_shape(shape)
    second.set_shape(shape)
    return first, second


computes("SplitAt", lambda rows, count: (rows[: int(count[0])], rows[int(count[0]) :]))
rearranges("SplitAt", views=True)


def _hits(true: Node, drawn: Node, scores: Node) -> Node:
    """Give the smallest number where a drawn class is a true one of the example, 0 elsewhere."""
    lowest = np.finfo(scores.dtype.as_numpy_dtype).min
    attrs = {"lowest": lowest}
    return Node("AccidentalHits", (true, drawn), dtype=scores.dtype, shape=scores.shape, attrs=attrs)


@computes("AccidentalHits")
def _accidental_hits(targets: Any, sample: Any, *, lowest: Any) -> Any:
    hit = (targets[:, :, None] == sample).any(axis=1)
    return np.where(hit, lowest, np.zeros((), lowest.dtype))


def _sampled_loss(
    default_name: str, text: str, remove_hits: bool, loss_of: Callable[[Node, Node], Node]
) -> Callable[..., Node]:
    """Make the public function of a loss over a sample: what `loss_of` gives of targets and scores."""
    doc = f"""{text}

    Args:
        weights: Table [num_classes, size], or a list of tables; see `embedding_lookup`.
        biases: Vector [num_classes], or a list of vectors.
        labels: int64 node or array [batch, num_true].
        inputs: Node [batch, size].
        num_sampled: How many classes to draw for the batch.
        num_classes: Number of classes.
        num_true: Number of target classes of an example.
        sampled_values: What a `*_candidate_sampler` gave; default log-uniform, unique.
        remove_accidental_hits: Whether drawn classes that are true ones count for nothing.
        partition_strategy: "mod" or "div"; see `embedding_lookup`.
        name: Name scope of the nodes.
        seed: Seed of the sampler.

    Returns:
        A node [batch].
    """

    @named(default_name, doc)
    def function(
        weights: Any,
        biases: Any,
        labels: Any,
        inputs: Any,
        num_sampled: int,
        num_classes: int,
        num_true: int = 1,
        sampled_values: Any = None,
        remove_accidental_hits: bool = remove_hits,
        partition_strategy: str = "mod",
        name: str = default_name,
        seed: int | None = None,
    ) -> Node:
        with as_node(inputs).graph.name_scope(name):
            scores, targets = _sampled_logits(
                weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
                remove_accidental_hits, partition_strategy, seed,
            )  # fmt: skip
            return loss_of(targets, scores)

    return function


nce_loss = _sampled_loss(
    "nce_loss",
    "Give the noise-contrastive estimation loss (Gutmann and Hyvarinen 2010) of each example.",
    False,
    lambda targets, scores: reduce_sum(sigmoid_cross_entropy_with_logits(labels=targets, logits=scores), 1),
)
sampled_softmax_loss = _sampled_loss(
    "sampled_softmax_loss",
    """Give the softmax loss of each example over its true classes and a sample (Jean et al. 2014).

    For training only: it underestimates the full loss.""",
    True,
    lambda targets, scores: softmax_cross_entropy_with_logits_v2(labels=stop_gradient(targets), logits=scores),
)

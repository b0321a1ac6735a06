"""Inputs of a decoder at each step: the targets, or its own outputs. `gs.contrib.seq2seq`'s helpers.

Layer: tf1. Source: TensorFlow 1.15 `contrib/seq2seq/python/ops/helper.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.array_ops import transpose
from globalstep.tf1.ops.constant_ops import fill
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.ops.math_ops import cast, equal, greater_equal, minimum
from globalstep.tf1.ops.random_ops import multinomial
from globalstep.tf1.ops.reduction_ops import argmax


class TrainingHelper:
    """Gives a decoder its targets, one step after the other.

    Args:
        inputs: [batch, time, size], or a nest of such.
        sequence_length: How much of each sequence counts, [batch].
        time_major: Whether `inputs` are [time, batch, size].
        name: Accepted as in TensorFlow.

    Raises:
        ValueError: If `sequence_length` is no vector.
    """

    def __init__(self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None) -> None:
        nodes = nest.map_structure(as_node, inputs)
        if not time_major:
            nodes = nest.map_structure(lambda node: transpose(node, [1, 0, *range(2, node.shape.ndims)]), nodes)
        self._inputs = nodes
        self._steps = shape_of(nest.flatten(nodes)[0])[0]
        self._arrays = nest.map_structure(lambda node: TensorArray(node.dtype, self._steps).unstack(node), nodes)
        self._lengths = as_node(sequence_length)
        if self._lengths.shape.ndims not in (None, 1):
            raise ValueError(
                f"Expected sequence_length to be a vector, but received shape: {self._lengths.shape}"
            )  # fmt: skip

    @property
    def batch_size(self) -> Node:
        """Number of sequences."""
        return shape_of(self._lengths)[0]

    def initialize(self, name: str | None = None) -> tuple[Node, Any]:
        """Give which sequences are empty, and the first inputs."""
        return equal(0, self._lengths), self._read(as_node(0))

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Node:
        """Give the likeliest class of each output."""
        return cast(argmax(outputs, axis=-1), "int32")

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Node, Any, Any]:
        """Give which sequences are at their end, the next inputs, and the state."""
        after = time + 1
        return greater_equal(after, self._lengths), self._read(after), state

    def _read(self, at: Node) -> Any:
        # Past the last step nobody looks at what is read.
        place = minimum(at, self._steps - 1)

        def read(array: TensorArray, whole: Node) -> Node:
            node = array.read(place)
            node.set_shape(whole.shape[1:])
            return node

        return nest.map_structure(read, self._arrays, self._inputs)


class GreedyEmbeddingHelper:
    """Gives a decoder the embedding of what it gave before: the likeliest class.

    Args:
        embedding: Function of ids to inputs, or a table for `gs.nn.embedding_lookup`.
        start_tokens: First ids, [batch].
        end_token: The id that ends a sequence.

    Raises:
        ValueError: If `start_tokens` is no vector or `end_token` no scalar.
    """

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        self._embedding: Callable[[Any], Any] = (
            embedding if callable(embedding) else lambda ids: embedding_lookup(embedding, ids)
        )
        self._start, self._end = as_node(start_tokens), as_node(end_token)
        if self._start.shape.ndims not in (None, 1):
            raise ValueError("start_tokens must be a vector")
        if self._end.shape.ndims not in (None, 0):
            raise ValueError("end_token must be a scalar")

    @property
    def batch_size(self) -> Node:
        """Number of sequences."""
        return shape_of(self._start)[0]

    def initialize(self, name: str | None = None) -> tuple[Node, Any]:
        """Say that no sequence is at its end; give the first inputs."""
        return fill([self.batch_size], False), self._embedding(self._start)

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Node:
        """Give the likeliest class of each output."""
        return cast(argmax(outputs, axis=-1), "int32")

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Node, Any, Any]:
        """Give which sequences are at their end, the next inputs, and the state."""
        return equal(sample_ids, self._end), self._embedding(sample_ids), state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Gives a decoder the embedding of what it gave before: a class drawn by its probability.

    Args:
        embedding: As for GreedyEmbeddingHelper.
        start_tokens: As for GreedyEmbeddingHelper.
        end_token: As for GreedyEmbeddingHelper.
        softmax_temperature: What logits are divided by.
        seed: Seed of the draws.
    """

    def __init__(
        self, embedding: Any, start_tokens: Any, end_token: Any, softmax_temperature: Any = None, seed: Any = None
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Node:
        """Draw a class for each output."""
        logits = outputs if self._temperature is None else outputs / self._temperature
        return cast(multinomial(logits, 1, seed=self._seed)[:, 0], "int32")

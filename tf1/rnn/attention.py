"""Attention: Luong's and Bahdanau's, and a cell that attends. `gs.contrib.seq2seq`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/seq2seq/python/ops/attention_wrapper.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.layers.functional_layers import dense
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.ops.array_ops import expand_dims, reshape, squeeze
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import fill, zeros
from globalstep.tf1.ops.constant_ops import range as range_of
from globalstep.tf1.ops.indexing_ops import gather, where
from globalstep.tf1.ops.init_ops import constant_initializer, ones_initializer, zeros_initializer
from globalstep.tf1.ops.joining_ops import concat, tile
from globalstep.tf1.ops.math_ops import cast, rsqrt, square, tanh
from globalstep.tf1.ops.nn_ops import softmax
from globalstep.tf1.ops.partition_ops import sequence_mask
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.rnn.cells import RNNCell
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.variable_scope import variable_scope


class AttentionWrapperState(NamedTuple):
    """The state of an AttentionWrapper.

    Attributes:
        cell_state: That of the cell inside.
        attention: What was attended to last.
        time: The step.
        alignments: The weights, of each mechanism.
        alignment_history: TensorArrays of the weights of all steps, or ().
        attention_state: The mechanisms' states.
    """

    cell_state: Any
    attention: Any
    time: Any
    alignments: Any
    alignment_history: Any
    attention_state: Any

    def clone(self, **changes: Any) -> AttentionWrapperState:
        """Give the state with some parts replaced."""
        return self._replace(**changes)


class AttentionMechanism:
    """A memory, and how a query finds its weights in it.

    Args:
        units: Size of the keys.
        memory: [batch, time, size].
        memory_sequence_length: How much of each memory counts, [batch].
        probability_fn: From scores to weights; default softmax.
        score_mask_value: The score of what does not count; default minus infinity.
    """

    def __init__(
        self, units: int, memory: Any, memory_sequence_length: Any, probability_fn: Any, score_mask_value: Any
    ) -> None:  # fmt: skip
        node = as_node(memory)
        self._units = units
        self._mask: Node | None = None
        if memory_sequence_length is not None:
            self._mask = sequence_mask(memory_sequence_length, shape_of(node)[1])
            node = node * expand_dims(cast(self._mask, node.dtype), 2)
            node.set_shape(as_node(memory).shape)
        self.values = node
        self.keys = dense(node, units, use_bias=False, name="memory_layer")
        self._probability = probability_fn or softmax
        self._masked = -np.inf if score_mask_value is None else score_mask_value

    @property
    def batch_size(self) -> Node:
        """Number of memories."""
        return shape_of(self.keys)[0]

    @property
    def alignments_size(self) -> Any:
        """Length of the memories."""
        length = self.keys.shape.as_list()[1]
        return length if length is not None else shape_of(self.keys)[1]

    @property
    def state_size(self) -> Any:
        """Size of the state, which is the weights."""
        return self.alignments_size

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Node:
        """Give weights of zeros."""
        return zeros([batch_size, self.alignments_size], dtype=as_dtype(dtype))

    initial_state = initial_alignments

    def score(self, query: Any) -> Node:
        """Give the scores [batch, time] of a query [batch, size]."""
        raise NotImplementedError  # abstract

    def __call__(self, query: Any, state: Any) -> tuple[Node, Node]:
        """Give the weights, and the new state."""
        scores = self.score(query)
        if self._mask is not None:
            masked = fill(shape_of(scores), np.asarray(self._masked, scores.dtype.as_numpy_dtype))
            scores = where(self._mask, scores, masked)
        alignments = self._probability(scores)
        alignments.set_shape(self.keys.shape[:2])
        return alignments, alignments


class LuongAttention(AttentionMechanism):
    """Scores are products of query and keys.

    Args:
        num_units: Size of the queries, which is that of the keys.
        memory: [batch, time, size].
        memory_sequence_length: How much of each memory counts, [batch].
        scale: Whether scores are scaled by a Variable.
        probability_fn: From scores to weights; default softmax.
        score_mask_value: The score of what does not count; default minus infinity.
        dtype: Accepted as in TensorFlow.
        custom_key_value_fn: Refused unless None.
        name: Accepted as in TensorFlow.
    """

    def __init__(
        self, num_units: int, memory: Any, memory_sequence_length: Any = None, scale: bool = False,
        probability_fn: Callable[..., Any] | None = None, score_mask_value: Any = None, dtype: Any = None,
        custom_key_value_fn: Any = None, name: str = "LuongAttention",
    ) -> None:  # fmt: skip
        _require_no_function(custom_key_value_fn)
        super().__init__(num_units, memory, memory_sequence_length, probability_fn, score_mask_value)
        self._scale = scale

    def score(self, query: Any) -> Node:
        """Give the scores of a query."""
        with variable_scope(None, "luong_attention"):
            depth = query.shape.as_list()[-1]
            if depth != self._units:
                raise ValueError(
                    "Incompatible or unknown inner dimensions between query and keys. Query has units: "
                    f"{depth}. Keys have units: {self._units}. Perhaps you need to set num_units to the query's."
                )
            scores = squeeze(matmul(expand_dims(query, 1), self.keys, transpose_b=True), [1])
            if self._scale:
                scores = get_variable("attention_g", [], query.dtype, ones_initializer()) * scores
            return scores


class BahdanauAttention(AttentionMechanism):
    """Scores are v * tanh(query + keys), summed.

    Args:
        num_units: Size of query and keys.
        memory: [batch, time, size].
        memory_sequence_length: How much of each memory counts, [batch].
        normalize: Whether v is normalized.
        probability_fn: From scores to weights; default softmax.
        score_mask_value: The score of what does not count; default minus infinity.
        dtype: Accepted as in TensorFlow.
        custom_key_value_fn: Refused unless None.
        name: Accepted as in TensorFlow.
    """

    def __init__(
        self, num_units: int, memory: Any, memory_sequence_length: Any = None, normalize: bool = False,
        probability_fn: Callable[..., Any] | None = None, score_mask_value: Any = None, dtype: Any = None,
        custom_key_value_fn: Any = None, name: str = "BahdanauAttention",
    ) -> None:  # fmt: skip
        _require_no_function(custom_key_value_fn)
        super().__init__(num_units, memory, memory_sequence_length, probability_fn, score_mask_value)
        self._normalize = normalize

    def score(self, query: Any) -> Node:
        """Give the scores of a query."""
        with variable_scope(None, "bahdanau_attention"):
            units, dtype = self._units, query.dtype
            asked = expand_dims(dense(query, units, use_bias=False, name="query_layer"), 1)
            v = get_variable("attention_v", [units], dtype)
            if not self._normalize:
                return reduce_sum(v * tanh(self.keys + asked), [2])
            g = get_variable("attention_g", [], dtype, constant_initializer(math.sqrt(1.0 / units)))
            b = get_variable("attention_b", [units], dtype, zeros_initializer())
            normed = g * v * rsqrt(reduce_sum(square(v)))
            return reduce_sum(normed * tanh(self.keys + asked + b), [2])


class AttentionWrapper(RNNCell):
    """A cell that reads, with its inputs, what it attended to, and attends anew with its output.

    Args:
        cell: The cell inside.
        attention_mechanism: A mechanism, or a list of them.
        attention_layer_size: Size of what output and context are projected to; default the context as it is. One
            for each mechanism, if there are several.
        alignment_history: Whether the state keeps the weights of all steps.
        cell_input_fn: From inputs and attention to the inputs of the cell; default both of them.
        output_attention: Whether the output is the attention, and not that of the cell.
        initial_cell_state: First state of the cell; default zeros.
        name: Scope of the Variables; default "attention_wrapper".
        attention_layer: In place of `attention_layer_size`: a function, or one for each mechanism.
    """

    def __init__(
        self, cell: Any, attention_mechanism: Any, attention_layer_size: Any = None, alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None, output_attention: bool = True,
        initial_cell_state: Any = None, name: str | None = None, attention_layer: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(name=name)
        if attention_layer_size is not None and attention_layer is not None:
            raise ValueError("Only one of attention_layer_size and attention_layer should be set")
        self._cell = cell
        self._several = isinstance(attention_mechanism, (list, tuple))
        self._mechanisms: list[Any] = list(attention_mechanism) if self._several else [attention_mechanism]
        count = len(self._mechanisms)
        self._sizes = _one_each(attention_layer_size, count, "attention_layer_size")
        self._layers = _one_each(attention_layer, count, "attention_layer")
        self._history = alignment_history
        self._cell_inputs = cell_input_fn or (lambda inputs, attention: concat([inputs, attention], -1))
        self._output_attention = output_attention
        self._initial_cell_state = initial_cell_state

    @property
    def _attention_size(self) -> int:
        sizes = [
            mechanism.values.shape.as_list()[-1] if size is None else size
            for size, mechanism in zip(self._sizes, self._mechanisms, strict=True)
        ]
        return sum(sizes)

    @property
    def output_size(self) -> Any:
        """Size of the attention, or of the cell's output."""
        return self._attention_size if self._output_attention else self._cell.output_size

    @property
    def state_size(self) -> AttentionWrapperState:
        """The sizes of the parts of the state."""
        sizes = self._packed([mechanism.alignments_size for mechanism in self._mechanisms])
        return AttentionWrapperState(
            self._cell.state_size, self._attention_size, (), sizes, self._packed([()] * len(self._mechanisms)), sizes
        )

    def zero_state(self, batch_size: Any, dtype: Any) -> AttentionWrapperState:
        """Give the first state."""
        state = self._initial_cell_state
        if state is None:
            state = self._cell.zero_state(batch_size, dtype)
        first = [mechanism.initial_alignments(batch_size, dtype) for mechanism in self._mechanisms]
        history: list[Any] = [
            TensorArray(dtype, 0, dynamic_size=True) if self._history else () for _ in self._mechanisms
        ]  # fmt: skip
        return AttentionWrapperState(
            state, zeros([batch_size, self._attention_size], dtype=as_dtype(dtype)), as_node(0), self._packed(first),
            self._packed(history), self._packed(first),
        )  # fmt: skip

    def _packed(self, items: list[Any]) -> Any:
        return tuple(items) if self._several else items[0]

    def _unpacked(self, items: Any) -> Sequence[Any]:
        return list(items) if self._several else [items]

    def call(self, inputs: Any, state: Any) -> tuple[Any, AttentionWrapperState]:
        """Give output and new state."""
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(f"Expected state to be instance of AttentionWrapperState. Received type {type(state)}.")
        output, cell_state = self._cell(self._cell_inputs(inputs, state.attention), state.cell_state)
        attentions, alignments, states = [], [], []
        for at, (mechanism, before) in enumerate(
            zip(self._mechanisms, self._unpacked(state.attention_state), strict=True)
        ):  # fmt: skip
            weights, after = mechanism(output, before)
            context = squeeze(matmul(expand_dims(weights, 1), mechanism.values), [1])
            attentions.append(self._attended(at, output, context))
            alignments.append(weights)
            states.append(after)
        attention = concat(attentions, 1) if len(attentions) > 1 else attentions[0]
        history = state.alignment_history
        if self._history:
            pairs = zip(self._unpacked(history), alignments, strict=True)
            history = self._packed([array.write(state.time, weights) for array, weights in pairs])
        new = AttentionWrapperState(
            cell_state, attention, state.time + 1, self._packed(alignments), history, self._packed(states)
        )  # fmt: skip
        return (attention if self._output_attention else output), new

    def _attended(self, at: int, output: Any, context: Any) -> Any:
        joined = concat([output, context], 1)
        if self._layers[at] is not None:
            return self._layers[at](joined)
        if self._sizes[at] is None:
            return context
        name = "attention_layer" if at == 0 else f"attention_layer_{at}"
        return dense(joined, self._sizes[at], use_bias=False, name=name)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeat each entry of a batch.

    Args:
        t: A nest of [batch, ...].
        multiplier: How often.
        name: Accepted as in TensorFlow.

    Returns:
        A nest of [batch * multiplier, ...].
    """

    def repeat(value: Any) -> Node:
        node = as_node(value)
        count = shape_of(node)[0]
        rows = reshape(tile(expand_dims(range_of(count), 1), [1, multiplier]), [-1])
        return gather(node, rows)

    return nest.map_structure(repeat, t)


def _require_no_function(custom_key_value_fn: Any) -> None:
    if custom_key_value_fn is not None:
        raise ValueError("custom_key_value_fn is not known here: give the memory as it is to be used.")


def _one_each(value: Any, count: int, name: str) -> list[Any]:
    items = list(value) if isinstance(value, (list, tuple)) else [value] if count == 1 else [None] * count
    if len(items) != count:
        raise ValueError(f"If provided, {name} must contain exactly one of each attention mechanism: {count}.")
    return items

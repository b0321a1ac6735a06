"""Decoders: `gs.contrib.seq2seq.dynamic_decode` and BasicDecoder.

Layer: tf1. Source: TensorFlow 1.15 `contrib/seq2seq/python/ops/decoder.py`, `basic_decoder.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.loops.while_loops import while_loop
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.array_ops import transpose
from globalstep.tf1.ops.constant_ops import fill, zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.math_ops import greater_equal, logical_not, logical_or
from globalstep.tf1.ops.reduction_ops import reduce_all
from globalstep.tf1.variables.variable_scope import variable_scope


class BasicDecoderOutput(NamedTuple):
    """The output of a BasicDecoder at a step.

    Attributes:
        rnn_output: The cell's output, through the output layer if there is one.
        sample_id: The class chosen.
    """

    rnn_output: Any
    sample_id: Any


class Decoder:
    """The base of decoders of one's own, which define `batch_size`, `output_dtype`, `initialize` and `step`."""

    @property
    def batch_size(self) -> Any:
        """Number of sequences."""
        raise NotImplementedError  # abstract

    @property
    def output_dtype(self) -> Any:
        """Dtypes of what a step gives, in its structure."""
        raise NotImplementedError  # abstract

    @property
    def tracks_own_finished(self) -> bool:
        """Whether `step` itself tracks which sequences have ended; else one that has ended stays so."""
        return False

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Give which sequences are at their end, the first inputs, and the first state."""
        raise NotImplementedError  # abstract

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """Give outputs, next state, next inputs, and which sequences are at their end."""
        raise NotImplementedError  # abstract

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Give the outputs of all steps and the last state, as they are to be given back."""
        return outputs, final_state


class BasicDecoder(Decoder):
    """A cell that reads what a helper gives it.

    Args:
        cell: The cell.
        helper: Gives the inputs, and chooses classes.
        initial_state: The first state.
        output_layer: Function of the cell's output to the logits.

    Raises:
        TypeError: If `output_layer` is no function.
    """

    def __init__(
        self, cell: Any, helper: Any, initial_state: Any, output_layer: Callable[[Any], Any] | None = None
    ) -> None:
        if output_layer is not None and not callable(output_layer):
            raise TypeError(f"output_layer must be a function, received: {type(output_layer)}")
        self._cell, self._helper = cell, helper
        self._initial_state = initial_state
        self._output_layer = output_layer

    @property
    def batch_size(self) -> Any:
        """Number of sequences."""
        return self._helper.batch_size

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        """The dtypes of state and class."""
        return BasicDecoderOutput(nest.flatten(self._initial_state)[0].dtype, as_node(0).dtype)

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Give which sequences are at their end, the first inputs, and the first state."""
        return (*self._helper.initialize(), self._initial_state)

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """Give outputs, next state, next inputs, and which sequences are at their end."""
        output, new = self._cell(inputs, state)
        if self._output_layer is not None:
            output = self._output_layer(output)
        ids = self._helper.sample(time=time, outputs=output, state=new)
        finished, after, new = self._helper.next_inputs(time=time, outputs=output, state=new, sample_ids=ids)
        return BasicDecoderOutput(output, ids), new, after, finished


def dynamic_decode(
    decoder: Any,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Run a decoder until all sequences are at their end.

    Args:
        decoder: The decoder.
        output_time_major: Whether outputs are [time, batch, ...] and not [batch, time, ...].
        impute_finished: Whether past a sequence's end outputs are zeros, and its state stays.
        maximum_iterations: The largest number of steps: number or node.
        parallel_iterations: Accepted; steps come one after another.
        swap_memory: Accepted.
        scope: Scope of the Variables; default "decoder".

    Returns:
        The outputs in the structure of a step's, the last state, and the sequences' lengths, int32 [batch].

    Raises:
        ValueError: If `maximum_iterations` is no scalar.
    """
    with variable_scope(scope, "decoder"):
        limit = None if maximum_iterations is None else as_node(maximum_iterations)
        if limit is not None and limit.shape.ndims not in (None, 0):
            raise ValueError("maximum_iterations must be a scalar")
        finished, inputs, state = decoder.initialize()
        if limit is not None:
            finished = logical_or(finished, greater_equal(0, limit))
        lengths = zeros_like(finished, dtype="int32")
        kinds = decoder.output_dtype
        arrays = [TensorArray(kind, 0, dynamic_size=True) for kind in nest.flatten(kinds)]

        def body(time: Node, written: Any, state: Any, inputs: Any, finished: Any, lengths: Any) -> Any:
            outputs, new, after, ends = decoder.step(time, inputs, state)
            if not getattr(decoder, "tracks_own_finished", False):
                ends = logical_or(ends, finished)
            counted = where(logical_not(finished), fill(shape_of(lengths), time + 1), lengths)
            flat = nest.flatten(outputs)
            if impute_finished:
                flat = [where(finished, zeros_like(node), node) for node in flat]
                new = nest.map_structure(lambda one, old: _kept(finished, one, old), new, state)
            done = [array.write(time, node) for array, node in zip(written, flat, strict=True)]
            return time + 1, done, new, after, ends, counted

        _, arrays, last, _, _, lengths = while_loop(
            lambda time, written, state, inputs, finished, lengths: logical_not(reduce_all(finished)),
            body,
            (as_node(0), arrays, state, inputs, finished, lengths),
            maximum_iterations=limit,
        )
        outputs = nest.pack_sequence_as(kinds, [array.stack() for array in arrays])
        if hasattr(decoder, "finalize"):
            outputs, last = decoder.finalize(outputs, last, lengths)
        if not output_time_major:
            outputs = nest.map_structure(
                lambda node: transpose(node, [1, 0, *range(2, node.shape.ndims or 2)]), outputs
            )  # fmt: skip
        return outputs, last, lengths


def _kept(finished: Node, new: Any, old: Any) -> Any:
    """Give the old state of sequences that are at their end."""
    if isinstance(new, TensorArray) or new.shape.ndims == 0:
        return new
    return where(finished, old, new)

"""Fused cells of `tf.contrib.rnn`: they run over whole sequences [time, batch, size] in one call.

Layer: tf1. Source: TensorFlow 1.15 `tensorflow/contrib/rnn/python/ops/fused_rnn_cell.py` and `lstm_ops.py`.
"""

from __future__ import annotations

import abc
from typing import Any

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.ops.joining_ops import reverse, stack, unstack
from globalstep.tf1.ops.math_ops import cast
from globalstep.tf1.ops.reversal_ops import reverse_sequence
from globalstep.tf1.rnn.lstm_cells import LSTMBlockCell
from globalstep.tf1.rnn.sequences import dynamic_rnn, one_size, static_rnn


class FusedRNNCell(abc.ABC):
    """Base class of cells that run over whole sequences."""

    @abc.abstractmethod
    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """Run over sequences.

        Args:
            inputs: [time, batch, size], or a list of [batch, size].
            initial_state: The first state; default zeros of `dtype`.
            dtype: See `initial_state`.
            sequence_length: How much of each sequence counts, [batch]; past it outputs are zeros.
            scope: Scope of the Variables.

        Returns:
            Outputs as `inputs`, and the last states within the lengths.
        """


class FusedRNNCellAdaptor(FusedRNNCell):
    """Any cell, as what runs over whole sequences.

    Args:
        cell: The cell.
        use_dynamic_rnn: Whether by `dynamic_rnn`; else by `static_rnn`.
    """

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False) -> None:
        self._cell, self._dynamic = cell, use_dynamic_rnn

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """See FusedRNNCell."""
        if self._dynamic:
            outputs, state = dynamic_rnn(
                self._cell, _whole(inputs), sequence_length, initial_state, dtype, time_major=True, scope=scope
            )  # fmt: skip
            return _as_given(outputs, inputs), state
        listed = isinstance(inputs, (list, tuple))
        steps = inputs if listed else unstack(as_node(inputs))
        outputs, state = static_rnn(self._cell, steps, initial_state, dtype, sequence_length, scope)
        return outputs if listed else stack(outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """Runs from the last step of each sequence to the first.

    Args:
        cell: What runs over whole sequences.
    """

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """See FusedRNNCell."""
        outputs, state = self._cell(
            _reversed(inputs, sequence_length), initial_state=initial_state, dtype=dtype,
            sequence_length=sequence_length, scope=scope,
        )  # fmt: skip
        return _reversed(outputs, sequence_length), state


def _whole(steps: Any) -> Node:
    return stack(steps) if isinstance(steps, (list, tuple)) else as_node(steps)


def _as_given(outputs: Any, steps: Any) -> Any:
    """Give outputs as a list if the steps came as one."""
    return unstack(outputs, num=len(steps)) if isinstance(steps, (list, tuple)) else outputs


def _reversed(steps: Any, lengths: Any) -> Any:
    node = _whole(steps)
    turned = reverse(node, [0]) if lengths is None else reverse_sequence(node, lengths, seq_axis=0, batch_axis=1)
    return _as_given(turned, steps)


class LSTMBlockFusedCell(FusedRNNCell):
    """An LSTM over whole sequences.

    Args:
        num_units: Size of c and h.
        forget_bias: Added to the forget gate; it is not in the bias.
        cell_clip: c is clipped to +-this, if it is given and positive.
        use_peephole: Whether the gates see c.
        reuse: True to take Variables that exist.
        dtype: Dtype of the Variables; default that of the inputs.
        name: Scope of the Variables.
    """

    def __init__(
        self, num_units: int, forget_bias: float = 1.0, cell_clip: float | None = None, use_peephole: bool = False,
        reuse: Any = None, dtype: Any = None, name: str = "lstm_fused_cell",
    ) -> None:  # fmt: skip
        self._cell = LSTMBlockCell(num_units, forget_bias, cell_clip, use_peephole, dtype, reuse, name)

    @property
    def num_units(self) -> int:
        """Size of c and h."""
        return int(self._cell.output_size)

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """See FusedRNNCell; the state is an LSTMStateTuple.

        Raises:
            ValueError: If there is neither `initial_state` nor `dtype`.
        """
        node = _whole(inputs)
        if initial_state is None:
            if dtype is None:
                raise ValueError("Either initial_state or dtype needs to be specified")
            initial_state = self._cell.zero_state(one_size(node, 1), dtype)
        lengths = None if sequence_length is None else cast(as_node(sequence_length), "int32")
        outputs, state = self._cell.over_sequence(node, tuple(map(as_node, initial_state)), lengths)
        return _as_given(outputs, inputs), state

"""Cells made of cells: MultiRNNCell, DropoutWrapper, ResidualWrapper, DeviceWrapper.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/rnn_cell_impl.py`, `rnn_cell_wrapper_impl.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node, device
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.building import is_node
from globalstep.tf1.ops.constant_ops import zeros_like
from globalstep.tf1.ops.indexing_ops import slice as slice_of
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import add, floor
from globalstep.tf1.ops.nn_ops import dropout
from globalstep.tf1.ops.random_ops import random_uniform
from globalstep.tf1.rnn.cells import LSTMStateTuple, RNNCell
from globalstep.tf1.rnn.fused import mask_of
from globalstep.tf1.variables.variable_scope import variable_scope


class MultiRNNCell(RNNCell):
    """Cells in a row: the output of one is the input of the next.

    Args:
        cells: The cells.
        state_is_tuple: Whether the state is a tuple of theirs; else one array.

    Raises:
        ValueError: Without cells, or where a state is a tuple that does not fit into one array.
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not cells:
            raise ValueError("Must specify at least one cell for MultiRNNCell.")
        if not nest.is_sequence(cells):
            raise TypeError(f"cells must be a list or tuple, but saw: {cells}.")
        self._cells = list(cells)
        self._state_is_tuple = state_is_tuple
        if not state_is_tuple and any(nest.is_sequence(cell.state_size) for cell in self._cells):
            raise ValueError(
                f"Some cells return tuples of states, but the flag state_is_tuple is not set. State sizes are: "
                f"{[cell.state_size for cell in self._cells]}"
            )

    @property
    def state_size(self) -> Any:
        """The states' sizes."""
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        """The size of the last cell's output."""
        return self._cells[-1].output_size

    @property
    def weights(self) -> list[Any]:
        """The Variables of all its cells."""
        return [weight for cell in self._cells for weight in getattr(cell, "weights", ())]

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Give states of zeros."""
        if self._state_is_tuple:
            return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)
        return super().zero_state(batch_size, dtype)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give the last cell's output, and all new states."""
        states = self._states(state)
        current, new = inputs, []
        for number, (cell, its_state) in enumerate(zip(self._cells, states, strict=True)):
            with variable_scope(f"cell_{number}"):
                current, next_state = cell(current, its_state)
            new.append(next_state)
        return current, tuple(new) if self._state_is_tuple else concat(new, 1)

    def _states(self, state: Any) -> list[Any]:
        if self._state_is_tuple:
            if not nest.is_sequence(state) or len(state) != len(self._cells):
                raise ValueError(f"Expected state to be a tuple of length {len(self._cells)}, but received: {state}")
            return list(state)
        states, start = [], 0
        for cell in self._cells:
            states.append(slice_of(state, [0, start], [-1, cell.state_size]))
            start += cell.state_size
        return states

    @property
    def runs_sequences(self) -> bool:
        """Whether all cells support `over_sequence`."""
        return (
            type(self) is MultiRNNCell
            and self._state_is_tuple
            and len({id(cell) for cell in self._cells}) == len(self._cells)
            and all(_runs_sequences(cell) for cell in self._cells)
        )

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Run one cell after the other over the whole sequence."""
        last = []
        with self.opened(inputs):
            for number, (cell, its_state) in enumerate(zip(self._cells, self._states(state), strict=True)):
                with variable_scope(f"cell_{number}"):
                    inputs, end = cell.over_sequence(inputs, its_state, lengths)
                last.append(end)
        return inputs, tuple(last)


def _runs_sequences(cell: Any) -> bool:
    return bool(getattr(cell, "runs_sequences", False))


class _Wrapper(RNNCell):
    """A cell around another one. It adds no level to names."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        if not callable(cell) or not hasattr(cell, "state_size"):
            raise TypeError(f"The parameter cell must be an RNNCell: {cell!r}")
        self._cell = cell

    @property
    def wrapped_cell(self) -> Any:
        """The cell inside."""
        return self._cell

    @property
    def state_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.output_size

    @property
    def weights(self) -> list[Any]:
        """Those of the cell inside."""
        return list(getattr(self._cell, "weights", ()))

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Give what the cell inside gives."""
        return self._cell.zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """Give output and new state."""
        return self._around(inputs, state, lambda given, of: _called(self._cell, given, of, scope))

    def _around(self, inputs: Any, state: Any, inner: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        raise NotImplementedError  # abstract


def _called(cell: Any, inputs: Any, state: Any, scope: Any) -> Any:
    return cell(inputs, state) if scope is None else cell(inputs, state, scope)


class DropoutWrapper(_Wrapper):
    """Dropout on the inputs, outputs and states of a cell. The c of an LSTM's state is never dropped.

    Args:
        cell: The cell.
        input_keep_prob: What is kept of the inputs: number or node.
        output_keep_prob: What is kept of the outputs.
        state_keep_prob: What is kept of the new state.
        variational_recurrent: Whether all time steps drop the same.
        input_size: Size of the inputs; needed for variational dropout of inputs.
        dtype: Dtype of inputs, states and outputs; needed for variational dropout.
        seed: Seed of the dropout.
        dropout_state_filter_visitor: Function of a state that says, place by place, what may be dropped.

    Raises:
        ValueError: For a probability out of range, or where a variational argument is missing.
    """

    def __init__(
        self, cell: Any, input_keep_prob: Any = 1.0, output_keep_prob: Any = 1.0, state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False, input_size: Any = None, dtype: Any = None, seed: int | None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(cell)
        self._keep = {"input": input_keep_prob, "state": state_keep_prob, "output": output_keep_prob}
        for word, keep in self._keep.items():
            if not is_node(keep) and not 0 <= float(keep) <= 1:
                raise ValueError(f"Parameter {word}_keep_prob must be between 0 and 1: {float(keep)}")
        if dropout_state_filter_visitor is not None and not callable(dropout_state_filter_visitor):
            raise TypeError("dropout_state_filter_visitor must be callable")
        self._may_drop = dropout_state_filter_visitor or _all_but_c
        self._seed = seed
        self._noise: dict[str, Any] | None = None
        if variational_recurrent:
            if dtype is None:
                raise ValueError("When variational_recurrent=True, dtype must be provided")
            if self._drops("input") and input_size is None:
                raise ValueError(
                    "When variational_recurrent=True and input_keep_prob < 1.0 or is unknown, input_size must be "
                    "provided"
                )
            sizes = {"input": input_size, "state": cell.state_size, "output": cell.output_size}
            self._noise = {
                word: nest.map_structure(lambda size, word=word: self._one_noise(size, dtype, word), sizes[word])
                for word in sizes if self._drops(word)
            }  # fmt: skip

    def _one_noise(self, size: Any, dtype: Any, word: str) -> Node:
        return random_uniform([1, *TensorShape(size).as_list()], dtype=dtype, seed=self._seed_of(word))

    def _seed_of(self, word: str, at: int = 0) -> int | None:
        if self._seed is None:
            return None
        text = f"{self._seed}_{word}_{at}_DropoutWrapper_1"
        return int.from_bytes(hashlib.md5(text.encode()).digest()[:8], "little") & 0x7FFFFFFF

    def _drops(self, word: str) -> bool:
        keep = self._keep[word]
        return is_node(keep) or float(keep) < 1

    def _dropped(self, word: str, values: Any, may_drop: Any = None) -> Any:
        if not self._drops(word):
            return values
        leaves = nest.flatten(values)
        chosen = [True] * len(leaves) if may_drop is None else nest.flatten(may_drop)
        noise = [None] * len(leaves) if self._noise is None else nest.flatten(self._noise[word])
        return nest.pack_sequence_as(
            values,
            [
                self._one_dropped(word, at, value, drop, by)
                for at, (value, drop, by) in enumerate(zip(leaves, chosen, noise, strict=True))
            ],
        )

    def _one_dropped(self, word: str, at: int, value: Any, drop: bool, noise: Any) -> Any:
        keep = self._keep[word]
        if not drop:
            return value
        if noise is None:
            return dropout(value, keep, seed=self._seed_of(word, at))
        return value / keep * floor(noise + keep)

    def _around(self, inputs: Any, state: Any, inner: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        output, new = inner(self._dropped("input", inputs), state)
        if self._drops("state"):
            new = self._dropped("state", new, _visited(self._may_drop, new))
        return self._dropped("output", output), new

    @property
    def runs_sequences(self) -> bool:
        """Whether the cell inside does, and what is dropped is drawn anew at each step, of inputs and outputs only."""
        plain = type(self) is DropoutWrapper and self._noise is None and not self._drops("state")
        return plain and _runs_sequences(self._cell)

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Drop, run over the whole sequence, drop."""
        outputs, last = self._cell.over_sequence(self._dropped("input", inputs), state, lengths)
        return self._dropped("output", outputs), last


def _all_but_c(state: Any) -> Any:
    """Say what of a state may be dropped."""
    if isinstance(state, LSTMStateTuple):
        return LSTMStateTuple(c=False, h=True)
    return True


def _visited(visitor: Callable[[Any], Any], state: Any) -> Any:
    """Give the structure of a state with what `visitor` says at each place."""
    said = visitor(state)
    if nest.is_sequence(said) or not nest.is_sequence(state):
        return said
    return nest.pack_sequence_as(state, [leaf for part in state for leaf in nest.flatten(_visited(visitor, part))])


class ResidualWrapper(_Wrapper):
    """A cell whose inputs are added to its outputs.

    Args:
        cell: The cell.
        residual_fn: Function of inputs and outputs, in the place of addition.
    """

    def __init__(self, cell: Any, residual_fn: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__(cell)
        self._residual_fn = residual_fn

    def _around(self, inputs: Any, state: Any, inner: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        outputs, new = inner(inputs, state)
        if self._residual_fn is not None:
            return self._residual_fn(inputs, outputs), new
        nest.assert_same_structure(inputs, outputs)
        return nest.map_structure(add, inputs, outputs), new

    @property
    def runs_sequences(self) -> bool:
        """Whether the cell inside does, and adding is all that is done."""
        return type(self) is ResidualWrapper and self._residual_fn is None and _runs_sequences(self._cell)

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Run over the whole sequence, and add."""
        outputs, last = self._cell.over_sequence(inputs, state, lengths)
        total = add(inputs, outputs)
        return (total if lengths is None else zeroed_past(total, lengths)), last


class DeviceWrapper(_Wrapper):
    """A cell whose nodes are placed on a device.

    Args:
        cell: The cell.
        device: The device.
    """

    def __init__(self, cell: Any, device: Any) -> None:
        super().__init__(cell)
        self._device = device

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Give what the cell inside gives."""
        with device(self._device):
            return self._cell.zero_state(batch_size, dtype)

    def _around(self, inputs: Any, state: Any, inner: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        with device(self._device):
            return inner(inputs, state)  # type: ignore[no-any-return]


def zeroed_past(values: Node, lengths: Node) -> Node:
    """Give [time, batch, size] with zeros past the lengths."""
    counts = Node("WithinLengths", (values, as_node(lengths)), name="SequenceMask", dtype="bool", shape=values.shape)
    return where(counts, values, zeros_like(values))


@computes("WithinLengths")
def _within_lengths(array: Any, counts: Any) -> Any:
    flags = mask_of(counts, len(array))
    return np.broadcast_to(True if flags is None else flags, np.shape(array))

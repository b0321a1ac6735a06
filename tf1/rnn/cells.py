"""Recurrent cells: what makes an output and a new state of an input and a state. `gs.nn.rnn_cell`.

Names, arguments, Variable names and numbers are those of TensorFlow 1.15.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/rnn_cell_impl.py` and `python/layers/base.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.by_name import activation_of, initializer_of
from globalstep.tf1.layers.layer import snake_case
from globalstep.tf1.ops.array_ops import identity
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.init_ops import ones_initializer, zeros_initializer
from globalstep.tf1.ops.joining_ops import concat, split
from globalstep.tf1.ops.math_ops import sigmoid, tanh
from globalstep.tf1.ops.nn_ops import bias_add
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.rnn.fused import run_fused
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.variable_scope import VariableScope, variable_scope


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM.

    Attributes:
        c: What it remembers.
        h: What it gave last.
    """

    c: Any
    h: Any

    @property
    def dtype(self) -> Any:
        """The dtype of both.

        Raises:
            TypeError: If they differ.
        """
        if self.c.dtype != self.h.dtype:
            raise TypeError(f"Inconsistent internal state: {self.c.dtype.name} vs {self.h.dtype.name}")
        return self.c.dtype


class RNNCell:
    """The base of all cells. A cell of one's own defines `state_size`, `output_size`, `call`, and perhaps `build`.

    Calling a cell a second time shares the Variables of the first.

    Args:
        trainable: Whether optimizers train its Variables by default.
        name: Scope of its Variables; default the name of the class, "basic_lstm_cell".
        dtype: Dtype of its Variables; default that of the first input.
        **kwargs: `_reuse`: True to take Variables that exist.
    """

    def __init__(self, trainable: bool = True, name: str | None = None, dtype: Any = None, **kwargs: Any) -> None:
        reuse = kwargs.pop("_reuse", None)
        kwargs.pop("activity_regularizer", None)
        if kwargs:
            raise TypeError(f"Unknown keyword arguments: {', '.join(kwargs)}")
        self.trainable = trainable
        self.built = False
        self._given = {"name": name, "dtype": dtype, "reuse": reuse}
        self._cell_scope: VariableScope | None = None
        self._weights: list[Any] = []

    @property
    def state_size(self) -> Any:
        """Size of the state: an int, or a nest of ints."""
        raise NotImplementedError("abstract method")

    @property
    def output_size(self) -> Any:
        """Size of the output."""
        raise NotImplementedError("abstract method")

    @property
    def name(self) -> str:
        """Scope of its Variables."""
        return str(self._options["name"] or snake_case(type(self).__name__))

    @property
    def dtype(self) -> Any:
        """Dtype of its Variables; None before the first input is known."""
        return self._options["dtype"]

    @property
    def scope_name(self) -> str:
        """Full name of the scope of its Variables."""
        if self._scope_or_none is None:
            raise ValueError(f"No name available for cell {self.name!r} because it has not been used yet.")
        return self._scope_or_none.name

    @property
    def weights(self) -> list[Any]:
        """The Variables that it made by `add_variable`."""
        return list(self.__dict__.get("_weights", ()))

    @property
    def variables(self) -> list[Any]:
        """The same as `weights`."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Any]:
        """The same, if they are trained."""
        return self.weights if self.__dict__.get("trainable", True) else []

    trainable_weights = trainable_variables

    @property
    def _options(self) -> dict[str, Any]:
        # A subclass need not call __init__.
        options: dict[str, Any] = self.__dict__.setdefault("_given", {"name": None, "dtype": None, "reuse": None})
        return options

    @property
    def _scope_or_none(self) -> VariableScope | None:
        return self.__dict__.get("_cell_scope")

    def build(self, inputs_shape: Any) -> None:
        """Make the Variables, once the shape of the inputs is known."""
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state; within the cell's scope."""
        raise NotImplementedError(f"{type(self).__name__} defines neither call nor __call__.")  # abstract

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """Give output and new state.

        Args:
            inputs: Floating node [batch, size].
            state: A nest of nodes, of `state_size`.
            scope: Scope of the Variables; default the one of the first call, then the cell's name.

        Returns:
            Output and state.
        """
        with self.opened(inputs, scope):
            return self.call(inputs, state)

    @contextlib.contextmanager
    def opened(self, inputs: Any, scope: Any = None) -> Iterator[None]:
        """Open the cell's scope within a `with` block, with its Variables made.

        Args:
            inputs: A floating node whose last dimension is that of the cell's inputs.
            scope: As for a call.
        """
        nodes = [as_node(node) for node in nest.flatten(inputs)]
        if self._options["dtype"] is None and nodes:
            self._options["dtype"] = nodes[0].dtype
        reuse = self._options["reuse"]
        if self._scope_or_none is None:
            target = scope if scope is not None else self.name if reuse else None
            with variable_scope(target, default_name=self.name, auxiliary_name_scope=False) as entered:
                self._cell_scope = entered
        built = self.__dict__.get("built", False)
        with variable_scope(self._scope_or_none, reuse=True if built else reuse):
            if not built:
                shapes = [node.shape for node in nodes]
                self.build(shapes[0] if len(shapes) == 1 else shapes)
                self.built = True
            yield

    def add_variable(
        self,
        name: str,
        shape: Any,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool = True,
        constraint: Any = None,
        partitioner: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Make a Variable in the cell's scope; see `gs.get_variable`."""
        made = get_variable(
            name, shape, dtype or self.dtype, initializer_of(initializer), regularizer,
            trainable and self.__dict__.get("trainable", True), partitioner=partitioner, constraint=constraint,
        )  # fmt: skip
        self.__dict__.setdefault("_weights", []).append(made)
        return made

    add_weight = add_variable

    def zero_state(self, batch_size: Any, dtype: DTypeLike) -> Any:
        """Give a state of zeros.

        Args:
            batch_size: Number of sequences: number or node.
            dtype: Its dtype.

        Returns:
            A nest of nodes [batch_size, size].
        """
        return nest.map_structure(lambda size: _zeros(batch_size, size, dtype), self.state_size)

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        """Give a state of zeros for a batch like `inputs`, or of a size."""
        if inputs is not None:
            from globalstep.tf1.ops.array_ops import shape

            batch_size, dtype = shape(inputs)[0], as_node(inputs).dtype
        if batch_size is None or dtype is None:
            raise ValueError("batch_size and dtype must be given where there are no inputs.")
        return self.zero_state(batch_size, dtype)

    @property
    def runs_sequences(self) -> bool:
        """Whether `over_sequence` can be used."""
        return False

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Run over a whole sequence in one node.

        Args:
            inputs: [time, batch, size].
            state: The first state.
            lengths: How much of each sequence counts; None for all.

        Returns:
            Outputs [time, batch, size], zero past the lengths, and the last states within them.
        """
        raise NotImplementedError(f"{type(self).__name__} runs step by step.")  # abstract


def is_own(cell: RNNCell, kind: type) -> bool:
    """Whether a cell does what `kind` does, and is no subclass that does something else."""
    actual = type(cell)
    return all(getattr(actual, name) is getattr(kind, name) for name in ("call", "__call__", "build"))


def last_size(shape: Any) -> int:
    """Give the static size of the inputs.

    Raises:
        ValueError: If it is not known.
    """
    static = TensorShape(shape)
    size = static.as_list()[-1] if static.ndims else None
    if size is None:
        raise ValueError(f"Expected inputs.shape[-1] to be known, saw shape: {static}")
    return size


def require_floating(node: Node) -> None:
    """Refuse inputs that are no floats."""
    if not node.dtype.is_floating:
        raise ValueError(f"RNN cell only supports floating point inputs, but saw dtype: {node.dtype.name}")


def cell_activation(activation: Callable[..., Any] | str | None) -> Callable[..., Any]:
    """Return an activation: a function, the one of a name, or tanh for None."""
    return tanh if activation is None else activation_of(activation) or identity


def joined_product(parts: Sequence[Any], kernel: Any, bias: Any) -> Node:
    """Give concat(parts) @ kernel + bias."""
    return bias_add(matmul(concat(list(parts), 1), kernel), bias)


class _UnitsCell(RNNCell):
    """Base class of cells whose output is their state, of a number of units."""

    def __init__(
        self, num_units: int, activation: Any, reuse: Any, name: str | None, dtype: Any, **kwargs: Any
    ) -> None:
        super().__init__(name=name, dtype=dtype, _reuse=reuse, **kwargs)
        self._num_units = int(num_units)
        self._activation = cell_activation(activation)

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._num_units

    output_size = state_size


class BasicRNNCell(_UnitsCell):
    """tanh([inputs, state] @ kernel + bias), which is output and state.

    Args:
        num_units: Size of the state.
        activation: In the place of tanh.
        reuse: True to take Variables that exist.
        name: Scope of the Variables; default "basic_rnn_cell".
        dtype: Their dtype; default that of the inputs.
        **kwargs: As for RNNCell.
    """

    def __init__(
        self, num_units: int, activation: Any = None, reuse: Any = None, name: str | None = None, dtype: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)

    def build(self, inputs_shape: Any) -> None:
        """Make kernel and bias."""
        size = last_size(inputs_shape)
        self._kernel = self.add_variable("kernel", [size + self._num_units, self._num_units])
        self._bias = self.add_variable("bias", [self._num_units], initializer=zeros_initializer(dtype=self.dtype))
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        require_floating(as_node(inputs))
        output = self._activation(joined_product([inputs, state], self._kernel, self._bias))
        return output, output

    @property
    def runs_sequences(self) -> bool:
        """Whether it is a plain one with tanh."""
        return self._activation is tanh and is_own(self, BasicRNNCell)

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Run over a whole sequence in one node."""
        with self.opened(inputs):
            weights = [self._kernel, self._bias]
            outputs, (last,) = run_fused("tanh", inputs, lengths, [state], weights, self._num_units)
        return outputs, last


class GRUCell(_UnitsCell):
    """Gated recurrent unit: r, u = sigmoid([x, h] Kg + bg); h' = u h + (1 - u) tanh([x, r h] Kc + bc).

    Args:
        num_units: Size of the state.
        activation: In the place of tanh.
        reuse: True to take Variables that exist.
        kernel_initializer: Of both kernels; default the scope's.
        bias_initializer: Of both biases; default ones for the gates and zeros for the candidate.
        name: Scope of the Variables; default "gru_cell".
        dtype: Their dtype; default that of the inputs.
        **kwargs: As for RNNCell.
    """

    def __init__(
        self, num_units: int, activation: Any = None, reuse: Any = None, kernel_initializer: Any = None,
        bias_initializer: Any = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._kernel_initializer = kernel_initializer
        self._bias_initializer = bias_initializer

    def build(self, inputs_shape: Any) -> None:
        """Make kernels and biases."""
        rows, units = last_size(inputs_shape) + self._num_units, self._num_units
        bias, kernel = self._bias_initializer, self._kernel_initializer
        ones, none = ones_initializer(dtype=self.dtype), zeros_initializer(dtype=self.dtype)
        self._gate_kernel = self.add_variable("gates/kernel", [rows, 2 * units], initializer=kernel)
        self._gate_bias = self.add_variable("gates/bias", [2 * units], initializer=ones if bias is None else bias)
        self._candidate_kernel = self.add_variable("candidate/kernel", [rows, units], initializer=kernel)
        self._candidate_bias = self.add_variable(
            "candidate/bias", [units], initializer=none if bias is None else bias
        )  # fmt: skip
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        require_floating(as_node(inputs))
        gates = sigmoid(joined_product([inputs, state], self._gate_kernel, self._gate_bias))
        r, u = split(gates, 2, axis=1)
        candidate = self._activation(joined_product([inputs, r * state], self._candidate_kernel, self._candidate_bias))
        new = u * state + (1 - u) * candidate
        return new, new

    @property
    def runs_sequences(self) -> bool:
        """Whether it is a plain one with tanh."""
        return self._activation is tanh and is_own(self, GRUCell)

    def over_sequence(self, inputs: Node, state: Any, lengths: Node | None) -> tuple[Node, Any]:
        """Run over a whole sequence in one node."""
        with self.opened(inputs):
            weights = [self._gate_kernel, self._gate_bias, self._candidate_kernel, self._candidate_bias]
            outputs, (last,) = run_fused("gru", inputs, lengths, [state], weights, self._num_units)
        return outputs, last


def _zeros(batch_size: Any, size: Any, dtype: DTypeLike) -> Node:
    sizes = size.as_list() if isinstance(size, TensorShape) else [size]
    return zeros([batch_size, *sizes], dtype=as_dtype(dtype))

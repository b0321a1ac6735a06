"""LSTM cells: BasicLSTMCell, LSTMCell with peepholes and projection, LayerNormBasicLSTMCell, NASCell.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/rnn_cell_impl.py`, `contrib/rnn/python/ops/rnn_cell.py`.
"""

from __future__ import annotations

import logging
from typing import Any

from globalstep.tf1.graph.graph import as_node
from globalstep.tf1.ops.clipping import clip_by_value
from globalstep.tf1.ops.init_ops import constant_initializer, zeros_initializer
from globalstep.tf1.ops.joining_ops import concat, split
from globalstep.tf1.ops.math_ops import sigmoid, tanh
from globalstep.tf1.ops.nn_ops import bias_add, dropout, relu
from globalstep.tf1.ops.normalization_ops import batch_normalization, moments
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.rnn.cells import (
    LSTMStateTuple,
    RNNCell,
    cell_activation,
    is_own,
    joined_product,
    last_size,
    require_floating,
)
from globalstep.tf1.rnn.fused import run_fused
from globalstep.tf1.rnn.fused_lstm import LSTMOptions
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.variable_scope import variable_scope

_log = logging.getLogger(__name__)


class _LSTM(RNNCell):
    """Base class of LSTM cells: their state, as a tuple or as one array."""

    _state_is_tuple = True
    _num_units = 0
    _num_proj: int | None = None

    @property
    def state_size(self) -> Any:
        """Sizes of c and h; their sum where the state is one array."""
        c, h = self._num_units, self.output_size
        return LSTMStateTuple(c, h) if self._state_is_tuple else c + h

    @property
    def output_size(self) -> int:
        """The number of units, or of what they are projected to."""
        return self._num_units if self._num_proj is None else self._num_proj

    def _taken_apart(self, state: Any) -> tuple[Any, Any]:
        if self._state_is_tuple:
            c, h = state
            return c, h
        c, h = split(state, [self._num_units, self.output_size], axis=1)
        return c, h

    def _put_together(self, c: Any, h: Any) -> Any:
        return LSTMStateTuple(c, h) if self._state_is_tuple else concat([c, h], 1)

    def _warn_of_one_array(self) -> None:
        if not self._state_is_tuple:
            _log.warning("%s: a state in one array is deprecated; use state_is_tuple=True.", type(self).__name__)


class BasicLSTMCell(_LSTM):
    """LSTM: i, j, f, o = [x, h] @ kernel + bias; c' = c s(f + forget_bias) + s(i) tanh(j); h' = tanh(c') s(o).

    Args:
        num_units: Size of c and h.
        forget_bias: Added to the forget gate; it is not in the bias, so not in checkpoints either.
        state_is_tuple: Whether the state is an LSTMStateTuple; else [c, h] in one array.
        activation: In the place of tanh.
        reuse: True to take Variables that exist.
        name: Scope of the Variables; default "basic_lstm_cell".
        dtype: Their dtype; default that of the inputs.
        **kwargs: As for RNNCell.
    """

    def __init__(
        self, num_units: int, forget_bias: float = 1.0, state_is_tuple: bool = True, activation: Any = None,
        reuse: Any = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(name=name, dtype=dtype, _reuse=reuse, **kwargs)
        self._num_units = int(num_units)
        self._forget_bias = forget_bias
        self._state_is_tuple = state_is_tuple
        self._activation = cell_activation(activation)
        self._warn_of_one_array()

    def build(self, inputs_shape: Any) -> None:
        """Make kernel and bias."""
        size, n = last_size(inputs_shape), self._num_units
        self._kernel = self.add_variable("kernel", [size + n, 4 * n])
        self._bias = self.add_variable("bias", [4 * n], initializer=zeros_initializer(dtype=self.dtype))
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        require_floating(as_node(inputs))
        c, h = self._taken_apart(state)
        i, j, f, o = split(joined_product([inputs, h], self._kernel, self._bias), 4, axis=1)
        new_c = c * sigmoid(f + self._forget_bias) + sigmoid(i) * self._activation(j)
        new_h = self._activation(new_c) * sigmoid(o)
        return new_h, self._put_together(new_c, new_h)

    @property
    def runs_sequences(self) -> bool:
        """Whether it is a plain one with tanh and a number for forget_bias."""
        return self._activation is tanh and is_own(self, BasicLSTMCell) and isinstance(self._forget_bias, (int, float))

    def over_sequence(self, inputs: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
        """Run over a whole sequence in one node."""
        with self.opened(inputs):
            options = LSTMOptions(self._num_units, float(self._forget_bias))
            outputs, (c, h) = run_fused(
                options, inputs, lengths, self._taken_apart(state), [self._kernel, self._bias], self._num_units
            )
        return outputs, self._put_together(c, h)


class LSTMCell(_LSTM):
    """LSTM with peepholes, clipping and projection.

    Args:
        num_units: Size of c.
        use_peepholes: Whether the gates see c, by w_f_diag, w_i_diag and w_o_diag.
        cell_clip: c is clipped to +-this.
        initializer: Of all weights; default the scope's.
        num_proj: Size of h, which is projected; default not.
        proj_clip: What is projected is clipped to +-this.
        num_unit_shards: Cuts the kernel into parts (older).
        num_proj_shards: Cuts the projection into parts (older).
        forget_bias: Added to the forget gate; it is not in the bias.
        state_is_tuple: Whether the state is an LSTMStateTuple; else [c, h] in one array.
        activation: In the place of tanh.
        reuse: True to take Variables that exist.
        name: Scope of the Variables; default "lstm_cell".
        dtype: Their dtype; default that of the inputs.
        **kwargs: As for RNNCell.
    """

    def __init__(
        self, num_units: int, use_peepholes: bool = False, cell_clip: float | None = None, initializer: Any = None,
        num_proj: int | None = None, proj_clip: float | None = None, num_unit_shards: int | None = None,
        num_proj_shards: int | None = None, forget_bias: float = 1.0, state_is_tuple: bool = True,
        activation: Any = None, reuse: Any = None, name: str | None = None, dtype: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(name=name, dtype=dtype, _reuse=reuse, **kwargs)
        if num_unit_shards is not None or num_proj_shards is not None:
            _log.warning("LSTMCell: num_unit_shards and num_proj_shards have no effect; give the scope a partitioner.")
        self._num_units = int(num_units)
        self._use_peepholes = use_peepholes
        self._cell_clip, self._proj_clip = cell_clip, proj_clip
        self._initializer = initializer
        self._num_proj = None if num_proj is None else int(num_proj)
        self._forget_bias = forget_bias
        self._state_is_tuple = state_is_tuple
        self._activation = cell_activation(activation)
        self._warn_of_one_array()

    def build(self, inputs_shape: Any) -> None:
        """Make the weights."""
        size, n, initializer = last_size(inputs_shape), self._num_units, self._initializer
        self._kernel = self.add_variable("kernel", [size + self.output_size, 4 * n], initializer=initializer)
        self._bias = self.add_variable("bias", [4 * n], initializer=zeros_initializer(dtype=self.dtype))
        if self._use_peepholes:
            self._peepholes = [
                self.add_variable(name, [n], initializer=initializer) for name in ("w_f_diag", "w_i_diag", "w_o_diag")
            ]
        if self._num_proj is not None:
            self._projection = self.add_variable("projection/kernel", [n, self._num_proj], initializer=initializer)
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        require_floating(as_node(inputs))
        c, h = self._taken_apart(state)
        i, j, f, o = split(joined_product([inputs, h], self._kernel, self._bias), 4, axis=1)
        f = f + self._forget_bias
        if self._use_peepholes:
            of_f, of_i, of_o = self._peepholes
            f, i = f + of_f * c, i + of_i * c
        new_c = sigmoid(f) * c + sigmoid(i) * self._activation(j)
        if self._cell_clip is not None:
            new_c = clip_by_value(new_c, -self._cell_clip, self._cell_clip)
        if self._use_peepholes:
            o = o + of_o * new_c
        new_h = sigmoid(o) * self._activation(new_c)
        if self._num_proj is not None:
            new_h = matmul(new_h, self._projection)
            if self._proj_clip is not None:
                new_h = clip_by_value(new_h, -self._proj_clip, self._proj_clip)
        return new_h, self._put_together(new_c, new_h)

    @property
    def runs_sequences(self) -> bool:
        """Whether it is a plain one with tanh, and numbers for forget_bias and clipping."""
        numbers = (self._forget_bias, self._cell_clip or 0, self._proj_clip or 0)
        return (
            self._activation is tanh
            and is_own(self, LSTMCell)
            and all(isinstance(number, (int, float)) for number in numbers)
        )

    def over_sequence(self, inputs: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
        """Run over a whole sequence in one node."""
        with self.opened(inputs):
            projected = self._num_proj is not None
            options = LSTMOptions(
                self._num_units, float(self._forget_bias), self._use_peepholes, projected, self._cell_clip,
                self._proj_clip if projected else None,
            )  # fmt: skip
            weights = [self._kernel, self._bias]
            weights += self._peepholes if self._use_peepholes else []
            weights += [self._projection] if projected else []
            outputs, (c, h) = run_fused(options, inputs, lengths, self._taken_apart(state), weights, self.output_size)
        return outputs, self._put_together(c, h)


class LSTMBlockCell(LSTMCell):
    """An LSTMCell without projection; in TensorFlow a quicker one.

    Args:
        num_units: Size of c and h.
        forget_bias: Added to the forget gate; it is not in the bias.
        cell_clip: c is clipped to +-this, if it is given and positive.
        use_peephole: Whether the gates see c.
        dtype: Dtype of the Variables; default that of the inputs.
        reuse: True to take Variables that exist.
        name: Scope of the Variables; default "lstm_cell".
    """

    def __init__(
        self, num_units: int, forget_bias: float = 1.0, cell_clip: float | None = None, use_peephole: bool = False,
        dtype: Any = None, reuse: Any = None, name: str = "lstm_cell",
    ) -> None:  # fmt: skip
        clip = cell_clip if cell_clip is not None and cell_clip > 0 else None
        super().__init__(
            num_units, use_peephole, clip, forget_bias=forget_bias, dtype=dtype, reuse=reuse, name=name
        )  # fmt: skip


class LayerNormBasicLSTMCell(_LSTM):
    """LSTM whose gates and c are normalized over their units, with dropout of what is new to c.

    Args:
        num_units: Size of c and h.
        forget_bias: Added to the forget gate.
        input_size: Accepted as in TensorFlow.
        activation: In the place of tanh.
        layer_norm: Whether to normalize; without, the gates have a bias.
        norm_gain: First value of gamma.
        norm_shift: First value of beta.
        dropout_keep_prob: What is kept of the new input to c: number or node.
        dropout_prob_seed: Seed of the dropout.
        reuse: True to take Variables that exist.
        name: Scope of the Variables; default "layer_norm_basic_lstm_cell".
    """

    def __init__(
        self, num_units: int, forget_bias: float = 1.0, input_size: Any = None, activation: Any = None,
        layer_norm: bool = True, norm_gain: float = 1.0, norm_shift: float = 0.0, dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None, reuse: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name=name, _reuse=reuse)
        self._num_units = int(num_units)
        self._forget_bias = forget_bias
        self._activation = cell_activation(activation)
        self._layer_norm = layer_norm
        self._gain, self._shift = norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    def _normalized(self, value: Any, scope: str) -> Any:
        if not self._layer_norm:
            return value
        with variable_scope(scope):
            gamma = get_variable("gamma", [self._num_units], value.dtype, constant_initializer(self._gain))
            beta = get_variable("beta", [self._num_units], value.dtype, constant_initializer(self._shift))
        mean, variance = moments(value, [1], keep_dims=True)
        return batch_normalization(value, mean, variance, beta, gamma, 1e-12)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        node = as_node(inputs)
        require_floating(node)
        c, h = state
        n = self._num_units
        kernel = get_variable("kernel", [last_size(node.shape) + n, 4 * n], node.dtype)
        gates = matmul(concat([node, h], 1), kernel)
        if not self._layer_norm:
            gates = gates + get_variable("bias", [4 * n], node.dtype, zeros_initializer())
        i, j, f, o = split(gates, 4, axis=1)
        i, j = self._normalized(i, "input"), self._normalized(j, "transform")
        f, o = self._normalized(f, "forget"), self._normalized(o, "output")
        new = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            new = dropout(new, self._keep_prob, seed=self._seed)
        new_c = c * sigmoid(f + self._forget_bias) + sigmoid(i) * new
        new_c = self._normalized(new_c, "state")
        new_h = self._activation(new_c) * sigmoid(o)
        return new_h, LSTMStateTuple(new_c, new_h)


class NASCell(_LSTM):
    """The cell that a search over architectures found (arXiv:1611.01578), with a state c and h as an LSTM's.

    Args:
        num_units: Size of c.
        num_proj: Size of h, which is projected; default not.
        use_biases: Whether the eight gates have a bias.
        reuse: True to take Variables that exist.
        **kwargs: As for RNNCell; default of `name` "nas_cell".
    """

    def __init__(
        self, num_units: int, num_proj: int | None = None, use_biases: bool = False, reuse: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(_reuse=reuse, **kwargs)
        self._num_units = int(num_units)
        self._num_proj = None if num_proj is None else int(num_proj)
        self._use_biases = use_biases

    def build(self, inputs_shape: Any) -> None:
        """Make the weights."""
        size, n = last_size(inputs_shape), self._num_units
        self._of_h = self.add_variable("recurrent_kernel", [self.output_size, 8 * n])
        self._of_x = self.add_variable("kernel", [size, 8 * n])
        if self._use_biases:
            self._bias = self.add_variable("bias", [8 * n], initializer=zeros_initializer(dtype=self.dtype))
        if self._num_proj is not None:
            self._projection = self.add_variable("projection_weights", [n, self._num_proj])
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Give output and new state."""
        require_floating(as_node(inputs))
        c, h = state
        from_h, from_x = matmul(h, self._of_h), matmul(inputs, self._of_x)
        if self._use_biases:
            from_h = bias_add(from_h, self._bias)
        gates = zip(split(from_x, 8, axis=1), split(from_h, 8, axis=1), strict=True)
        a, b, d, (x, m), e, f, g, k = [pair if at == 3 else pair[0] + pair[1] for at, pair in enumerate(gates)]
        remembered = tanh(tanh(sigmoid(a) * relu(b)) + c)
        new_c = remembered * tanh(sigmoid(d) + relu(x * m))
        new_h = tanh(new_c * tanh(tanh(tanh(e) * sigmoid(f)) + sigmoid(tanh(g) + sigmoid(k))))
        if self._num_proj is not None:
            new_h = matmul(new_h, self._projection)
        return new_h, LSTMStateTuple(new_c, new_h)

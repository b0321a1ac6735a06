"""Whole sequences of recurrent cells in ONNX: LSTM, GRU and RNN.

The gates of a kernel lie in another order there: i, o, f, c for TensorFlow's i, j, f, o; z, r, h for r, u and the
candidate.

Layer: tf1. Threads: functions only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.tf1.exporting.onnx_models import Translation, UntranslatableError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.rnn.fused_lstm import LSTMOptions


def recurrent_sequence(t: Translation, node: Node) -> list[str]:
    """Translate `globalstep.tf1.rnn.fused.run_fused`'s node: outputs, then the last states."""
    cell, count = node.attrs["sequence"], node.attrs["states"]
    x, *others = node.inputs
    states, rest = others[:count], others[count:]
    lengths = [t.cast(t.of(rest.pop()), "int32")] if node.attrs["lengths"] else [""]
    first = [t.add("Unsqueeze", [t.of(state), t.constant([0], np.int64)]) for state in states]
    size = x.shape.as_list()[2] if x.shape.dims is not None else None
    if size is None:
        raise UntranslatableError(f"the size of {x.name!r} is not known before a run")
    weights, begin = [t.of(weight) for weight in rest], [*lengths, *first]
    if isinstance(cell, LSTMOptions):
        return _lstm(t, cell, t.of(x), size, weights, begin)
    if cell == "gru":
        return _gru(t, t.of(x), size, rest, begin)
    if cell == "tanh":
        units = _columns(rest[0])
        kernel, inner = _of_kernel(t, weights[0], size, [(0, units)])
        bias = _biases(t, weights[1], [(0, units)], None, units)
        outputs, last = t.add("RNN", [t.of(x), kernel, inner, bias, *begin], 2, hidden_size=units)
        return [_flat(t, outputs, 1), _flat(t, last, 0)]
    raise UntranslatableError("ONNX has no such cell: make it step by step, with gs.nn.static_rnn")


def _lstm(t: Translation, options: LSTMOptions, x: str, size: int, weights: list[str], begin: list[str]) -> list[str]:
    if options.projected or options.cell_clip or options.proj_clip:
        raise UntranslatableError("ONNX's LSTM has no projection, nor this clipping")
    n = options.units
    order = [(0, n), (3 * n, 4 * n), (2 * n, 3 * n), (n, 2 * n)]
    kernel, inner = _of_kernel(t, weights[0], size, order)
    forget = np.zeros(4 * n, np.float32)
    forget[2 * n : 3 * n] = options.forget_bias
    bias = _biases(t, weights[1], order, forget, 4 * n)
    lengths, c, h = begin
    inputs = [x, kernel, inner, bias, lengths, h, c]
    if options.peepholes:
        of_f, of_i, of_o = weights[2:5]
        peepholes = t.add("Concat", [of_i, of_o, of_f], axis=0)
        inputs.append(t.add("Unsqueeze", [peepholes, t.constant([0], np.int64)]))
    outputs, last_h, last_c = t.add("LSTM", inputs, 3, hidden_size=n)
    return [_flat(t, outputs, 1), _flat(t, last_c, 0), _flat(t, last_h, 0)]


def _gru(t: Translation, x: str, size: int, nodes: list[Node], begin: list[str]) -> list[str]:
    n, weights = _columns(nodes[2]), [t.of(node) for node in nodes]
    order = [(n, 2 * n), (0, n)]
    of_gates, inner_gates = _of_kernel(t, weights[0], size, order)
    of_candidate, inner_candidate = _of_kernel(t, weights[2], size, [(0, n)])
    kernel = t.add("Concat", [of_gates, of_candidate], axis=1)
    inner = t.add("Concat", [inner_gates, inner_candidate], axis=1)
    parts = [_columns_of(t, weights[1], *part, axis=0) for part in order]
    bias = t.add("Concat", [*parts, weights[3], t.constant(np.zeros(3 * n, np.float32))], axis=0)
    bias = t.add("Unsqueeze", [bias, t.constant([0], np.int64)])
    inputs = [x, kernel, inner, bias, *begin]
    outputs, last = t.add("GRU", inputs, 2, hidden_size=n, linear_before_reset=0)
    return [_flat(t, outputs, 1), _flat(t, last, 0)]


def _columns(kernel: Node) -> int:
    size = kernel.shape.as_list()[-1]
    if size is None:
        raise UntranslatableError(f"the size of {kernel.name!r} is not known")
    return size


def _columns_of(t: Translation, value: str, begin: int, end: int, axis: int) -> str:
    bounds = [t.constant([number], np.int64) for number in (begin, end, axis)]
    return str(t.add("Slice", [value, *bounds]))


def _of_kernel(t: Translation, kernel: str, size: int, order: list[tuple[int, int]]) -> tuple[str, str]:
    """Give the rows for the inputs and those for the state, each [1, units, size] with the gates in ONNX's order."""
    parts = [_columns_of(t, kernel, begin, end, 1) for begin, end in order]
    whole = t.add("Concat", parts, axis=1) if len(parts) > 1 else parts[0]
    turned = t.add("Unsqueeze", [t.add("Transpose", [whole], perm=[1, 0]), t.constant([0], np.int64)])
    return _columns_of(t, turned, 0, size, 2), _columns_of(t, turned, size, np.iinfo(np.int64).max, 2)


def _biases(t: Translation, bias: str, order: list[tuple[int, int]], added: Any, size: int) -> str:
    parts = [_columns_of(t, bias, begin, end, 0) for begin, end in order]
    whole = t.add("Concat", parts, axis=0) if len(parts) > 1 else parts[0]
    if added is not None:
        whole = t.add("Add", [whole, t.constant(added)])
    both = t.add("Concat", [whole, t.constant(np.zeros(size, np.float32))], axis=0)
    return str(t.add("Unsqueeze", [both, t.constant([0], np.int64)]))


def _flat(t: Translation, value: str, axis: int) -> str:
    return str(t.add("Squeeze", [value, t.constant([axis], np.int64)]))

"""Whole sequences of the standard cells in one node each: a numpy loop forward, and one backward, written by hand.

What does not depend on the state is done for all time steps at once: the products with the inputs, and the gradients
of the weights. A step by step evaluation of the cell (`globalstep.tf1.rnn.sequences`) gives the same numbers, which
the tests compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from globalstep.dtypes import DType
from globalstep.tf1.execution.products import matmul, one_thread_each
from globalstep.tf1.gradients.registry import gradient_of, saved
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of, saving_kernel_of
from globalstep.tf1.graph.shapes import TensorShape


class SequenceRun(Protocol):
    """One run over a sequence."""

    @property
    def outputs(self) -> Any:
        """[time, batch, size]."""

    @property
    def states(self) -> Sequence[Any]:
        """The last states."""

    def backward(self, outputs: Any, states: Sequence[Any]) -> Sequence[Any]:
        """Give the gradients of inputs, states and weights, in this order, from those of outputs and last states."""


def run_fused(
    cell: Any, inputs: Node, lengths: Node | None, states: Sequence[Any], weights: Sequence[Any], units: int
) -> tuple[Node, list[Node]]:
    """Make the node that runs a cell over a sequence.

    Args:
        cell: "gru", "tanh" or `LSTMOptions`.
        inputs: [time, batch, size].
        lengths: How much of each sequence counts; None for all.
        states: The first states.
        weights: What else the cell takes.
        units: Size of an output.

    Returns:
        Outputs, and the last states.
    """
    first = [as_node(state) for state in states]
    nodes = (inputs, *first, *(as_node(weight) for weight in weights), *(() if lengths is None else (lengths,)))
    attrs = {"sequence": cell, "states": len(first), "lengths": lengths is not None}
    node = Node("RecurrentSequence", nodes, attrs={"tuple": True, **attrs})
    sizes = inputs.shape.as_list()[:2] if inputs.shape.dims is not None else [None, None]
    outputs = tuple_item(node, 0, name="Outputs", dtype=inputs.dtype, shape=TensorShape([*sizes, units]))
    last = [
        tuple_item(node, 1 + at, name="State", dtype=state.dtype, shape=state.shape) for at, state in enumerate(first)
    ]
    return outputs, last


@saving_kernel_of("RecurrentSequence")
def _run(node: Node) -> Callable[..., tuple[Any, SequenceRun]]:
    cell, count, has_lengths = (node.attrs[name] for name in ("sequence", "states", "lengths"))
    # From inputs [time, batch, size], the mask, the first states, and the weights.
    over_sequence = _CELLS[cell] if isinstance(cell, str) else cell.sequence

    def run(*values: Any) -> tuple[Any, SequenceRun]:
        inputs, mask = (values[:-1], mask_of(values[-1], len(values[0]))) if has_lengths else (values, None)
        # A step's products are too small for two threads that wait for each other.
        with np.errstate(all="ignore"), one_thread_each():
            made = over_sequence(inputs[0], mask, inputs[1 : 1 + count], inputs[1 + count :])
        return (made.outputs, *made.states), made

    return run


@kernel_of("RecurrentSequence")
def _results(node: Node) -> Callable[..., Any]:
    run = _run(node)
    return lambda *values: run(*values)[0]


@gradient_of("RecurrentSequence")
def _sequence_gradient(node: Node, grads: Sequence[Node | None]) -> Sequence[Node | None]:
    count, has_lengths = node.attrs["states"], node.attrs["lengths"]
    known = [at for at, grad in enumerate(grads) if grad is not None]
    sources = node.inputs[: -1 if has_lengths else None]
    # A second gradient finds its way by the sequence's own inputs, which are the last.
    inputs = [saved(node), *(grad for grad in grads if grad is not None), *node.inputs]
    attrs = {"tuple": True, "known": known, "states": count, "dtypes": [source.dtype for source in sources]}
    gradient = Node("RecurrentSequenceGrad", inputs, attrs=attrs)
    items = [tuple_item(gradient, at, dtype=source.dtype, shape=source.shape) for at, source in enumerate(sources)]
    return [*items, *[None] * has_lengths]


@computes("RecurrentSequenceGrad")
def _back(
    run: SequenceRun, *values: Any, known: Sequence[int], states: int, dtypes: Sequence[DType]
) -> tuple[Any, ...]:
    given = dict(zip(known, values, strict=False))
    with np.errstate(all="ignore"), one_thread_each():
        parts = run.backward(given.get(0), [given.get(1 + at) for at in range(states)])
    return tuple(part.astype(kind.as_numpy_dtype, copy=False) for part, kind in zip(parts, dtypes, strict=True))


def mask_of(lengths: Any, steps: int) -> Any:
    """Say which steps of which sequences count: [time, batch, 1], or None if all do."""
    counts = np.asarray(lengths).reshape(-1)
    if counts.size and counts.min() >= steps:
        return None
    return (np.arange(steps)[:, None] < counts[None, :])[:, :, None]


def sigmoid_in_place(x: Any) -> None:
    """Put 1 / (1 + exp(-x)) in the place of `x`."""
    x *= 0.5
    np.tanh(x, out=x)
    x += 1
    x *= 0.5


def zeros_for(gradient: Any, like: Any) -> Any:
    """Give a gradient that may be None as an array of its own."""
    return np.zeros_like(like) if gradient is None else np.array(gradient, like.dtype)


def flat(array: Any) -> Any:
    """Give [time, batch, size] as [time * batch, size]."""
    return array.reshape(-1, array.shape[-1])


def with_inputs(x: Any, kernel: Any, bias: Any) -> Any:
    """Give x @ kernel + bias for all steps: [time, batch, n]."""
    product = matmul(flat(x), kernel)
    product += bias
    return product.reshape(*x.shape[:2], -1)


def kernel_gradient(x: Any, before: Any, gates: Any) -> Any:
    """Give the gradient of a kernel whose rows meet the inputs, then the state."""
    rows = flat(gates)
    return np.concatenate([matmul(flat(x).T, rows), matmul(flat(before).T, rows)])


class _Tanh:
    """A BasicRNNCell over a sequence."""

    def __init__(self, x: Any, mask: Any, states: Sequence[Any], weights: Sequence[Any]) -> None:
        (first,), (kernel, bias) = states, weights
        self.x, self.mask, self.kernel, self.size = x, mask, kernel, x.shape[2]
        sums = with_inputs(x, kernel[: self.size], bias)
        #: Made of the step, whether or not it counts; and the state before each step.
        self.made = sums
        self.before = np.empty((len(x), *first.shape), sums.dtype)
        inner, h = kernel[self.size :], first
        for t in range(len(x)):
            self.before[t] = h
            made = sums[t]
            made += h @ inner
            np.tanh(made, out=made)
            h = made if mask is None else np.where(mask[t], made, h)
        self.outputs = sums if mask is None else sums * mask
        self.states = [np.array(h)]

    def backward(self, outputs: Any, states: Sequence[Any]) -> Sequence[Any]:
        inner = np.ascontiguousarray(self.kernel[self.size :].T)
        gates = np.empty_like(self.made)
        dh = zeros_for(states[0], self.states[0])
        for t in reversed(range(len(self.x))):
            d = dh if outputs is None else dh + outputs[t]
            if self.mask is not None:
                d = np.where(self.mask[t], d, 0)
            made, gate = self.made[t], gates[t]
            np.multiply(made, made, out=gate)
            np.subtract(1, gate, out=gate)
            gate *= d
            passed = gate @ inner
            dh = passed if self.mask is None else np.where(self.mask[t], passed, dh)
        dx = (flat(gates) @ self.kernel[: self.size].T).reshape(self.x.shape)
        return [dx, dh, kernel_gradient(self.x, self.before, gates), flat(gates).sum(axis=0)]


class _Gru:
    """A GRUCell over a sequence."""

    def __init__(self, x: Any, mask: Any, states: Sequence[Any], weights: Sequence[Any]) -> None:
        (first,) = states
        self.gate_kernel, gate_bias, self.candidate_kernel, candidate_bias = weights
        self.x, self.mask, self.size = x, mask, x.shape[2]
        units = first.shape[1]
        self.gates = with_inputs(x, self.gate_kernel[: self.size], gate_bias)
        self.candidates = with_inputs(x, self.candidate_kernel[: self.size], candidate_bias)
        self.before = np.empty((len(x), *first.shape), self.gates.dtype)
        self.reset = np.empty_like(self.before)
        outputs = np.empty_like(self.before)
        of_gates, of_candidate = self.gate_kernel[self.size :], self.candidate_kernel[self.size :]
        h = first
        for t in range(len(x)):
            self.before[t] = h
            gates, candidate = self.gates[t], self.candidates[t]
            gates += h @ of_gates
            sigmoid_in_place(gates)
            r, u = gates[:, :units], gates[:, units:]
            np.multiply(r, h, out=self.reset[t])
            candidate += self.reset[t] @ of_candidate
            np.tanh(candidate, out=candidate)
            new = u * h + (1 - u) * candidate
            outputs[t] = new
            h = new if mask is None else np.where(mask[t], new, h)
        self.outputs = outputs if mask is None else outputs * mask
        self.states = [h]

    def backward(self, outputs: Any, states: Sequence[Any]) -> Sequence[Any]:
        of_gates = np.ascontiguousarray(self.gate_kernel[self.size :].T)
        of_candidate = np.ascontiguousarray(self.candidate_kernel[self.size :].T)
        gates, candidates = np.empty_like(self.gates), np.empty_like(self.candidates)
        dh = zeros_for(states[0], self.states[0])
        units = dh.shape[1]
        for t in reversed(range(len(self.x))):
            d = dh if outputs is None else dh + outputs[t]
            if self.mask is not None:
                d = np.where(self.mask[t], d, 0)
            r, u = self.gates[t][:, :units], self.gates[t][:, units:]
            candidate, h = self.candidates[t], self.before[t]
            candidates[t] = d * (1 - u) * (1 - candidate * candidate)
            through = candidates[t] @ of_candidate
            gates[t][:, :units] = through * h * r * (1 - r)
            gates[t][:, units:] = d * (h - candidate) * u * (1 - u)
            passed = d * u + through * r + gates[t] @ of_gates
            dh = passed if self.mask is None else np.where(self.mask[t], passed, dh)
        dx = flat(gates) @ self.gate_kernel[: self.size].T + flat(candidates) @ self.candidate_kernel[: self.size].T
        return [
            dx.reshape(self.x.shape),
            dh,
            kernel_gradient(self.x, self.before, gates),
            flat(gates).sum(axis=0),
            kernel_gradient(self.x, self.reset, candidates),
            flat(candidates).sum(axis=0),
        ]


_CELLS: dict[str, Callable[..., SequenceRun]] = {"gru": _Gru, "tanh": _Tanh}

"""A whole sequence of an LSTM cell, forward and backward; see `globalstep.tf1.rnn.fused`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.tf1.rnn.fused import flat, kernel_gradient, sigmoid_in_place, with_inputs, zeros_for


@dataclass(frozen=True)
class LSTMOptions:
    """Options of a fused LSTM.

    Attributes:
        units: Size of c.
        forget_bias: Added to the forget gate.
        peepholes: Whether the gates see c: then w_f_diag, w_i_diag and w_o_diag follow the bias among the weights.
        projected: Whether the output is projected: then the projection's kernel is the last weight.
        cell_clip: c is clipped to this; None for not.
        proj_clip: What is projected is clipped to this; None for not.
    """

    units: int
    forget_bias: float = 1.0
    peepholes: bool = False
    projected: bool = False
    cell_clip: float | None = None
    proj_clip: float | None = None

    def sequence(self, x: Any, mask: Any, states: Sequence[Any], weights: Sequence[Any]) -> _Lstm:
        """Run over a sequence."""
        return _Lstm(self, x, mask, states, weights)


class _Lstm:
    """One run. Weights are kernel, bias, then what the options say. Gates lie in TensorFlow's order: i, j, f, o."""

    def __init__(
        self, options: LSTMOptions, x: Any, mask: Any, states: Sequence[Any], weights: Sequence[Any]
    ) -> None:  # fmt: skip
        self.options, self.x, self.mask = options, x, mask
        self.kernel, bias, *others = weights
        self.peepholes = others[:3] if options.peepholes else None
        self.projection = others[-1] if options.projected else None
        c, h = states
        steps, size, n = len(x), x.shape[2], options.units
        self.gates = with_inputs(x, self.kernel[:size], bias)
        dtype = self.gates.dtype
        self.gates[:, :, 2 * n : 3 * n] += dtype.type(options.forget_bias)
        #: Before each step: c and h. Made by each step, whether it counts or not: c, tanh(c), m before the projection.
        self.cs, self.hs = np.empty((steps, *c.shape), dtype), np.empty((steps, *h.shape), dtype)
        self.new, self.tanhs = np.empty((steps, *c.shape), dtype), np.empty((steps, *c.shape), dtype)
        self.ms = np.empty((steps, *c.shape), dtype)
        self.clipped = np.zeros((steps, *c.shape), bool) if options.cell_clip is not None else None
        self.cut = np.zeros((steps, *h.shape), bool) if options.proj_clip is not None else None
        self.outputs = np.empty((steps, *h.shape), dtype) if self.projection is not None else self.ms
        inner = self.kernel[size:]
        for t in range(steps):
            self.cs[t], self.hs[t] = c, h
            self.gates[t] += h @ inner
            self._gate(t, c)
            made = self._project(t)
            if mask is None:
                c, h = self.new[t], made
            else:
                c, h = np.where(mask[t], self.new[t], c), np.where(mask[t], made, h)
        if mask is not None:
            self.outputs = self.outputs * mask
        self.states = [np.array(c), np.array(h)]

    def _gate(self, t: int, c: Any) -> None:
        """Take the gates' sums to gates, c and m."""
        n, gates = self.options.units, self.gates[t]
        i, j, f, o = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n :]
        if self.peepholes is not None:
            f += self.peepholes[0] * c
            i += self.peepholes[1] * c
        sigmoid_in_place(i)
        np.tanh(j, out=j)
        sigmoid_in_place(f)
        new = np.multiply(f, c, out=self.new[t])
        new += i * j
        limit = self.options.cell_clip
        if self.clipped is not None and limit is not None:
            np.greater(np.abs(new), limit, out=self.clipped[t])
            np.clip(new, -limit, limit, out=new)
        if self.peepholes is not None:
            o += self.peepholes[2] * new
        sigmoid_in_place(o)
        np.tanh(new, out=self.tanhs[t])
        np.multiply(o, self.tanhs[t], out=self.ms[t])

    def _project(self, t: int) -> Any:
        if self.projection is None:
            return self.ms[t]
        made = np.matmul(self.ms[t], self.projection, out=self.outputs[t])
        limit = self.options.proj_clip
        if self.cut is not None and limit is not None:
            np.greater(np.abs(made), limit, out=self.cut[t])
            np.clip(made, -limit, limit, out=made)
        return made

    def backward(self, outputs: Any, states: Sequence[Any]) -> Sequence[Any]:
        """Give the gradients of inputs, c, h and the weights."""
        size, mask = self.x.shape[2], self.mask
        inner = np.ascontiguousarray(self.kernel[size:].T)
        gates = np.empty_like(self.gates)
        projected = None if self.projection is None else np.empty_like(self.hs)
        dc, dh = zeros_for(states[0], self.states[0]), zeros_for(states[1], self.states[1])
        for t in reversed(range(len(self.x))):
            d = dh if outputs is None else dh + outputs[t]
            of_c = dc
            if mask is not None:
                d, of_c = np.where(mask[t], d, 0), np.where(mask[t], dc, 0)
            if projected is not None:
                if self.cut is not None:
                    d = np.where(self.cut[t], 0, d)
                projected[t] = d
                d = d @ self.projection.T  # type: ignore[union-attr]
            before = self._step_back(t, d, of_c, gates[t])
            passed = gates[t] @ inner
            if mask is None:
                dc, dh = before, passed
            else:
                dc, dh = np.where(mask[t], before, dc), np.where(mask[t], passed, dh)
        dx = (flat(gates) @ self.kernel[:size].T).reshape(self.x.shape)
        gradients = [dx, dc, dh, kernel_gradient(self.x, self.hs, gates), flat(gates).sum(axis=0)]
        if self.peepholes is not None:
            n = self.options.units
            gradients.append((gates[:, :, 2 * n : 3 * n] * self.cs).sum(axis=(0, 1)))
            gradients.append((gates[:, :, :n] * self.cs).sum(axis=(0, 1)))
            gradients.append((gates[:, :, 3 * n :] * self.new).sum(axis=(0, 1)))
        if projected is not None:
            gradients.append(flat(self.ms).T @ flat(projected))
        return gradients

    def _step_back(self, t: int, dm: Any, dc: Any, out: Any) -> Any:
        """Put the gradients of the gates' sums into `out`; give that of c before the step."""
        n, gates, tanhs, c = self.options.units, self.gates[t], self.tanhs[t], self.cs[t]
        i, j, f, o = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n :]
        of_o = dm * tanhs * o * (1 - o)
        out[:, 3 * n :] = of_o
        dc = dc + dm * o * (1 - tanhs * tanhs)
        if self.peepholes is not None:
            dc += of_o * self.peepholes[2]
        if self.clipped is not None:
            dc = np.where(self.clipped[t], 0, dc)
        of_i, of_f = dc * j * i * (1 - i), dc * c * f * (1 - f)
        out[:, :n] = of_i
        out[:, n : 2 * n] = dc * i * (1 - j * j)
        out[:, 2 * n : 3 * n] = of_f
        before = dc * f
        if self.peepholes is not None:
            before += of_f * self.peepholes[0]
            before += of_i * self.peepholes[1]
        return before

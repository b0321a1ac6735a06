"""Compiled kernels: numba, and the base class of the rules that have them.

A kernel is one loop over the elements, compiled once per dtype and kept in the user's cache folder, so
that the next PS process starts with it. It releases the GIL and is exact: no fused or reordered
arithmetic, so that it equals the same expression in numpy bit for bit.

Layer: ps. Importing this module imports numba, about half a second; `globalstep.ps.rules` therefore
imports a rule's module when its kind is first asked for.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from globalstep.ps.rules.rule import Array, Change, Hypers, Rule, check_alike
from globalstep.runtime.kernels import COMPILER, kernel, read_only
from globalstep.runtime.library_pages import give_back_library

__all__ = ["CompiledRule", "check_alike", "kernel", "read_only"]

#: Rules and dtypes whose kernels this process has.
_ready: set[tuple[type, Any]] = set()


class CompiledRule(Rule):
    """A rule whose updates are kernels.

    Attributes:
        dense_kernel: Called with values, each slot, gradient, and the numbers that `numbers` gives.
        rows_kernel: Called with values, each slot, indices, rows, and the same numbers.
    """

    dense_kernel: ClassVar[Callable[..., None]]
    rows_kernel: ClassVar[Callable[..., None]]

    @abc.abstractmethod
    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """Give the kernels' numbers.

        Args:
            hyper: As for `reference`.
            real: numpy's scalar type of the arrays, e.g. numpy.float32; every number is made with it.

        Returns:
            The numbers, in the kernels' order.
        """

    def dense(self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers) -> None:
        """See Rule.dense."""
        check_alike(values, *slots, grad)
        if values.dtype == np.float16:
            super().dense(values, slots, grad, hyper)
            return
        type(self).dense_kernel(values, *slots, read_only(grad), *self.numbers(hyper, values.dtype.type))

    def bound(self, hyper: Hypers, dtype: Any) -> Change:
        """See Rule.bound."""
        if dtype == np.float16 or type(self).dense is not CompiledRule.dense:
            return super().bound(hyper, dtype)
        kernel, numbers = type(self).dense_kernel, self.numbers(hyper, dtype.type)
        return lambda values, slots, grad: kernel(values, *slots, read_only(grad), *numbers)

    def sparse(self, values: Array, slots: tuple[Array, ...], indices: Array, rows: Array, hyper: Hypers) -> None:
        """See Rule.sparse."""
        check_alike(values, *slots)
        check_alike(rows, shape=(*indices.shape, *values.shape[1:]), dtype=values.dtype)
        if values.dtype == np.float16:
            super().sparse(values, slots, indices, rows, hyper)
            return
        numbers = self.numbers(hyper, values.dtype.type)
        type(self).rows_kernel(values, *slots, read_only(indices), read_only(rows), *numbers)

    def prepare(self, dtype: Any) -> None:
        """See Rule.prepare."""
        super().prepare(dtype)
        hyper = dict.fromkeys((*self.hypers, *self.scalars), 0.5)
        flat, table = np.zeros(0, dtype), np.zeros((0, 0), dtype)
        self.dense(flat, (flat,) * len(self.slots), flat, hyper)
        self.sparse(table, (table,) * len(self.slots), np.zeros(0, np.int64), table, hyper)
        ready = type(self), np.dtype(dtype)
        if ready not in _ready:
            # To look through the process's memory takes longer than to call a kernel that is there.
            _ready.add(ready)
            give_back_library(COMPILER)

"""Compiled kernels, and the base class of the rules that have them.

A kernel is one loop over the elements, compiled once per dtype and kept in the user's cache folder, so
that the next PS process starts with it. It releases the GIL and is exact: no fused or reordered
arithmetic, so that it equals the same expression in numpy bit for bit.

Layer: shared. `globalstep.rules` imports a rule's module when its kind is first asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from globalstep.rules.rule import Array, BoundRule, Hypers, Rule, Slots, Updated, check_alike
from globalstep.runtime.kernels import COMPILER, Kernel, give_back_library, kernel, read_only

__all__ = ["CompiledRule", "check_alike", "kernel", "read_only"]

_OF_IDS = np.dtype(np.int64)
#: Rules and dtypes whose kernels this process has.
_ready: set[tuple[type, Any]] = set()
#: The loops that a step is called in, with the names of its own arguments. All of an element is read before any is
#: written: arrays that begin alike within a page make a processor take a read for one of what was just written, and
#: wait (2.7 times as long on Zen 4).
_DENSE = """\
def dense({arrays}, grad, {numbers}) -> None:
    for i in range(value.size):
        {of_element} = step({of_element}, grad[i], {numbers})
"""
_ROWS = """\
def rows({arrays}, indices, rows, {numbers}) -> None:
    for i in range(indices.size):
        at = indices[i]
        for j in range(rows.shape[1]):
            {of_row} = step({of_row}, rows[i, j], {numbers})
"""


class CompiledRule(Rule):
    """A rule whose updates are kernels: it gives a step, from which all else is made, or loops and a reference.

    Attributes:
        step: Called with the value of an element, that of each slot, the gradient's, and the numbers that `numbers`
            gives; returns the new value and slots. It is called with whole arrays as well, and changes none of them.
        dense_kernel: Called with values, each slot, gradient, and the same numbers.
        rows_kernel: Called with values, each slot, indices, rows, and the same numbers.
        flat_rows: Whether `rows_kernel` takes values and slots flat, as those that change every row do.
    """

    step: ClassVar[Kernel]
    dense_kernel: ClassVar[Kernel]
    rows_kernel: ClassVar[Kernel]
    flat_rows: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if step := vars(cls).get("step"):
            for name, loop in zip(("dense_kernel", "rows_kernel"), _loops_of(step, len(cls.slots)), strict=True):
                if name not in vars(cls):
                    setattr(cls, name, loop)

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """Give the kernels' numbers; here the hyper-parameters, in their order.

        Args:
            hyper: As for `reference`.
            real: numpy's scalar type of the arrays, e.g. numpy.float32; every number is made with it.

        Returns:
            The numbers, in the kernels' order.
        """
        return tuple(map(real, map(hyper.__getitem__, self.hypers)))

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        new = self.step.function(values, *slots, grad, *self.numbers(hyper, values.dtype.type))
        return (new[0], new[1:]) if slots else (new, ())

    def dense(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> None:
        """See Rule.dense."""
        check_alike(values, *slots, grad)
        if values.dtype == np.float16:
            super().dense(values, slots, grad, hyper)
            return
        _dense_of(self, values.dtype)(values, *slots, grad, *self.numbers(hyper, values.dtype.type))

    def bound(self, dtype: Any) -> BoundRule:
        """See Rule.bound."""
        if dtype == np.float16 or type(self).dense is not CompiledRule.dense:
            return super().bound(dtype)
        return BoundRule(functools.partial(self.numbers, real=dtype.type), _dense_of(self, dtype))

    def sparse(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> None:
        """See Rule.sparse."""
        check_alike(values, *slots)
        check_alike(indices, dtype=_OF_IDS)
        check_alike(rows, shape=(*indices.shape, *values.shape[1:]), dtype=values.dtype)
        if values.dtype == np.float16:
            super().sparse(values, slots, indices, rows, hyper)
            return
        kernel, numbers = _rows_of(self, values.dtype), self.numbers(hyper, values.dtype.type)
        if self.flat_rows:
            values, slots = values.reshape(-1), tuple([slot.reshape(-1) for slot in slots])
        kernel(values, *slots, indices, rows, *numbers)

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


@functools.cache
def _loops_of(step: Kernel, slots: int) -> tuple[Kernel, ...]:
    """Make the loops over all elements, and over some rows, of a step with so many slots."""
    function = step.function
    names = list(inspect.signature(function).parameters)
    arrays, numbers = names[: slots + 1], ", ".join(names[slots + 2 :])
    of_element, of_row = (", ".join(f"{name}[{at}]" for name in arrays) for at in ("i", "at, j"))
    loops = []
    for name, text in (("dense", _DENSE), ("rows", _ROWS)):
        text = text.format(arrays=", ".join(arrays), numbers=numbers, of_element=of_element, of_row=of_row)
        made: dict[str, Any] = {"__name__": function.__module__, "step": step}
        exec(compile(text, function.__code__.co_filename, "exec"), made)
        made[name].__qualname__ = f"{function.__qualname__}.{name}"
        loops.append(Kernel(made[name], text))
    return tuple(loops)


@functools.cache
def _dense_of(rule: CompiledRule, dtype: Any) -> Callable[..., None]:
    """Give a rule's dense kernel for a dtype; `check_alike` has passed what it is called with."""
    flat = np.zeros(0, dtype)
    return rule.dense_kernel.ready(flat, *(flat,) * len(rule.slots), read_only(flat), *_numbers(rule, dtype))


@functools.cache
def _rows_of(rule: CompiledRule, dtype: Any) -> Callable[..., None]:
    """As `_dense_of`, for rows."""
    rows = np.zeros((0, 0), dtype)
    table = rows.reshape(-1) if rule.flat_rows else rows
    tables, indices = (table,) * (1 + len(rule.slots)), np.zeros(0, np.int64)
    return rule.rows_kernel.ready(*tables, read_only(indices), read_only(rows), *_numbers(rule, dtype))


def _numbers(rule: CompiledRule, dtype: Any) -> tuple[Any, ...]:
    return rule.numbers(dict.fromkeys((*rule.hypers, *rule.scalars), 0.5), dtype.type)

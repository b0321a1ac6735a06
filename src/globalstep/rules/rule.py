"""Update rules: the formulas by which a pushed gradient changes a Variable and its slots.

A rule is pure: arrays and numbers in, arrays changed in place, nothing remembered between calls. The
store owns the arrays and calls it; the graph's optimizers only name its kind.

Layer: shared. Imports nothing of globalstep but errors.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.errors import InternalError, InvalidArgumentError

Array = npt.NDArray[Any]
Slots = tuple[Array, ...]
#: New values and slots.
Updated = tuple[Array, Slots]
Hypers = Mapping[str, float]


class BoundRule(NamedTuple):
    """Applies a dense gradient to arrays of one dtype."""

    #: Returns the kernel's numbers for the hyper-parameters of a push.
    numbers: Callable[[Hypers], tuple[Any, ...]]
    #: Called with values, each slot, the gradient, and these numbers.
    kernel: Callable[..., None]


def check_alike(*arrays: Array, shape: tuple[int, ...] | None = None, dtype: Any = None) -> None:
    """Refuse arrays that are not contiguous, and all of one shape and dtype: a kernel looks at no bounds.

    The callers of rules have checked it already; this catches a bug in one of them.

    Args:
        arrays: What a kernel is to be called with.
        shape: Which shape; default the first array's.
        dtype: Which dtype; default the first array's.

    Raises:
        InternalError: If one is otherwise.
    """
    shape = arrays[0].shape if shape is None else shape
    dtype = arrays[0].dtype if dtype is None else dtype
    for array in arrays:
        if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
            raise InternalError(
                f"A kernel for {dtype} {list(shape)} was called with {array.dtype} {list(array.shape)}"
                f"{'' if array.flags.c_contiguous else ', not contiguous'}; nothing was changed. This is a bug: please "
                "report it."
            )


class Rule(abc.ABC):
    """An update rule in plain numpy. A subclass states its names and gives `reference`.

    Rules with compiled kernels derive from `globalstep.rules.compiled.CompiledRule`. An installed
    package adds rules of its own through the entry point group "globalstep.rules": the entry point's
    name is the kind, its object a subclass of Rule.

    An instance has no state, so calls are thread-safe as long as they change different arrays; the
    caller sees to that.

    Attributes:
        kind: The rule's name on the wire.
        slots: Names of its slots, in the order in which they are passed.
        hypers: Names of the hyper-parameters, all of which a declaration gives.
        scalars: Names of its scalar state, one number for all Variables (Adam's beta powers).
        elementwise: Whether an element changes independently of all others, so that `dense` may be
            called once on a run of elements that spans several Variables. False where the norm of a
            whole Variable enters.
        by_rows: Whether its slots have one element a row, [rows, 1], and `sparse` is called for all rows in place of
            `dense`. Then it is for Variables of two dimensions or more.
        merges_duplicates: Whether rows with the same id must be summed before `sparse` is called.
    """

    kind: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()
    hypers: ClassVar[tuple[str, ...]] = ("learning_rate",)
    scalars: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = True
    by_rows: ClassVar[bool] = False
    merges_duplicates: ClassVar[bool] = True

    @cached_property
    def needs(self) -> frozenset[str]:
        """The numbers that a push must bring for it."""
        return frozenset((*self.hypers, *self.scalars))

    @abc.abstractmethod
    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """Give the new values and slots, computed with numpy in the dtype of `values`.

        Args:
            values: Values of the Variable, float32 or float64, any shape.
            slots: One array like `values` for each of `self.slots`.
            grad: The gradient, like `values`.
            hyper: A number for each of `self.hypers` and, as they were before this push, `self.scalars`.

        Returns:
            New arrays: (values, slots). The arguments are not changed.
        """

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """Give what `sparse` leaves, computed with numpy; here `reference` on the touched rows alone.

        Args:
            values: As for `sparse`, float32 or float64.
            slots: As for `sparse`.
            indices: As for `sparse`, but none twice.
            rows: As for `sparse`.
            hyper: As for `reference`.

        Returns:
            New arrays: (values, slots). The arguments are not changed.
        """
        new = self.reference(values[indices], tuple(slot[indices] for slot in slots), rows, hyper)
        results = [values.copy(), *(slot.copy() for slot in slots)]
        for result, touched in zip(results, (new[0], *new[1]), strict=True):
            result[indices] = touched
        return results[0], tuple(results[1:])

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """Give the scalar state after a push, computed once all its updates are done.

        Args:
            scalars: float32 numbers, one for each of `self.scalars`.
            hyper: The push's hyper-parameters.

        Returns:
            The new numbers; those of a rule without scalar state are none.
        """
        return dict(scalars)

    def check_hypers(self, hyper: Hypers) -> None:
        """Refuse numbers that the rule cannot work with; the caller asks before it changes anything.

        Raises:
            InvalidArgumentError: If one is missing, or out of its range: here, if one is NaN, which would
                make every value NaN for good.
        """
        for name in (*self.hypers, *self.scalars):
            if name not in hyper:
                raise InvalidArgumentError(
                    f"Update rule {self.kind!r} needs hyper-parameter {name!r}, which neither the "
                    f"optimizer's declaration nor the push gives; given: {sorted(hyper)}."
                )
            if math.isnan(hyper[name]):
                raise InvalidArgumentError(
                    f"Hyper-parameter {name!r} of update rule {self.kind!r} is NaN; the push is refused and "
                    "nothing was applied. Look at the schedule or callable that computes it."
                )

    def dense(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> None:
        """Apply a gradient for every element, in place.

        Args:
            values: [n], contiguous; changed. float16 is computed in float32.
            slots: One [n] array of the same dtype for each of `self.slots`; changed.
            grad: [n] of the same dtype; only read, need not be aligned.
            hyper: As for `reference`.
        """
        new = self.reference(_wide(values), tuple(map(_wide, slots)), _wide(grad), hyper)
        _store(values, slots, new)

    def bound(self, dtype: Any) -> BoundRule:
        """Return what applies a gradient to arrays of a dtype that `check_alike` has passed; it is not asked again."""
        return BoundRule(lambda hyper: (hyper,), lambda values, *rest: self.dense(values, rest[:-2], *rest[-2:]))

    def sparse(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> None:
        """Apply a gradient for some rows, in place; the other rows stay, unless the rule says otherwise.

        Args:
            values: [rows of the Variable, width], contiguous; changed.
            slots: One array like `values` for each of `self.slots`; changed.
            indices: int64 [n] row ids, checked by the caller to lie within `values`; none twice unless
                `merges_duplicates` is False.
            rows: [n, width] gradients of those rows, of the dtype of `values`; only read.
            hyper: As for `reference`.
        """
        new = self.sparse_reference(_wide(values), tuple(map(_wide, slots)), indices, _wide(rows), hyper)
        _store(values, slots, new)

    def prepare(self, dtype: Any) -> None:
        """Do now what the first update of a dtype would have to wait for (compiling).

        Args:
            dtype: numpy dtype of the Variables that will be updated.

        Raises:
            InvalidArgumentError: If the rule cannot update Variables of that dtype.
        """
        if np.dtype(dtype) not in (np.float16, np.float32, np.float64):
            raise InvalidArgumentError(
                f"Update rule {self.kind!r} applies to float16, float32 and float64 Variables, not to "
                f"{np.dtype(dtype).name}. Make the Variable trainable=False or give it a floating dtype."
            )


def _wide(array: Array) -> Array:
    """The array itself, or in float32 where it is float16: half precision loses small updates."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _store(values: Array, slots: Slots, new: Updated) -> None:
    for array, result in zip((values, *slots), (new[0], *new[1]), strict=True):
        array[...] = result

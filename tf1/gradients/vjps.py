"""Vector-Jacobian products (VJPs) of the functions that most models use: what autograd would trace, written down.

Tracing a small model with autograd takes several times as long as numpy takes to compute it. So a node's function
may have a VJP: from the values of the node's inputs it gives the node's value and, for each input, the function
that takes a gradient of the value to one of the input. It is used wherever the inputs are plain arrays. In all other
cases (a gradient of a gradient; a VJP that gives None because the case is not its own) the node's function is traced,
as it is where there is no VJP.

A VJP computes exactly what the trace does: the same operations of numpy, in the same order. The test of VJPs
compares them bit by bit.

Layer: tf1, below every module of `ops`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from string import ascii_letters
from typing import Any, NamedTuple, TypeVar

import autograd.numpy as anp
import numpy as np

from globalstep.tf1.execution.products import elementwise

__all__ = ["Costly", "Found", "VJP", "shaped_like", "vjp_of", "sum_vjp", "with_vjp"]

#: The value, and for each input the way back to it.
Found = tuple[Any, tuple[Callable[[Any], Any], ...]]
VJP = Callable[..., Found | None]

#: Over shorter runs of numbers numpy's sum is slow.
_SHORT_RUN = 128

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Costly:
    """A way back that may be worth another thread; it waits for no other.

    Args:
        way: It.
        multiplications: How many it takes.
    """

    __slots__ = ("multiplications", "way")

    def __init__(self, way: Callable[[Any], Any], multiplications: int) -> None:
        self.way = way
        self.multiplications = multiplications

    def __call__(self, gradient: Any) -> Any:
        """Go it."""
        return self.way(gradient)


def with_vjp(fn: _Function, vjp: VJP) -> _Function:
    """Give `fn`, which has the VJP from now on.

    Args:
        fn: A function that nodes are made with.
        vjp: Takes what `fn` takes, floating numpy arrays where gradients go; gives what is described above.
    """
    fn.vjp = vjp  # type: ignore[attr-defined]
    return fn


def vjp_of(fn: Callable[..., Any] | None) -> VJP | None:
    """Give the VJP of a function; None where it has none."""
    return getattr(fn, "vjp", None) or _ARITHMETIC.get(fn)


def shaped_like(target: Any, gradient: Any) -> Any:
    """Sum a gradient over the axes along which `target` was broadcast.

    Args:
        target: The operand.
        gradient: Of a result that `target` was broadcast to.

    Returns:
        The gradient at the operand, of its shape.
    """
    shape = target.shape
    if gradient.shape == shape:
        return gradient
    while gradient.ndim > len(shape):
        gradient = gradient.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 != gradient.shape[axis]:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient


def _add(x: Any, y: Any) -> Found:
    return elementwise(np.add, x, y), (lambda g: shaped_like(x, g), lambda g: shaped_like(y, g))


def _subtract(x: Any, y: Any) -> Found:
    return elementwise(np.subtract, x, y), (lambda g: shaped_like(x, g), lambda g: shaped_like(y, -g))


def _multiply(x: Any, y: Any) -> Found:
    return elementwise(np.multiply, x, y), (
        lambda g: shaped_like(x, elementwise(np.multiply, g, y)),
        lambda g: shaped_like(y, elementwise(np.multiply, g, x)),
    )


def _divide(x: Any, y: Any) -> Found:
    return x / y, (lambda g: shaped_like(x, g / y), lambda g: shaped_like(y, -g * x / y**2))


def _negative(x: Any) -> Found:
    return -x, (lambda g: -g,)


def _exp(x: Any) -> Found:
    value = np.exp(x)
    return value, (lambda g: value * g,)


def _log(x: Any) -> Found:
    return np.log(x), (lambda g: g / x,)


def _sqrt(x: Any) -> Found:
    return np.sqrt(x), (lambda g: g * 0.5 * x**-0.5,)


class _Summation(NamedTuple):
    """How to sum arrays of one shape over some axes."""

    axes: tuple[int, ...]
    #: How many numbers go into each sum.
    terms: int
    #: Of the result, with these axes as size 1 and without them.
    kept: tuple[int, ...]
    shape: tuple[int, ...]
    #: Of einsum, where that adds in the same order in a quarter of the time.
    subscripts: str | None
    #: Whether each run of numbers of the gradient is repeated.
    repeats: bool


@functools.lru_cache
def _sum_of(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> _Summation:
    rank = len(shape)
    wanted = tuple(range(rank)) if axes is None else tuple(item % rank for item in axes) if rank else ()
    repeats = len(wanted) == 1 and wanted[0] < rank - 1
    subscripts = None
    if repeats and rank <= len(ascii_letters) and 1 < math.prod(shape[wanted[0] + 1 :]) < _SHORT_RUN:
        letters = ascii_letters[:rank]
        subscripts = f"{letters}->{letters.replace(letters[wanted[0]], '')}"
    return _Summation(
        wanted,
        math.prod(shape[axis] for axis in wanted),
        tuple(1 if axis in wanted else size for axis, size in enumerate(shape)),
        tuple(size for axis, size in enumerate(shape) if axis not in wanted),
        subscripts,
        repeats,
    )


def sum_vjp(value: Any, axes: tuple[int, ...] | None, keepdims: bool, mean: bool) -> Found | None:
    """The VJP of a sum, or mean, of floating values over `axes` (None for all)."""
    shape, dtype = value.shape, value.dtype
    how = _sum_of(shape, axes)
    if not how.axes or not how.terms:
        return None
    if how.subscripts is not None and value.flags.c_contiguous:
        result = np.einsum(how.subscripts, value)
    else:
        result = value.sum(axis=how.axes, keepdims=True, dtype=dtype)
    if mean:
        result = result / how.terms

    def back(g: Any) -> Any:
        g = g.reshape(how.kept)
        g = g / how.terms if mean else g
        if how.repeats:
            return np.add(g, 0, dtype=dtype).repeat(how.terms, how.axes[0])
        # Added to zero as in the trace, but before it is spread: numpy adds no two numbers as slowly as repeated ones.
        spread = np.empty(shape, dtype)
        spread[...] = np.add(g, 0)
        return spread

    return result.reshape(how.kept if keepdims else how.shape), (back,)


#: Those of autograd's own functions that nodes are made with directly.
_ARITHMETIC: dict[Any, VJP] = {
    anp.add: _add,
    anp.subtract: _subtract,
    anp.multiply: _multiply,
    anp.true_divide: _divide,
    anp.negative: _negative,
    anp.exp: _exp,
    anp.log: _log,
    anp.sqrt: _sqrt,
}

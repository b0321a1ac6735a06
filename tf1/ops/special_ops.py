"""Special functions: error functions, the gamma function and its kin, inverse hyperbolic functions.

Layer: tf1. Source of the series: Abramowitz and Stegun, Handbook of Mathematical Functions, 6.3.18 and 6.4.12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.building import binary, require_float, unary
from globalstep.tf1.ops.gradient_ops import unbroadcast
from globalstep.tf1.ops.reduction_ops import reduce_sum


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Give a function of one number as one of arrays, which keeps their dtype."""
    vectorized = np.vectorize(function, otypes=[np.float64])

    def apply(x: Any) -> Any:
        value = np.asarray(x)
        return vectorized(value).astype(value.dtype) if value.size else value

    return apply


def _lgamma_of(x: float) -> float:
    """Give log |gamma(x)|; infinity at 0, -1, -2, ..."""
    if math.isnan(x) or math.isinf(x):
        return abs(x)
    return math.inf if x <= 0 and x == int(x) else math.lgamma(x)


def _digamma_of(x: float) -> float:
    if math.isnan(x) or x == math.inf:
        return x
    if x <= 0:
        return math.nan if x == math.floor(x) else _digamma_of(1 - x) - math.pi / math.tan(math.pi * x)
    shifted = 0.0
    while x < 10:
        shifted -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return shifted + math.log(x) - 0.5 / x - series


def _trigamma_of(x: float) -> float:
    if math.isnan(x):
        return x
    if x <= 0:
        return math.inf if x == math.floor(x) else (math.pi / math.sin(math.pi * x)) ** 2 - _trigamma_of(1 - x)
    shifted = 0.0
    while x < 10:
        shifted += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    return shifted + 1 / x + y / 2 + y / x * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))


_erf = _each(math.erf)
_erfc = _each(math.erfc)
_lgamma = _each(_lgamma_of)
_digamma = _each(_digamma_of)
_trigamma = _each(_trigamma_of)
_SLOPE = 2 / math.sqrt(math.pi)


erf = unary(
    "erf", "Erf", _erf, "Give the error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0.", floats=True
)
erfc = unary("erfc", "Erfc", _erfc, "Give 1 - erf(x), exactly where that is small, too.", floats=True)
lgamma = unary("lgamma", "Lgamma", _lgamma, "Give the logarithm of the gamma function's magnitude.", floats=True)
digamma = unary("digamma", "Digamma", _digamma, "Give the derivative of `lgamma`.", floats=True)
asinh = unary("asinh", "Asinh", np.arcsinh, "Give the inverse of sinh.", floats=True)
acosh = unary("acosh", "Acosh", np.arccosh, "Give the inverse of cosh; NaN below 1.", floats=True)
atanh = unary("atanh", "Atanh", np.arctanh, "Give the inverse of tanh; NaN outside of [-1, 1].", floats=True)


def _zero_where(x: Any, value: Any) -> Any:
    """Give `value`, and 0 where x is 0."""
    return np.where(np.equal(x, 0), np.zeros_like(value), value)


def _xlogy(x: Any, y: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _zero_where(x, x * np.log(y))


def _xdivy(x: Any, y: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _zero_where(x, x / y)


xlogy = binary("xlogy", "Xlogy", _xlogy, "Give x log(y); 0 where x is 0.")
xdivy = binary("xdivy", "Xdivy", _xdivy, "Give x / y; 0 where x is 0.")


def lbeta(x: Any, name: str | None = None) -> Node:
    """Give the logarithm of Beta's absolute value, reduced along the last dimension.

    Args:
        x: Floating node or array [..., n].
        name: Name of the node; default "lbeta".

    Returns:
        A node [...].
    """
    node = require_float("Lbeta", as_node(x))
    shape = None if node.shape.dims is None else node.shape.as_list()[:-1]
    return Node("Lbeta", (node,), name=name or "lbeta", dtype=node.dtype, shape=TensorShape(shape))


computes("Lbeta", lambda v: np.sum(_lgamma(v), axis=-1) - _lgamma(np.sum(v, axis=-1)))


_trigamma_node = unary("_trigamma_node", "Trigamma", _trigamma, "Give the derivative of `digamma`.", floats=True)


def _of_one(op_type: str, slope: Callable[[Node], Node]) -> None:
    """Register the gradient of a function of one value, whose derivative is `slope`."""
    gradient_of(op_type)(lambda node, grad: (grad * slope(node.inputs[0]),))


_of_one("Erf", lambda x: _SLOPE * math_ops.exp(-x * x))
_of_one("Erfc", lambda x: -_SLOPE * math_ops.exp(-x * x))
_of_one("Lgamma", digamma)
_of_one("Digamma", _trigamma_node)
_of_one("Asinh", lambda x: math_ops.rsqrt(math_ops.square(x) + 1.0))
_of_one("Acosh", lambda x: math_ops.rsqrt(math_ops.square(x) - 1.0))
_of_one("Atanh", lambda x: math_ops.reciprocal(1.0 - math_ops.square(x)))


def _not_zero(x: Node) -> Node:
    return math_ops.cast(math_ops.not_equal(x, 0.0), x.dtype)


@gradient_of("Xlogy")
def _xlogy_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad * xlogy(_not_zero(x), y), x, y), unbroadcast(grad * xdivy(x, y), y, x)


@gradient_of("Xdivy")
def _xdivy_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad * xdivy(_not_zero(x), y), x, y), unbroadcast(-grad * xdivy(xdivy(x, y), y), y, x)


@gradient_of("Lbeta")
@composed
def _lbeta_gradient(node: Node) -> Node:
    (x,) = node.inputs
    return reduce_sum(lgamma(x), [-1]) - lgamma(reduce_sum(x, [-1]))

"""Functions of numbers, element by element, and products of matrices, under TensorFlow's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.execution import products
from globalstep.tf1.gradients.registry import composed, gradient_of, no_gradient
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.ops.building import binary, elementwise, operand_list, operands, pairwise, unary
from globalstep.tf1.ops.gradient_ops import add_terms, is_ones, unbroadcast

__all__ = [
    "abs",
    "accumulate_n",
    "acos",
    "add",
    "add_n",
    "asin",
    "atan",
    "atan2",
    "cast",
    "ceil",
    "cos",
    "cosh",
    "div",
    "div_no_nan",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "masked",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "realdiv",
    "reciprocal",
    "rint",
    "round",
    "rsqrt",
    "saturate_cast",
    "scalar_mul",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "squared_difference",
    "subtract",
    "tan",
    "tanh",
    "to_bfloat16",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
    "truediv",
    "truncatediv",
    "truncatemod",
]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _square(x: Any) -> Any:
    return x * x


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _squared_difference(x: Any, y: Any) -> Any:
    apart = x - y
    return apart * apart


def _truncated_quotient(x: Any, y: Any) -> Any:
    return np.sign(x) * np.sign(y) * np.floor_divide(np.abs(x), np.abs(y))


def _quotient_or_zero(x: Any, y: Any) -> Any:
    if x.shape == y.shape and y.all():
        return x / y
    zero = np.equal(y, 0)
    return np.where(zero, np.zeros((), x.dtype), x / np.where(zero, np.ones_like(y), y))


def _add_large(x: Any, y: Any) -> Any:
    return products.elementwise(np.add, x, y)


def _subtract_large(x: Any, y: Any) -> Any:
    return products.elementwise(np.subtract, x, y)


def _multiply_large(x: Any, y: Any) -> Any:
    return products.elementwise(np.multiply, x, y)


abs = unary("abs", "Abs", np.abs, "Give the absolute value of each element.")
acos = unary("acos", "Acos", np.arccos, "Give the arc cosine of each element.", floats=True)
asin = unary("asin", "Asin", np.arcsin, "Give the arc sine of each element.", floats=True)
atan = unary("atan", "Atan", np.arctan, "Give the arc tangent of each element.", floats=True)
ceil = unary("ceil", "Ceil", np.ceil, "Round each element up.", floats=True)
cos = unary("cos", "Cos", np.cos, "Give the cosine of each element.", floats=True)
cosh = unary("cosh", "Cosh", np.cosh, "Give the hyperbolic cosine of each element.", floats=True)
exp = unary("exp", "Exp", np.exp, "Give e to the power of each element.", floats=True)
expm1 = unary("expm1", "Expm1", np.expm1, "Give exp(x) - 1, exact for small x.", floats=True)
floor = unary("floor", "Floor", np.floor, "Round each element down.", floats=True)
is_finite = unary("is_finite", "IsFinite", np.isfinite, "Say which elements are finite.", dtype="bool")
is_inf = unary("is_inf", "IsInf", np.isinf, "Say which elements are infinite.", dtype="bool")
is_nan = unary("is_nan", "IsNan", np.isnan, "Say which elements are NaN.", dtype="bool")
log = unary("log", "Log", np.log, "Give the natural logarithm of each element.", floats=True)
log1p = unary("log1p", "Log1p", np.log1p, "Give log(1 + x), exact for small x.", floats=True)
logical_not = unary("logical_not", "LogicalNot", np.logical_not, "Negate each truth value.", dtype="bool")
negative = unary("negative", "Neg", np.negative, "Negate each element.")
reciprocal = unary("reciprocal", "Reciprocal", lambda x: 1 / x, "Give 1/x for each element.", floats=True)
rint = unary("rint", "Rint", np.rint, "Round to the nearest even integer.", floats=True)
rsqrt = unary("rsqrt", "Rsqrt", _rsqrt, "Give 1/sqrt(x) for each element.", floats=True)
sigmoid = unary("sigmoid", "Sigmoid", _sigmoid, "Give 1 / (1 + exp(-x)) for each element.", floats=True)
sign = unary("sign", "Sign", np.sign, "Give -1, 0 or 1 for each element.")
sin = unary("sin", "Sin", np.sin, "Give the sine of each element.", floats=True)
sinh = unary("sinh", "Sinh", np.sinh, "Give the hyperbolic sine of each element.", floats=True)
sqrt = unary("sqrt", "Sqrt", np.sqrt, "Give the square root of each element.", floats=True)
square = unary("square", "Square", _square, "Give the square of each element.")
tan = unary("tan", "Tan", np.tan, "Give the tangent of each element.", floats=True)
tanh = unary("tanh", "Tanh", np.tanh, "Give the hyperbolic tangent of each element.", floats=True)
log_sigmoid = unary("log_sigmoid", "LogSigmoid", lambda x: -np.logaddexp(0, -x), "Give log(sigmoid(x)).", floats=True)

add = binary("add", "Add", np.add, "Add two values.", large=_add_large)
subtract = binary("subtract", "Sub", np.subtract, "Subtract `y` from `x`.", large=_subtract_large)
multiply = binary("multiply", "Mul", np.multiply, "Multiply two values, element by element.", large=_multiply_large)
realdiv = binary("realdiv", "RealDiv", np.true_divide, "Divide floating values.")
floordiv = binary("floordiv", "FloorDiv", np.floor_divide, "Divide and round down.")
floormod = binary("floormod", "FloorMod", np.mod, "Give the remainder that has the sign of `y`.")
mod = floormod
truncatediv = binary("truncatediv", "TruncateDiv", _truncated_quotient, "Divide and round to 0.")
truncatemod = binary(
    "truncatemod",
    "TruncateMod",
    lambda x, y: x - y * _truncated_quotient(x, y),
    "Give the remainder that has the sign of `x`.",
)
div_no_nan = binary("div_no_nan", "DivNoNan", _quotient_or_zero, "Divide, giving 0 where `y` is 0.")
pow = binary("pow", "Pow", np.power, "Raise `x` to the power `y`.")
maximum = binary("maximum", "Maximum", np.maximum, "Give the larger of each pair.")
minimum = binary("minimum", "Minimum", np.minimum, "Give the smaller of each pair.")
squared_difference = binary("squared_difference", "SquaredDifference", _squared_difference, "Give (x - y)^2.")
equal = binary("equal", "Equal", np.equal, "Say which pairs are equal.", dtype="bool")
not_equal = binary("not_equal", "NotEqual", np.not_equal, "Say which pairs differ.", dtype="bool")
less = binary("less", "Less", np.less, "Say where x < y.", dtype="bool")
less_equal = binary("less_equal", "LessEqual", np.less_equal, "Say where x <= y.", dtype="bool")
greater = binary("greater", "Greater", np.greater, "Say where x > y.", dtype="bool")
greater_equal = binary("greater_equal", "GreaterEqual", np.greater_equal, "Say where x >= y.", dtype="bool")
logical_and = binary("logical_and", "LogicalAnd", np.logical_and, "Say where both hold.", dtype="bool")
logical_or = binary("logical_or", "LogicalOr", np.logical_or, "Say where one or both hold.", dtype="bool")
logical_xor = binary("logical_xor", "LogicalXor", np.logical_xor, "Say where exactly one holds.", dtype="bool")


def round(x: Any, name: str | None = None) -> Node:
    """Round to the nearest integer, halves to even; integers stay as they are."""
    node = as_node(x)
    if node.dtype.is_integer:
        return elementwise("Identity", node, name)
    return elementwise("Round", node, name)


computes("Round", np.rint)


def atan2(y: Any, x: Any, name: str | None = None) -> Node:
    """Give the angle of the points (x, y), between -pi and pi."""
    return pairwise("Atan2", y, x, name, names=("y", "x"))


computes("Atan2", np.arctan2)


def truediv(x: Any, y: Any, name: str | None = None) -> Node:
    """Divide; integers become floating values first (8 and 16 bits float32, wider ones float64).

    Args:
        x: Node or array of any shape.
        y: Another of the same dtype, of a shape that broadcasts with that of `x`.
        name: Name of the node.

    Returns:
        A floating node.
    """
    a, b = operands("RealDiv", x, y)
    if a.dtype.is_integer:
        wide = "float32" if np.dtype(a.dtype.as_numpy_dtype).itemsize <= 2 else "float64"
        a, b = cast(a, wide), cast(b, wide)
    return realdiv(a, b, name)


def divide(x: Any, y: Any, name: str | None = None) -> Node:
    """Divide as Python's `/` does; see `truediv`."""
    return truediv(x, y, name)


def div(x: Any, y: Any, name: str | None = None) -> Node:
    """Divide; integers give integers, rounded down (TensorFlow's older division)."""
    x, y = operands("Div", x, y)
    return floordiv(x, y, name) if x.dtype.is_integer else pairwise("Div", x, y, name)


@kernel_of("Div")
def _div(node: Node) -> Any:
    return np.floor_divide if node.dtype.is_integer else np.true_divide


def cast(x: Any, dtype: DTypeLike, name: str | None = None) -> Node:
    """Give `x` in another dtype; floating values are cut off towards 0 when they become integers.

    Args:
        x: Node, array, IndexedSlices or SparseTensor.
        dtype: The dtype wanted.
        name: Name of the node.

    Returns:
        A node, or of the kind of `x`; `x` itself if it has the dtype.
    """
    if isinstance(x, IndexedSlices):
        return IndexedSlices(cast(x.values, dtype, name), x.indices, x.dense_shape)  # type: ignore[return-value]
    if isinstance(x, (SparseTensor, SparseTensorValue)):
        return SparseTensor(x.indices, cast(x.values, dtype, name), x.dense_shape)  # type: ignore[return-value]
    node, wanted = as_node(x), as_dtype(dtype)
    if node.dtype == wanted:
        return node
    return elementwise("Cast", node, name, wanted)


computes("Cast", lambda value, *, dtype: np.array(value, dtype))


def saturate_cast(value: Any, dtype: DTypeLike, name: str | None = None) -> Node:
    """Cast, with values out of range becoming the nearest value in range."""
    node, wanted = as_node(value), as_dtype(dtype)
    low, high = max(wanted.min, node.dtype.min), min(wanted.max, node.dtype.max)
    return cast(minimum(maximum(node, low), high), wanted, name)


def to_float(x: Any, name: str = "ToFloat") -> Node:
    """Cast to float32."""
    return cast(x, "float32", name)


def to_double(x: Any, name: str = "ToDouble") -> Node:
    """Cast to float64."""
    return cast(x, "float64", name)


def to_int32(x: Any, name: str = "ToInt32") -> Node:
    """Cast to int32."""
    return cast(x, "int32", name)


def to_int64(x: Any, name: str = "ToInt64") -> Node:
    """Cast to int64."""
    return cast(x, "int64", name)


def to_bfloat16(x: Any, name: str = "ToBFloat16") -> Node:
    """Refuse: there is no bfloat16 here.

    Raises:
        TypeError: Always.
    """
    raise TypeError("bfloat16 is not a dtype of globalstep; cast to float16 or float32.")


def add_n(inputs: Any, name: str | None = None) -> Node:
    """Add a list of values of one dtype and shape.

    Args:
        inputs: Nodes, arrays or IndexedSlices.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        ValueError: If `inputs` is no list, or empty, or the shapes differ.
    """
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise ValueError("inputs must be a list of at least one Tensor/IndexedSlices with the same dtype and shape")
    nodes = operand_list("AddN", inputs, "inputs")
    if any(not node.shape.is_compatible_with(nodes[0].shape) for node in nodes):
        shapes = ", ".join(str(node.shape) for node in nodes)
        raise ValueError(f"Shapes must be equal to be added by AddN; got {shapes}.")
    return add_terms(nodes, nodes[0], name)


def accumulate_n(inputs: Any, shape: Any = None, tensor_dtype: Any = None, name: str | None = None) -> Node:
    """Add a list of values; the same as `add_n` here."""
    return add_n(inputs, name)


def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """Multiply by a scalar; the rows of IndexedSlices stay sparse."""
    if isinstance(x, IndexedSlices):
        return IndexedSlices(multiply(x.values, scalar, name), x.indices, x.dense_shape)
    return multiply(scalar, x, name)


# Gradients. Their sums and products are in the order of TensorFlow's, and so is what they are where a function has no
# derivative.

no_gradient("Ceil", "Floor", "FloorDiv", "Rint", "Round", "Sign", "TruncateDiv", "TruncateMod")


def _times(grad: Node, factor: Any) -> Node:
    """Multiply, where the gradient is not known to be 1."""
    if isinstance(factor, Node) and is_ones(grad) and grad.shape == factor.shape and factor.op_type != "VariableV2":
        return factor
    return multiply(grad, factor)


@gradient_of("Add", "AddV2")
def _add_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad, x, y), unbroadcast(grad, y, x)


@gradient_of("Sub")
def _sub_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad, x, y), negative(unbroadcast(grad, y, x))


@gradient_of("Mul")
def _mul_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(_times(grad, y), x, y), unbroadcast(_times(grad, x), y, x)


@gradient_of("RealDiv", "Div")
def _div_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad / y, x, y), unbroadcast(-grad * x / square(y), y, x)


@gradient_of("FloorMod")
def _floormod_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(grad, x, y), unbroadcast(-grad * floordiv(x, y), y, x)


@gradient_of("DivNoNan")
def _div_no_nan_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    to_y = div_no_nan(-grad * x, square(y))
    return unbroadcast(div_no_nan(grad, y), x, y), unbroadcast(to_y, y, x)


@gradient_of("SquaredDifference")
def _squared_difference_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    to_x = grad * (x - y) * 2.0
    return unbroadcast(to_x, x, y), unbroadcast(-to_x, y, x)


@gradient_of("Pow")
def _pow_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    # The gradient at the exponent is 0 where the base is not positive.
    logs = elementwise("LogIfPositive", x, None)
    return unbroadcast(grad * y * pow(x, y - 1.0), x, y), unbroadcast(grad * node * logs, y, x)


@computes("LogIfPositive")
def _log_if_positive(x: Any) -> Any:
    positive = np.greater(x, 0)
    return np.where(positive, np.log(np.where(positive, x, np.ones_like(x))), np.zeros_like(x))


@gradient_of("LogIfPositive")
def _log_if_positive_gradient(node: Node, grad: Node) -> Any:
    (x,) = node.inputs
    return (div_no_nan(grad, maximum(x, 0.0)),)


@gradient_of("Maximum", "Minimum")
def _choice_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    # Where both are equal the gradient is all of x.
    first = (greater_equal if node.op_type == "Maximum" else less_equal)(x, y)
    return unbroadcast(masked(grad, first), x, y), unbroadcast(masked(grad, first, False), y, x)


def masked(value: Node, condition: Node, holds: bool = True) -> Node:
    """Give a value where a condition holds (or where it does not), and 0 elsewhere."""
    return Node("Masked", (value, condition), dtype=value.dtype, shape=value.shape, attrs={"holds": holds})


@kernel_of("Masked")
def _masked(node: Node) -> Any:
    none = np.zeros((), node.dtype.as_numpy_dtype)
    if node.attrs["holds"]:
        return lambda value, condition: np.where(condition, value, none)
    return lambda value, condition: np.where(condition, none, value)


@gradient_of("Masked")
def _masked_gradient(node: Node, grad: Node) -> Any:
    return masked(grad, node.inputs[1], node.attrs["holds"]), None


@gradient_of("Atan2")
def _atan2_gradient(node: Node, grad: Node) -> Any:
    y, x = node.inputs
    share = grad / (square(x) + square(y))
    return unbroadcast(share * x, y, x), unbroadcast(share * -y, x, y)


@gradient_of("Cast")
def _cast_gradient(node: Node, grad: Node) -> Any:
    return (cast(grad, node.inputs[0].dtype),)


def _of_one(op_type: str, rule: Any) -> None:
    """Register the gradient of a function of one value: `rule(grad, x, y)`, where y is its value."""
    gradient_of(op_type)(lambda node, grad: (rule(grad, node.inputs[0], node),))


_of_one("Abs", lambda g, x, y: g * sign(x))
_of_one("Acos", lambda g, x, y: -g / sqrt(1.0 - square(x)))
_of_one("Asin", lambda g, x, y: g / sqrt(1.0 - square(x)))
_of_one("Atan", lambda g, x, y: g / (1.0 + square(x)))
_of_one("Cos", lambda g, x, y: -g * sin(x))
_of_one("Cosh", lambda g, x, y: g * sinh(x))
_of_one("Exp", lambda g, x, y: _times(g, y))
_of_one("Expm1", lambda g, x, y: (y + 1.0) * g)
_of_one("Identity", lambda g, x, y: g)
_of_one("Log", lambda g, x, y: g / x)
_of_one("Log1p", lambda g, x, y: g / (x + 1.0))
_of_one("LogSigmoid", lambda g, x, y: g * sigmoid(-x))
_of_one("Neg", lambda g, x, y: -g)
_of_one("Reciprocal", lambda g, x, y: -g * square(y))
_of_one("Rsqrt", lambda g, x, y: g * -0.5 * y * square(y))
_of_one("Sigmoid", lambda g, x, y: sigmoid_grad(y, g))
_of_one("Sin", lambda g, x, y: g * cos(x))
_of_one("Sinh", lambda g, x, y: g * cosh(x))
_of_one("Sqrt", lambda g, x, y: g * 0.5 / y)
_of_one("Square", lambda g, x, y: _times(g, x) * 2.0)
_of_one("Tan", lambda g, x, y: g * (1.0 + square(y)))
_of_one("Tanh", lambda g, x, y: tanh_grad(y, g))


def sigmoid_grad(value: Node, grad: Node) -> Node:
    """Give the gradient at x, where `value` is sigmoid(x) and `grad` its gradient."""
    return Node("SigmoidGrad", (value, grad), dtype=value.dtype, shape=value.shape)


computes("SigmoidGrad", lambda value, g: g * value * (1 - value))
gradient_of("SigmoidGrad")(composed(lambda node: node.inputs[1] * node.inputs[0] * (1.0 - node.inputs[0])))


def tanh_grad(value: Node, grad: Node) -> Node:
    """Give the gradient at x, where `value` is tanh(x) and `grad` its gradient."""
    return Node("TanhGrad", (value, grad), dtype=value.dtype, shape=value.shape)


computes("TanhGrad", lambda value, g: g * (1 - value * value))
gradient_of("TanhGrad")(composed(lambda node: node.inputs[1] * (1.0 - square(node.inputs[0]))))

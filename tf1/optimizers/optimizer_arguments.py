"""Checks of optimizers' arguments, and their normal form.

Layer: tf1. Source of texts: TensorFlow 1.15 `python/training/optimizer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from globalstep.dtypes import DType, as_dtype
from globalstep.tf1.graph.graph import Graph, Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.variables import Variable

_VALID_DTYPES = (as_dtype("float16"), as_dtype("float32"), as_dtype("float64"))

#: A gradient as `apply_gradients` takes it.
Gradient = Node | IndexedSlices


def check_hyper(owner: str, name: str, value: Any) -> Hyper:
    """Check a hyper-parameter as far as it is known when the graph is built.

    Numbers below 0 are taken, as TensorFlow takes them: a negative rate climbs. The rules that cannot work with them
    (Ftrl, ProximalAdagrad) refuse the push, as TensorFlow's do.

    Args:
        owner: Name of the optimizer or moving average, for the message.
        name: Name of the parameter.
        value: Number, node, or function of no arguments.

    Returns:
        The node or function, or the number as a float.

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is NaN, or a node that is no scalar.
    """
    if hasattr(value, "__node__"):
        value = as_node(value)
    if isinstance(value, Node):
        shape = value.shape
        if shape.ndims not in (None, 0):
            raise ValueError(f"{name} of {owner!r} must be a scalar; {value.name!r} has shape {shape}.")
        return value
    if callable(value):
        function: Callable[[], Any] = value
        return function
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} of {owner!r} must be a number, a scalar node or a function of no arguments; got {value!r}."
        ) from None
    if math.isnan(number):
        raise ValueError(f"{name} of {owner!r} is NaN.")
    return number


def as_gradient(grad: Any) -> Gradient | None:
    """Give a gradient as a node or IndexedSlices; None stays None."""
    if grad is None or isinstance(grad, IndexedSlices):
        return grad
    try:
        node = as_node(grad)
    except (TypeError, ValueError):
        node = None
    if node is None or node.is_operation or node.dtype.name == "string":
        raise TypeError(f"Gradient must be convertible to a Tensor or IndexedSlices, or None: {grad}")
    return node


def variables_in(var_list: Any) -> Iterable[Variable]:
    """Give the Variables of a var_list, the parts of partitioned ones each."""
    if isinstance(var_list, Node):
        yield var_list  # type: ignore[misc]
    elif isinstance(var_list, Iterable) and not isinstance(var_list, (str, bytes)):
        for item in var_list:
            yield from variables_in(item)
    else:
        require_variable(var_list)


def require_variable(value: Any) -> None:
    """Refuse what is no Variable: a node with TensorFlow's NotImplementedError, anything else with TypeError."""
    if not isinstance(value, Variable):
        text = "Trying to update a Tensor" if isinstance(value, Node) else "Argument is not a gs.Variable:"
        error = NotImplementedError if isinstance(value, Node) else TypeError
        raise error(f"{text} {value}")


def require_floating(nodes: Sequence[Node]) -> None:
    """Refuse nodes of a dtype that no rule updates, with ValueError."""
    for node in nodes:
        if node.dtype not in _VALID_DTYPES:
            raise ValueError(f"Invalid type {node.dtype!r} for {node.name}, expected: {list(_VALID_DTYPES)}.")


def require_fit(grad: Gradient, variable: Variable) -> None:
    """Refuse a gradient that cannot be its Variable's, as far as shapes are known, with ValueError."""
    rows = isinstance(grad, IndexedSlices)
    values = as_node(grad.values) if isinstance(grad, IndexedSlices) else grad
    dtype = _dtype_if_known(values)
    if dtype is not None and dtype != variable.dtype:
        raise TypeError(
            f"Gradient {values.name!r} of Variable {variable.name!r} has dtype {dtype.name}, the Variable "
            f"{variable.dtype.name}; use gs.cast."
        )
    shape, wanted = values.shape, variable.shape
    if rows and wanted.ndims:
        wanted = TensorShape([None, *wanted.as_list()[1:]])
    if not shape.is_compatible_with(wanted):
        raise ValueError(
            f"Gradient {values.name!r} of Variable {variable.name!r} has shape {shape}, which does not fit "
            f"the Variable's {variable.shape}{' by rows' if rows else ''}."
        )
    if isinstance(grad, IndexedSlices) and not as_node(grad.indices).dtype.is_integer:
        raise TypeError(
            f"Indices {grad.indices!r} of the gradient of Variable {variable.name!r} must be int32 or int64."
        )


def _dtype_if_known(node: Node) -> DType | None:
    try:
        return node.dtype
    except ValueError:
        return None


def unique_optimizer_name(graph: Graph, name: str) -> str:
    """Give `name`, or `name_1`, `name_2`, ...: the same in every process that builds the same graph."""
    names: set[str] = graph.extras.setdefault(__name__, set())
    chosen, count = name, 0
    while chosen in names:
        count += 1
        chosen = f"{name}_{count}"
    names.add(chosen)
    return chosen


def is_floating_scalar(value: Any) -> bool:
    """Whether a value is a Variable of one floating-point number."""
    return isinstance(value, Variable) and value.dtype.is_floating and value.shape.ndims == 0

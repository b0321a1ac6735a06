"""Python's operators on nodes: `+ - * / // % ** @ < <= > >= & | ^ ~ [] abs neg`.

`==` stays identity, as in TensorFlow 1.x, because nodes are keys of feeds: use `gs.equal`.

Layer: tf1. The functions need `globalstep.tf1.graph.graph`, which needs this module; so they load at first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from globalstep.tf1.graph.graph import Node


def _call(function: str, name: str, *operands: Any, module: str = "math_ops") -> Node:
    """Call a function of `globalstep.tf1.ops` that makes a node named `name`."""
    node: Node = getattr(importlib.import_module(f"globalstep.tf1.ops.{module}"), function)(*operands, name=name)
    return node


def _unary(function: str, name: str) -> Callable[[Any], Node]:
    return lambda own: _call(function, name, own)


def _binary(function: str, name: str, module: str = "math_ops") -> Callable[[Any, Any], Node]:
    return lambda own, other: _call(function, name, own, other, module=module)


def _swapped(function: str, name: str, module: str = "math_ops") -> Callable[[Any, Any], Node]:
    return lambda own, other: _call(function, name, other, own, module=module)


class Operators:
    """Operators of nodes, as in `x * 2.0 + y[0]`; plain values take the dtype of the node beside them."""

    __add__, __radd__ = _binary("add", "add"), _swapped("add", "add")
    __sub__, __rsub__ = _binary("subtract", "sub"), _swapped("subtract", "sub")
    __mul__, __rmul__ = _binary("multiply", "mul"), _swapped("multiply", "mul")
    __truediv__, __rtruediv__ = _binary("truediv", "truediv"), _swapped("truediv", "truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv", "floordiv"), _swapped("floordiv", "floordiv")
    __mod__, __rmod__ = _binary("floormod", "mod"), _swapped("floormod", "mod")
    __pow__, __rpow__ = _binary("pow", "pow"), _swapped("pow", "pow")
    __matmul__, __rmatmul__ = _binary("matmul", "matmul", "product_ops"), _swapped("matmul", "matmul", "product_ops")
    __and__, __rand__ = _binary("logical_and", "and"), _swapped("logical_and", "and")
    __or__, __ror__ = _binary("logical_or", "or"), _swapped("logical_or", "or")
    __xor__, __rxor__ = _binary("logical_xor", "xor"), _swapped("logical_xor", "xor")
    __lt__, __le__ = _binary("less", "Less"), _binary("less_equal", "LessEqual")
    __gt__, __ge__ = _binary("greater", "Greater"), _binary("greater_equal", "GreaterEqual")
    __neg__, __abs__, __invert__ = _unary("negative", "Neg"), _unary("abs", "Abs"), _unary("logical_not", "LogicalNot")
    __getitem__ = _binary("getitem", "strided_slice", "indexing_ops")

"""Python's operators on nodes: `+ - * / // % ** @ < <= > >= & | ^ ~ [] abs neg`.

`==` stays identity, as in TensorFlow 1.x, because nodes are keys of feeds: use `gs.equal`.

Layer: tf1. The functions need `globalstep.tf1.graph.graph`, which needs this module; so they load at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from globalstep.tf1.graph.graph import Node

__all__ = ["Operators"]


def _call(function: str, name: str, *operands: Any, module: str = "math_ops") -> Node:
    """Call a function of `globalstep.tf1.ops` that makes a node named `name`."""
    node: Node = getattr(importlib.import_module(f"globalstep.tf1.ops.{module}"), function)(*operands, name=name)
    return node


class Operators:
    """What makes `x * 2.0 + y[0]` work on nodes; plain values take the dtype of the node beside them."""

    def __add__(self, other: Any) -> Node:
        return _call("add", "add", self, other)

    def __radd__(self, other: Any) -> Node:
        return _call("add", "add", other, self)

    def __sub__(self, other: Any) -> Node:
        return _call("subtract", "sub", self, other)

    def __rsub__(self, other: Any) -> Node:
        return _call("subtract", "sub", other, self)

    def __mul__(self, other: Any) -> Node:
        return _call("multiply", "mul", self, other)

    def __rmul__(self, other: Any) -> Node:
        return _call("multiply", "mul", other, self)

    def __truediv__(self, other: Any) -> Node:
        return _call("truediv", "truediv", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return _call("truediv", "truediv", other, self)

    def __floordiv__(self, other: Any) -> Node:
        return _call("floordiv", "floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Node:
        return _call("floordiv", "floordiv", other, self)

    def __mod__(self, other: Any) -> Node:
        return _call("floormod", "mod", self, other)

    def __rmod__(self, other: Any) -> Node:
        return _call("floormod", "mod", other, self)

    def __pow__(self, other: Any) -> Node:
        return _call("pow", "pow", self, other)

    def __rpow__(self, other: Any) -> Node:
        return _call("pow", "pow", other, self)

    def __matmul__(self, other: Any) -> Node:
        return _call("matmul", "matmul", self, other, module="product_ops")

    def __rmatmul__(self, other: Any) -> Node:
        return _call("matmul", "matmul", other, self, module="product_ops")

    def __and__(self, other: Any) -> Node:
        return _call("logical_and", "and", self, other)

    def __rand__(self, other: Any) -> Node:
        return _call("logical_and", "and", other, self)

    def __or__(self, other: Any) -> Node:
        return _call("logical_or", "or", self, other)

    def __ror__(self, other: Any) -> Node:
        return _call("logical_or", "or", other, self)

    def __xor__(self, other: Any) -> Node:
        return _call("logical_xor", "xor", self, other)

    def __rxor__(self, other: Any) -> Node:
        return _call("logical_xor", "xor", other, self)

    def __lt__(self, other: Any) -> Node:
        return _call("less", "Less", self, other)

    def __le__(self, other: Any) -> Node:
        return _call("less_equal", "LessEqual", self, other)

    def __gt__(self, other: Any) -> Node:
        return _call("greater", "Greater", self, other)

    def __ge__(self, other: Any) -> Node:
        return _call("greater_equal", "GreaterEqual", self, other)

    def __neg__(self) -> Node:
        return _call("negative", "Neg", self)

    def __abs__(self) -> Node:
        return _call("abs", "Abs", self)

    def __invert__(self) -> Node:
        return _call("logical_not", "LogicalNot", self)

    def __getitem__(self, key: Any) -> Node:
        return _call("getitem", "strided_slice", self, key, module="indexing_ops")

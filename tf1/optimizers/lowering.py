"""Lowering of a node to a closed expression, which a parameter server can evaluate by itself.

A hyper-parameter that depends only on numbers, steps and scalar Variables need not be computed by a worker
from values that may be old: its expression crosses the wire once, and the PS evaluates it at the
authoritative step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Node
from globalstep.wire.expressions import OPERATIONS, Expr, constant, step, variable

_ONE = constant(1)
_ZERO = constant(0)


def _call(op: str) -> Callable[..., Expr]:
    count = OPERATIONS[op][0]

    def build(*args: Expr) -> Expr:
        assert len(args) == count
        return Expr(op, args)

    return build


_add, _sub, _mul, _div, _pow = (_call(op) for op in ("add", "sub", "mul", "div", "pow"))
_floor, _where, _less, _equal = (_call(op) for op in ("floor", "where", "less", "equal"))


def _sum(*args: Expr) -> Expr:
    total = args[0]
    for arg in args[1:]:
        total = _add(total, arg)
    return total


def _floor_div(a: Expr, b: Expr) -> Expr:
    return _floor(_div(a, b))


# TensorFlow's type of an operation -> the expression of its operands' expressions.
_LOWERED: Mapping[str, Callable[..., Expr]] = {
    "Abs": _call("abs"),
    "Add": _add,
    "AddN": _sum,
    "AddV2": _add,
    "Ceil": _call("ceil"),
    "Cos": _call("cos"),
    "Div": _div,
    "Equal": _equal,
    "Exp": _call("exp"),
    "Floor": _floor,
    "FloorDiv": _floor_div,
    "FloorMod": lambda a, b: _sub(a, _mul(b, _floor_div(a, b))),
    "Greater": lambda a, b: _less(b, a),
    "GreaterEqual": lambda a, b: Expr("less_equal", (b, a)),
    "Identity": lambda a: a,
    "Less": _less,
    "LessEqual": _call("less_equal"),
    "Log": _call("log"),
    "LogicalAnd": _mul,
    "LogicalNot": lambda a: _sub(_ONE, a),
    "LogicalOr": _call("max"),
    "Maximum": _call("max"),
    "Minimum": _call("min"),
    "Mul": _mul,
    "Neg": _call("neg"),
    "NotEqual": lambda a, b: _sub(_ONE, _equal(a, b)),
    "Pow": _pow,
    "RealDiv": _div,
    "Reciprocal": lambda a: _div(_ONE, a),
    "Rsqrt": lambda a: _div(_ONE, Expr("sqrt", (a,))),
    "Select": _where,
    "Sigmoid": lambda a: _div(_ONE, _add(_ONE, Expr("exp", (Expr("neg", (a,)),)))),
    "Sin": _call("sin"),
    "Sqrt": _call("sqrt"),
    "Square": lambda a: _mul(a, a),
    "SquaredDifference": lambda a, b: _mul(_sub(a, b), _sub(a, b)),
    "StopGradient": lambda a: a,
    "Sub": _sub,
}


def lower(node: Node) -> Expr | None:
    """Give the expression of a node's value.

    Args:
        node: A node, usually a learning rate: a schedule, a Variable, a constant, or arithmetic of them.

    Returns:
        The expression; None if the node depends on anything else (a feed, a random number, a value that
        is no scalar), so that a worker must compute it. The expression is evaluated in float64, whatever
        the dtypes of the nodes are.

    >>> from globalstep.tf1.ops.constant_ops import constant as node_of
    >>> lower(node_of(2.0) * 3.0)
    Expr(op='mul', args=(Expr(op='const', args=(), value=2.0, name=''), \
Expr(op='const', args=(), value=3.0, name='')), value=0.0, name='')
    """
    expr = node.attrs.get("expr")
    if isinstance(expr, Expr):
        return expr
    if node.is_operation or node.shape.ndims != 0:
        return None
    if node.op_type == "Const":
        return _number(node.attrs["value"])
    if node.op_type == "Fill" and "fill" in node.attrs:
        return _number(node.attrs["fill"])
    if node.op_type == "VariableV2":
        return _named(node)
    if node.op_type == "Cast":
        return _cast(node)
    build = _LOWERED.get(node.op_type)
    if build is None or (node.op_type == "Div" and not node.dtype.is_floating):
        return None
    args = [lower(source) for source in node.inputs]
    return None if any(arg is None for arg in args) else build(*args)


def _number(value: Any) -> Expr | None:
    return constant(float(value)) if np.asarray(value).dtype.kind in "biuf" else None


def _named(node: Any) -> Expr | None:
    if getattr(node, "is_local", False):
        return None
    return step(node.op_name) if getattr(node, "is_step", False) else variable(node.op_name)


def _cast(node: Node) -> Expr | None:
    (source,) = node.inputs
    inner = lower(source)
    if inner is None or node.dtype.is_floating or not source.dtype.is_floating:
        return None if node.dtype.is_bool else inner
    if not node.dtype.is_integer:
        return None
    return _where(_less(inner, _ZERO), Expr("ceil", (inner,)), _floor(inner))

"""Operands of schedules that are numbers or nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.optimizers.optimizer_rule import Formula
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops.building import static_value
from globalstep.tf1.optimizers.lowering import lower
from globalstep.wire.expressions import Expr, constant, evaluate


class Operands:
    """Collects the node operands of a schedule; numbers go into the expression as they are."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def take(self, value: Any) -> Formula:
        """Give an operand as a formula.

        Raises:
            ValueError: If it is a number, but no scalar.
        """
        static = static_value(value)
        if static is not None:
            return Formula(constant(_exact(value, static)))
        node = as_node(value)
        if node not in self.nodes:
            self.nodes.append(node)
        return Formula(Expr("name", name=f"#{self.nodes.index(node)}"))

    def node(self, op_type: str, formula: Formula, dtype: DType, name: str | None) -> Node:
        """Make the schedule's node."""
        lowered = {f"#{i}": lower(node) for i, node in enumerate(self.nodes)}
        attrs: dict[str, Any] = {"stops_gradient": True, "formula": formula.expr, "dtype": dtype}
        if all(part is not None for part in lowered.values()):
            attrs["expr"] = _filled_in(formula.expr, lowered)
        return Node(op_type, self.nodes, name=name, dtype=dtype, shape=[], attrs=attrs)


def _value(*numbers: Any, formula: Expr, dtype: DType) -> Any:
    names = {f"#{i}": float(np.asarray(v)) for i, v in enumerate(numbers)}
    return np.asarray(evaluate(formula, names)).astype(dtype.as_numpy_dtype)


for _op_type in (
    *("CosineDecay", "ExponentialDecay", "ExponentialTimeDecay", "InverseTimeDecay", "LinearCosineDecay"),
    *("LinearWarmup", "NoisyLinearCosineDecay", "PiecewiseConstant", "PolynomialDecay", "SGDRDecay"),
):
    computes(_op_type, _value)


def _exact(value: Any, number: Any) -> float:
    if np.ndim(number) != 0:
        raise ValueError(f"A schedule takes scalars, got {value!r} of shape {np.shape(number)}.")
    return float(number)


def _filled_in(template: Expr, lowered: dict[str, Expr | None]) -> Expr:
    if template.op == "name":
        return lowered[template.name] or template
    if not template.args:
        return template
    return Expr(template.op, tuple(_filled_in(arg, lowered) for arg in template.args))

"""Optimizers of `gs.optim` in a graph: from a rule to what makes train ops.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from globalstep.optimizers.optimizer_rule import OptimizerRule, RuleHyper, Slot, StepSource
from globalstep.optimizers.torch_optimizers import TorchOptimizer
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.wire.expressions import Expr, evaluate

__all__ = ["RuleOptimizer", "optimizer_of"]

#: What an expression calls the step until it is known whether the PS tasks have it.
_STEP = "step"


class RuleOptimizer(Optimizer):
    """An optimizer of a given rule.

    Args:
        rule: The rule; expressions of the step among its hyper-parameters call it as `optimizer_of` does.
        step: The step.
    """

    def __init__(self, rule: OptimizerRule, step: Node) -> None:
        super().__init__(False, rule.name)
        self._rule = rule
        self._hypers: dict[str, Hyper] = {name: _hyper(value, step) for name, value in rule.hypers.items()}

    def rule(self) -> str:
        """See Optimizer."""
        return self._rule.kind

    def hypers(self) -> Mapping[str, Hyper]:
        """See Optimizer."""
        return self._hypers

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return self._rule.slots

    def scalars(self) -> Mapping[str, Hyper]:
        """See Optimizer."""
        return dict(self._rule.scalars)


def optimizer_of(optimizer: TorchOptimizer, step: Node, count: Callable[[], int]) -> RuleOptimizer:
    """Make the optimizer of a graph.

    Args:
        optimizer: One of `gs.optim`.
        step: The step that its schedules count.
        count: Gives the step that this worker knows of.
    """
    return RuleOptimizer(optimizer.rule_at(StepSource(_STEP, count)), step)


def _hyper(value: RuleHyper, step: Node) -> Hyper:
    if not isinstance(value, Expr):
        return value
    expr, place = value, lower(step)

    def number(at: object) -> object:
        return np.float64(evaluate(expr, {_STEP: float(np.asarray(at))}))

    # A step that the PS tasks do not have is a worker's own: it evaluates the expression itself.
    attrs = {"stops_gradient": True} if place is None else {"stops_gradient": True, "expr": _of_step(expr, place)}
    return Node("Schedule", (step,), number, name="Schedule", dtype=np.float64, shape=[], attrs=attrs)


def _of_step(expr: Expr, step: Expr) -> Expr:
    if expr.op == "name":
        return step
    return Expr(expr.op, tuple(_of_step(arg, step) for arg in expr.args), expr.value) if expr.args else expr

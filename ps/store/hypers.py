"""Hyper-parameters of a push: evaluated once, on the sequencer, for all shards.

Layer: ps. Threads: functions of a store, under its shard's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.ps.ledger.ledger import HyperValues
from globalstep.ps.store.finite import ignoring_float_errors
from globalstep.ps.store.store import VariableStore
from globalstep.rules.rule import Rule
from globalstep.wire.declarations import OptimizerDecl, OptimizerUse
from globalstep.wire.expressions import evaluate, names_in

__all__ = ["advance_scalars", "check_covered", "evaluate_use"]


def check_covered(needed: Collection[tuple[str, bool]], uses: Collection[HyperValues], store: VariableStore) -> None:
    """Refuse numbers that changes cannot be made with: found before anything is changed.

    Args:
        needed: PushParts.optimizers.
        uses: The numbers that come with the decision.
        store: Of the shard.

    Raises:
        InvalidArgumentError: If an optimizer gets none, or not all of its own.
    """
    for name, after_increment in needed:
        _, rule = store.optimizer(name)
        values: Mapping[str, float] = {}
        for item in uses:
            if item.optimizer == name and item.after_increment == after_increment:
                values = item.values
        if not rule.needs <= values.keys():
            missing = rule.needs - values.keys()
            raise InvalidArgumentError(
                f"The push applies gradients by optimizer {name!r} and brings no {sorted(missing)} for it: its `uses` "
                f"must name the optimizer, with after_increment={after_increment}."
            )


def evaluate_use(use: OptimizerUse, steps: Mapping[str, int], store: VariableStore) -> HyperValues:
    """Evaluate an optimizer's hyper-parameters, and add its scalar state as it is before the push.

    Args:
        use: What the push uses, with the numbers that its worker computed itself.
        steps: Values that steps have in expressions.
        store: Of the sequencer: its scalar Variables.

    Raises:
        InvalidArgumentError: If a hyper-parameter has no value, or one that the rule cannot work with.
    """
    decl, rule = store.optimizer(use.optimizer)
    values: dict[str, float] = {}
    for name in rule.hypers:
        if name in use.overrides:
            values[name] = use.overrides[name]
            continue
        expr = decl.hypers.get(name)
        if expr is None:
            raise InvalidArgumentError(
                f"Optimizer {use.optimizer!r} ({decl.kind}) got no value for {name!r} with this push, and none is "
                "declared."
            )
        if expr.op == "const":
            values[name] = expr.value
            continue
        operands = {n: float(steps[n]) if n in steps else store.scalar(n) for n in set(names_in(expr))}
        values[name] = evaluate(expr, operands)
    for scalar, variable in zip(rule.scalars, decl.scalars, strict=True):
        values[scalar] = store.scalar(variable)
    rule.check_hypers(values)
    return HyperValues(use.optimizer, use.after_increment, values)


def advance_scalars(decl: OptimizerDecl, rule: Rule, values: Mapping[str, float], store: VariableStore) -> None:
    """Move an optimizer's scalar state on, after a push that finishes it.

    Args:
        decl: The optimizer.
        rule: Its rule.
        values: As `evaluate_use` gave them.
        store: Of the sequencer.
    """
    moved = ignoring_float_errors.call(_advanced, rule, values)
    variables = dict(zip(rule.scalars, decl.scalars, strict=True))
    store.set_scalars({variables[name]: value for name, value in moved.items()})


def _advanced(rule: Rule, values: Mapping[str, float]) -> dict[str, np.float32]:
    return rule.advance_scalars({name: np.float32(values[name]) for name in rule.scalars}, values)

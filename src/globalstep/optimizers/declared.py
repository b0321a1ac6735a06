"""Declarations of parameters with optimizers, and which optimizer trains which, by patterns of names.

That is slots, rules, the step and moving averages. Names are those that the same optimizers have in a graph, so that
checkpoints of either restore into the other.

Layer: shared. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from globalstep.cluster.program import Program, ProgramVariable, UniqueNames
from globalstep.errors import InvalidArgumentError
from globalstep.optimizers import torch_optimizers
from globalstep.optimizers.optimizer_rule import OptimizerRule, RuleSource, Slot
from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import Expr, constant
from globalstep.wire.names import GLOBAL_STEP

#: The last part of the names of moving averages.
AVERAGE = "ExponentialMovingAverage"


@dataclass(frozen=True)
class DeclaredModel:
    """The declarations of a model.

    Attributes:
        program: All that goes to the PS tasks.
        step: The name of the step.
        optimizers: Parameter -> the name of the optimizer that applies its gradients.
        computed: Optimizer -> those of its hyper-parameters that a worker computes for each push.
        fills: Variable of the optimizers' -> the number that each of its elements begins with.
        averages: Parameter -> its moving average, which begins with the parameter's own value.
        average: The name of the rule of these; "" without any.
    """

    program: Program
    step: str
    optimizers: Mapping[str, str]
    computed: Mapping[str, Mapping[str, Callable[[], float]]]
    fills: Mapping[str, float]
    averages: Mapping[str, str]
    average: str = ""


def declared_model(
    parameters: Sequence[ProgramVariable],
    groups: Sequence[tuple[OptimizerRule, Sequence[str]]],
    *,
    ema_decay: float | None = None,
    followed: Sequence[str] = (),
) -> DeclaredModel:
    """Give what parameters declare with the optimizers that train them.

    Args:
        parameters: All of them, in order.
        groups: Each optimizer with the names of those that it trains.
        ema_decay: The decay of moving averages; None for none.
        followed: The parameters that have one.

    Raises:
        InvalidArgumentError: If an optimizer is not for a parameter, or two names are the same.
    """
    names = UniqueNames()
    by_name = {}
    for parameter in parameters:
        if names.unique(parameter.name) != parameter.name:
            raise InvalidArgumentError(
                f"Two parameters are called {parameter.name!r}, or differ in case alone: give one another name."
            )
        by_name[parameter.name] = parameter
    if names.unique(GLOBAL_STEP) != GLOBAL_STEP:
        raise InvalidArgumentError(f"A parameter is called {GLOBAL_STEP!r}, as the step is: give it another name.")
    variables = [*parameters, ProgramVariable(GLOBAL_STEP, "int64", (), is_step=True)]
    optimizers: list[OptimizerDecl] = []
    applied: dict[str, str] = {}
    computed: dict[str, Mapping[str, Callable[[], float]]] = {}
    fills: dict[str, float] = {}
    rules = UniqueNames()
    for rule, trained in groups:
        own = rules.unique(rule.name)
        scalars = []
        for scalar, initial in rule.scalars.items():
            scalars.append(names.unique(scalar))
            fills[scalars[-1]] = initial
            variables.append(ProgramVariable(scalars[-1], "float32", (), optimizer=own, slot=scalar))
        slots: dict[str, tuple[str, ...]] = {}
        for name in trained:
            primary, made = by_name[name], []
            for slot in rule.slots:
                made.append(names.unique(f"{name}/{slot.variable_name or rule.name}"))
                fills[made[-1]] = slot.initial
                shape = _column(primary, rule) if slot.by_rows else primary.shape
                variables.append(_slot_of(primary, made[-1], shape, own, slot))
            slots[name], applied[name] = tuple(made), own
        hypers = {name: value if isinstance(value, Expr) else constant(value)
                  for name, value in rule.hypers.items() if not callable(value)}  # fmt: skip
        computed[own] = {name: value for name, value in rule.hypers.items() if callable(value)}
        optimizers.append(OptimizerDecl(own, rule.kind, hypers, slots, tuple(scalars)))
    averages: dict[str, str] = {}
    average = "" if ema_decay is None else rules.unique(AVERAGE)
    if ema_decay is not None:
        for name in followed:
            averages[name] = names.unique(f"{name}/{AVERAGE}")
            variables.append(_slot_of(by_name[name], averages[name], by_name[name].shape, "", Slot("")))
        decay = {"decay": constant(ema_decay)}
        optimizers.append(OptimizerDecl(average, "moving_average", decay, dict.fromkeys(averages.values(), ())))
    program = Program(variables, optimizers, copied=list(averages.items()))
    return DeclaredModel(program, GLOBAL_STEP, applied, computed, fills, averages, average)


def _slot_of(
    primary: ProgramVariable, name: str, shape: tuple[int | None, ...] | None, optimizer: str, slot: Slot
) -> ProgramVariable:
    return ProgramVariable(name, primary.dtype, shape, primary=primary.name, optimizer=optimizer, slot=slot.name)


def _column(primary: ProgramVariable, rule: OptimizerRule) -> tuple[int | None, ...]:
    """Give the shape of a slot of one element a row."""
    shape = primary.shape or ()
    if len(shape) < 2:
        raise ValueError(
            f"{rule.name} keeps a number for each row: it is for tables, and {primary.name!r} has shape "
            f'{list(shape)}. Give that another optimizer: optimizer={{"table*": gs.optim.{rule.name}(...), '
            '"*": gs.optim.Adam(1e-3)}, say.'
        )
    return (shape[0], 1)


def grouped(optimizer: Any, names: Sequence[str]) -> list[tuple[RuleSource, list[str]]]:
    """Give each of the optimizers with the names of its parameters.

    Args:
        optimizer: An optimizer, or a dict from patterns of names to optimizers.
        names: Of all parameters.

    Raises:
        InvalidArgumentError: If what was given is no optimizer, or a pattern or a parameter is left over.
    """
    patterns = optimizer if isinstance(optimizer, Mapping) else {"*": optimizer}
    left, groups = list(names), list[tuple[RuleSource, list[str]]]()
    for pattern, one in patterns.items():
        matching = [name for name in left if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise InvalidArgumentError(
                f"optimizer: no parameter is left for {pattern!r}; the parameters are {', '.join(names)}. The "
                "first pattern that fits a name counts."
            )
        left = [name for name in left if name not in matching]
        if not isinstance(one, RuleSource) or isinstance(one, type):
            raise InvalidArgumentError(_not_an_optimizer(one))
        groups.append((one, matching))
    if left:
        raise InvalidArgumentError(
            f'optimizer: no pattern fits {", ".join(left)}. End with "*", which fits all that is left.'
        )
    return groups


def _not_an_optimizer(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.startswith("torch.optim.lr_scheduler"):
        return (
            f"optimizer is torch's schedule {kind.__name__}. Schedules stand in place of the rate, without "
            "scheduler.step(): gs.optim.SGD(gs.optim.StepLR(0.1, step_size=30)), say."
        )
    if kind.__module__.startswith("torch.optim"):
        here = set(torch_optimizers.__all__) - {"TorchOptimizer"}
        other = (
            f"Give gs.optim.{kind.__name__}(...), which has the same arguments without the parameters."
            if kind.__name__ in here
            else f"gs.optim has {', '.join(sorted(here))}."
        )
        return f"optimizer is torch.optim.{kind.__name__}, which would change the module in this process alone. {other}"
    if type(value).__module__.startswith("optax") or (isinstance(value, tuple) and hasattr(value, "update")):
        return "optimizer is one of optax; the parameter servers apply gs.optim's: gs.optim.Adam(1e-3), say."
    if isinstance(value, type):
        return f"optimizer is the class {value.__name__}: give an optimizer, {value.__name__}(...)."
    return (
        f"optimizer is {value!r}; it must be one of gs.optim, or of gs.train, or a dict of such by patterns of names."
    )

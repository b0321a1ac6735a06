"""An optimizer as the PS tasks take it: a rule, its hyper-parameters and its state, without Variables or a graph.

Layer: shared. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from globalstep.optimizers.formula import Formula, step_named
from globalstep.wire.expressions import Expr

#: A hyper-parameter: a number, an expression that the PS tasks evaluate, or a function that the worker calls a push.
RuleHyper = float | Expr | Callable[[], float]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that an optimizer keeps for each Variable.

    Attributes:
        name: The slot's name, as `get_slot` takes it.
        initial: What every element starts as.
        variable_name: Last part of its Variable's name; default the optimizer's name.
        by_rows: Whether it has one element for each row, [rows, 1].
    """

    name: str
    initial: float = 0.0
    variable_name: str = ""
    by_rows: bool = False


@dataclass(frozen=True)
class OptimizerRule:
    """What an optimizer does, once it is known which step its schedules count.

    Attributes:
        name: What its slots and its declaration are called, e.g. "Adam".
        kind: The update rule, as in `globalstep.rules`.
        hypers: The rule's hyper-parameters.
        slots: Its slots for each Variable, in the rule's order.
        scalars: Its scalar state, name to initial value (float32), in the rule's order.
    """

    name: str
    kind: str
    hypers: Mapping[str, RuleHyper]
    slots: tuple[Slot, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class StepSource:
    """Where a run's step comes from.

    Attributes:
        name: The step's name on the PS tasks.
        known: Gives the step that this worker knows of.
    """

    name: str
    known: Callable[[], int]

    @property
    def formula(self) -> Formula:
        """The step as the PS tasks know it."""
        return step_named(self.name)


@runtime_checkable
class RuleSource(Protocol):
    """What training takes as an optimizer: those of `gs.optim`, and of `gs.train`."""

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        ...

"""The push of a step: what all of a model's pushes have in common, found once; a step adds its numbers.

Layer: worker. Threads: a StepPush is not changed by use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.declared import DeclaredModel
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.worker.step.model import Array, Rows

__all__ = ["StepPush"]


@dataclass(frozen=True)
class StepPush:
    """Pushes that change the same parameters.

    Args:
        declared: What the model declares.
        dense: Parameters whose gradients are pushed, in order.
        tables: Tables whose rows' gradients are pushed, in order.
        updates: Variables that get other values, in order.
        reads: Variables to be read right after the push.
        increment: How the step moves on; None for by 1.
    """

    declared: DeclaredModel
    dense: Sequence[str]
    tables: Sequence[str] = ()
    updates: Sequence[str] = ()
    reads: Sequence[str] = ()
    increment: Increment | None = None
    _alike: Push = field(init=False, repr=False)
    _averages: list[Op] = field(init=False, repr=False)
    _known_uses: list[OptimizerUse] = field(init=False, repr=False)
    _computed: list[tuple[str, Mapping[str, Callable[[], float]]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        declared = self.declared
        ops = [Op(OpKind.ASSIGN, name) for name in self.updates]
        ops += [Op(OpKind.APPLY, name, optimizer=declared.optimizers[name]) for name in self.dense]
        averages = [
            Op(OpKind.APPLY, average, source=name, optimizer=declared.average, after_increment=True)
            for name, average in declared.averages.items()
        ]
        pushed = {*self.dense, *self.tables}
        used = dict.fromkeys(optimizer for name, optimizer in declared.optimizers.items() if name in pushed)
        uses = [OptimizerUse(name) for name in used if not declared.computed[name]]
        if averages:
            uses.append(OptimizerUse(declared.average, after_increment=True))
        push = Push(
            ops, [self.increment or Increment(declared.step)], reads=[Read(name) for name in self.reads], layout=self
        )
        for name, value in (
            ("_alike", push),
            ("_averages", averages),
            ("_known_uses", uses),
            ("_computed", [(name, declared.computed[name]) for name in used if declared.computed[name]]),
        ):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def made(
        self,
        gradients: Sequence[Array],
        rows: Sequence[Rows] = (),
        updates: Sequence[Array] = (),
        seen: int | None = None,
    ) -> Push:
        """Make the push of a step.

        Args:
            gradients: Of `dense`, in order, of the parameters' dtypes and shapes.
            rows: Of `tables`, in order.
            updates: Of `updates`, in order.
            seen: The step that the values were read at; None where that is not known.

        Raises:
            InvalidArgumentError: If a hyper-parameter that a function gives is no number.
        """
        seen_steps = {} if seen is None else {self.declared.step: seen}
        uses = self._known_uses
        if self._computed:
            uses = [*(OptimizerUse(name, overrides=_numbers(name, hypers)) for name, hypers in self._computed), *uses]
        push = self._alike.again([*updates, *gradients], uses, None, seen_steps)
        if self.tables or self._averages:
            given = list(push.ops)
            changed = {op.variable: op for op in given[len(self.updates) :]}
            for name, part in zip(self.tables, rows, strict=True):
                optimizer = self.declared.optimizers[name]
                changed[name] = Op(OpKind.APPLY, name, part.values, indices=part.ids, optimizer=optimizer)
            # Group by group, each in the order of its parameters.
            applied = [changed[name] for name in self.declared.optimizers if name in changed]
            push.ops = [*given[: len(self.updates)], *applied, *self._averages]
        return push


def _numbers(optimizer: str, hypers: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, function in hypers.items():
        value = function()
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"The {name} of optimizer {optimizer!r} must be one number; its function gave {value!r}."
            ) from None
    return found

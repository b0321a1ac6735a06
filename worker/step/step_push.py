"""The push of a step: what all of a model's pushes have in common, found once; a step adds its numbers.

Layer: worker. Threads: a StepPush is not changed by use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.declared import DeclaredModel
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.worker.step.model import Array, Rows


@dataclass(frozen=True, eq=False)
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
            ops = list(push.ops)
            changed = {op.variable: op for op in ops[len(self.updates) :]}
            for name, part in zip(self.tables, rows, strict=True):
                optimizer = self.declared.optimizers[name]
                changed[name] = Op(OpKind.APPLY, name, part.values, indices=part.ids, optimizer=optimizer)
            # Group by group, each in the order of its parameters.
            applied = [changed[name] for name in self.declared.optimizers if name in changed]
            push.ops = [*ops[: len(self.updates)], *applied, *self._averages]
        return push


def _numbers(optimizer: str, hypers: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, function in hypers.items():
        value = function()
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"The {name} of optimizer {optimizer!r} must be one number; its function gave {value!r}."
            ) from None
    return numbers


@dataclass(frozen=True)
class GradientRules:
    """Rules for gradients before they are pushed, and for parameters after.

    Attributes:
        clip_norm: Scale them down to this norm over all of them.
        clip_value: Clip each element to this magnitude.
        ema_decay: Keep moving averages of the parameters with this decay.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("clip_grad_norm", self.clip_norm), ("clip_grad_value", self.clip_value)):
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise InvalidArgumentError(f"{name} is {value!r}; it must be positive.")
        decay = self.ema_decay
        if decay is not None and not (isinstance(decay, (int, float)) and 0 < decay < 1):
            raise InvalidArgumentError(f"ema_decay is {self.ema_decay!r}; it must lie between 0 and 1: 0.999, say.")


def clipped(gradients: Sequence[Array], rules: GradientRules) -> list[Array]:
    """Clip gradients: each element first, then all of them together.

    >>> [part.tolist() for part in clipped([np.array([3.0]), np.array([4.0])], GradientRules(clip_norm=2.5))]
    [[1.5], [2.0]]
    """
    results = list(gradients)
    if rules.clip_value is not None:
        limit = rules.clip_value
        results = [np.maximum(np.minimum(one, one.dtype.type(limit)), one.dtype.type(-limit)) for one in results]
    if rules.clip_norm is not None:
        squares: list[Any] = [np.sum(one * one) for one in results]
        norm = np.sqrt(sum(squares[1:], squares[0]))
        # Where the norm is not finite all become NaN, so that a diverged step cannot pass for a clipped one.
        beyond = norm - norm
        limit = norm.dtype.type(rules.clip_norm)
        scales = {
            dtype: np.asarray(limit * np.minimum(1 / norm, dtype.type(1) / limit) + beyond).astype(dtype)
            for dtype in {one.dtype for one in results}
        }
        results = [one * scales[one.dtype] for one in results]
    return results


def decayed(gradient: Array, value: Array, weight_decay: float) -> Array:
    """Add a part of a parameter to its gradient."""
    total: Array = gradient + value.dtype.type(weight_decay) * value
    return total

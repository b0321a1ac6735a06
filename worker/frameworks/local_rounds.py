"""Local steps: a worker takes several steps on its own copy of the model, and pushes how far it came.

What is pushed is where the round began, minus where it ended: to the optimizer of the PS tasks a gradient like any
other, pushed once and tried again under its push id. Values are pulled once a round.

Layer: worker. Source: DiLoCo, arXiv 2311.08105, whose outer gradient this is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from globalstep.optimizers.optimizer_rule import StepSource
from globalstep.optimizers.torch_optimizers import TorchOptimizer
from globalstep.wire.declarations import OutcomeKind
from globalstep.wire.expressions import Expr, evaluate
from globalstep.worker.frameworks.training_model import mean_of_parts
from globalstep.worker.step.model import Array, StepResult, Values
from globalstep.worker.step.own_optimizer import OwnOptimizer, OwnState
from globalstep.worker.step.stepping import BadSteps, Compute

#: Differences that did not count, and are brought once more.
_TOO_LATE = (OutcomeKind.LATE, OutcomeKind.DROPPED_STALE)
#: What schedules of a worker's own optimizer call the steps that they count.
_OWN_STEPS = "own_steps"


class _InnerOptimizer:
    """A worker's own optimizer, whose schedules count the worker's own steps. Not thread-safe.

    Args:
        inner: The optimizer.

    Attributes:
        bad_steps: Leaves steps out whose gradients are not finite; None for none.
    """

    def __init__(self, inner: TorchOptimizer) -> None:
        self._steps = 0
        self.bad_steps: BadSteps | None = None
        rule = inner.rule_at(StepSource(_OWN_STEPS, lambda: self._steps))
        slots = [slot.initial for slot in rule.slots]
        self._optimizer = OwnOptimizer(rule.kind, slots, rule.scalars, inner.weight_decay)
        self._hypers = {name: _number_of(value) for name, value in rule.hypers.items()}

    def begun(self) -> OwnState:
        """Give the state that it begins with."""
        return self._optimizer.begun()

    def step(self, state: OwnState, values: Any, gradients: Mapping[Any, Array]) -> None:
        """Take a step; leave it out where a gradient is not finite.

        Args:
            state: Changed.
            values: Gives each key's array, which is changed in place.
            gradients: By key.
        """
        if self.bad_steps is not None and self.bad_steps.leaves_out(gradients, str):
            return
        self._steps = state.steps
        hypers = {name: number({_OWN_STEPS: state.steps}) for name, number in self._hypers.items()}
        self._optimizer.step(state, values, {key: (gradient, None) for key, gradient in gradients.items()}, hypers)


class LocalRounds:
    """The rounds of one worker. Not thread-safe: a trainer belongs to one thread.

    Args:
        inner: The optimizer.

    Attributes:
        inner: Takes the steps.
    """

    def __init__(self, inner: TorchOptimizer) -> None:
        self.inner = _InnerOptimizer(inner)
        # What a round that has ended leaves to the next.
        self._state = self.inner.begun()
        # By parameter: how far the last round came, and how far those came that did not count.
        self._pushed: dict[str, Array] = {}
        self._carried: dict[str, Array] = {}

    def round(self, step: Compute, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """Take a round's steps, one for each batch.

        A round that fails, by a batch or a loss that is not finite, leaves the optimizer's state as it was. After one
        that did not count it begins as far from the values as that one ended, and brings both.

        Args:
            step: Computes a step's loss and gradients.
            values: Where the round begins; not changed.
            batches: Of the steps.
            seeds: The same.

        Returns:
            The mean of the losses, and for each parameter that is trained where it began minus where it ended.
        """
        held, began = dict(values.dense), values.dense
        for name, carried in self._carried.items():
            held[name] = np.array(began[name] - carried)
        state, losses, trained = self._state.copy(), [], dict.fromkeys(self._carried)
        logged: list[Mapping[str, float]] = []
        updates: Mapping[str, Array] = {}
        for batch, seed in zip(batches, seeds, strict=True):
            found = step(Values({name: _read_only(value) for name, value in held.items()}), [batch], [seed])
            losses.append(float(found.loss))
            logged.append(found.parts)
            if new := [name for name in found.gradients if name not in trained]:
                held |= {name: np.array(held[name]) for name in new}
                trained |= dict.fromkeys(new)
            self.inner.step(state, held, found.gradients)
            if found.updates:
                # A model's running averages are its last values.
                updates = found.updates
                held |= updates
        self._state = state
        self._pushed = {name: np.asarray(began[name] - held[name]) for name in trained}
        return StepResult(float(np.mean(losses)), self._pushed, updates=updates, parts=mean_of_parts(logged))

    def settle(self, kind: OutcomeKind) -> None:
        """Take the outcome of the last round's push: the difference of a late push is carried into the next."""
        self._carried = self._pushed if kind in _TOO_LATE else {}
        if kind is OutcomeKind.DROPPED_NAN:
            # The optimizer has kept the numbers that the difference came of.
            self._state = replace(self.inner.begun(), steps=self._state.steps)


def _number_of(hyper: Any) -> Callable[[Mapping[str, float]], float]:
    """Give what computes a hyper-parameter from the number of own steps."""
    if isinstance(hyper, Expr):
        return lambda names: evaluate(hyper, names)
    if callable(hyper):
        return lambda names: float(hyper())
    return lambda names: float(hyper)


def _read_only(value: Array) -> Array:
    """Give a view that a model cannot write into."""
    view = value.view()
    view.flags.writeable = False
    return view

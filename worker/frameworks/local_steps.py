"""Local steps: a worker takes several steps on its own copy of the model, and pushes how far it came.

What is pushed is where the round began, minus where it ended: to the optimizer of the PS tasks a gradient like any
other, pushed once and tried again under its push id. Values are pulled once a round.

Layer: worker. Source: DiLoCo, arXiv 2311.08105, whose outer gradient this is; Liu et al., arXiv 2401.09135, for rounds
that adapt to speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.graph.graph import Graph, Node
from globalstep.optimizers.lowering import lower
from globalstep.optimizers.torch_optimizers import StepSource, TorchOptimizer
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.variables.training_util import create_global_step
from globalstep.wire.declarations import OutcomeKind
from globalstep.wire.expressions import Expr, evaluate
from globalstep.worker.frameworks.foreign_loss import Array, Evaluation, Evaluator
from globalstep.worker.frameworks.training_model import number_of_at_least
from globalstep.worker.running.graph_rounds import TOO_LATE
from globalstep.worker.running.local_optimizers import OwnOptimizer

__all__ = ["LocalRounds", "LocalSteps", "RoundPace"]


@dataclass(frozen=True)
class LocalSteps:
    """Has each worker take `every` steps on its own copy of the model before it pushes the difference.

    Differences cross the wire as the `gs.WireOptions` of the session's `ConfigProto` say; what these do not send of one
    is added to the worker's next.

    Args:
        inner: The optimizer of a worker's own steps, one of `gs.optim`. Its state stays with the worker, from round to
            round; a schedule counts the worker's own steps. A worker that starts again begins with new state.
        every: How many steps make a round.
        replicas: How many workers' differences make one global step, of their mean. None for each one to make a step
            of its own, as it comes.
        adapt_to_speed: Whether a slow worker's rounds are shorter, so that they take as long as those of the fastest:
            floor(every * v / v_max) steps, at least 1, with v the steps a second of a worker (DyLU). Only without
            `replicas`.

    Raises:
        InvalidArgumentError: If a number is less than 1, `inner` is none of `gs.optim`, or the rest does not go
            together.
    """

    inner: TorchOptimizer
    every: int
    replicas: int | None = None
    adapt_to_speed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.inner, TorchOptimizer):
            raise InvalidArgumentError(
                f"LocalSteps: inner is {self.inner!r}; it must be one of gs.optim: gs.optim.AdamW(1e-3), say."
            )
        number_of_at_least(1, every=self.every, replicas=self.replicas)
        if not isinstance(self.adapt_to_speed, bool):
            raise InvalidArgumentError(f"LocalSteps: adapt_to_speed is {self.adapt_to_speed!r}; it must be a bool.")
        if self.adapt_to_speed and self.replicas is not None:
            raise InvalidArgumentError(
                "LocalSteps: adapt_to_speed does not go with replicas, whose mean counts each worker's round alike. "
                "Leave one of them out."
            )


class RoundPace:
    """How fast this worker takes steps, and how many its next round has by that. Not thread-safe.

    A round's time is that from the push before it to its last step: batches count, the push does not. The speed is the
    better one of the last two rounds', so that a checkpoint or a compilation, which hold up one of them, do not count.

    Args:
        every: Steps in a round of the fastest worker.
        clock: Tells the time.

    Attributes:
        fastest: The most steps a second of any worker, as last heard of; 0 for not heard yet.
    """

    def __init__(self, every: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._every, self._clock = every, clock
        self._began: float | None = None
        self._speeds = (0.0, 0.0)
        self.fastest = 0.0

    @property
    def speed(self) -> float:
        """Steps a second; 0 before the first round has ended."""
        return max(self._speeds)

    @property
    def steps(self) -> int:
        """How many steps the next round has."""
        fastest = max(self.fastest, self.speed)
        return max(1, int(self._every * (self.speed / fastest))) if self.speed else self._every

    def begin(self) -> None:
        """Take note that a round begins."""
        self._began = self._clock.monotonic()

    def begin_first(self) -> None:
        """Take note that the first round begins, if it is the first."""
        if self._began is None:
            self.begin()

    def end(self, steps: int) -> None:
        """Take note that a round's last step was taken."""
        assert self._began is not None
        secs = self._clock.monotonic() - self._began
        if secs > 0.0:
            self._speeds = (self._speeds[1], steps / secs)


class LocalRounds:
    """The rounds of one worker. Not thread-safe: a trainer belongs to one thread.

    Args:
        inner: The optimizer.
        take: Has the model keep the batches of its next evaluation, with a seed for each.
        pace: Measures the rounds.

    Attributes:
        pace: As given.
    """

    def __init__(
        self, inner: TorchOptimizer, take: Callable[[Sequence[Any], Sequence[int]], Any], pace: RoundPace
    ) -> None:
        self.pace = pace
        self._take = take
        self._batches: Sequence[Any] = ()
        self._seeds: Sequence[int] = ()
        with Graph().as_default():
            step = create_global_step()
            made = inner.make(StepSource(step, lambda: self._state.steps))
        self._step_name = step.op_name
        self._inner = OwnOptimizer(made, inner.weight_decay)
        self._hypers = {name: _number_of(value) for name, value in made.hypers().items()}
        # What a round that has ended leaves to the next; slots by position.
        self._state = self._inner.begun()
        # By position: how far the last round came, and how far those came that did not count.
        self._pushed: dict[int, Array] = {}
        self._carried: dict[int, Array] = {}

    def take(self, batches: Sequence[Any], seeds: Sequence[int]) -> dict[Any, Any]:
        """Keep the batches of the next round, one for each step; see TrainingModel.take."""
        self._batches, self._seeds = list(batches), list(seeds)
        self.pace.begin_first()
        return {}

    def evaluate(self, model: Evaluator, values: Sequence[Array], wanted: tuple[int, ...]) -> Evaluation:
        """Take a round's steps.

        A round that fails, by a batch or a loss that is not finite, leaves the optimizer's state as it was. After one
        that did not count it begins as far from the values as that one ended, and brings both.

        Args:
            model: Evaluates the loss and gradients of the batches that were taken last.
            values: Where the round begins; not changed.
            wanted: Positions of the values that are trained.

        Returns:
            The mean of the losses, and for each wanted position where it began minus where it ended.
        """
        held = list(values)
        for at in wanted:
            held[at] = np.array(values[at] - self._carried[at] if at in self._carried else values[at])
        state, losses = self._state.copy(), []
        updates: Sequence[Array] = ()
        for batch, seed in zip(self._batches, self._seeds, strict=True):
            self._take([batch], [seed])
            found = model([_read_only(value) for value in held], wanted)
            losses.append(float(found.loss))
            hypers = {name: number({self._step_name: state.steps}) for name, number in self._hypers.items()}
            gradients = zip(wanted, found.gradients, strict=True)
            self._inner.step(state, held, {at: (gradient, None) for at, gradient in gradients}, hypers)
            if found.updates:
                # A model's running averages are its last values.
                updates = found.updates
                held[len(held) - len(updates) :] = updates
        self.pace.end(len(losses))
        self._state = state
        self._pushed = {at: np.asarray(values[at] - held[at]) for at in wanted}
        return Evaluation(np.mean(losses), [self._pushed[at] for at in wanted], updates)

    def settle(self, kind: OutcomeKind) -> None:
        """Say what became of the push of the last round: one that came too late is carried into the next."""
        self._carried = self._pushed if kind in TOO_LATE else {}
        self.pace.begin()


def _number_of(hyper: Any) -> Callable[[Mapping[str, float]], float]:
    """Give what computes a hyper-parameter from the number of own steps."""
    if isinstance(hyper, Node):
        expr = lower(hyper)
        assert isinstance(expr, Expr)
        return lambda names: evaluate(expr, names)
    if callable(hyper):
        return lambda names: float(hyper())
    return lambda names: float(hyper)


def _read_only(value: Array) -> Array:
    view = value.view()
    view.flags.writeable = False
    return view

"""Steps of a model on a cluster: values in, loss and gradients computed, gradients out.

An error in a model is the program's own, and is raised with its likely cause; steps whose gradients are not
finite are counted, and after some in a row training ends. No lock is held while the loss is computed, nor while the
network is waited for.

Layer: worker. Threads: a Stepper belongs to one thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import AbortedError, InvalidArgumentError, JobDoneError, NotFiniteGradientError
from globalstep.optimizers.declared import DeclaredModel
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, Read
from globalstep.worker.protocol.push_result import DroppedPushes, PushResult
from globalstep.worker.step.model import Array, Lookups, Model, MoreLookupsError, Rows, StepResult, Values
from globalstep.worker.step.step_push import GradientRules, StepPush, clipped, decayed

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient
    from globalstep.worker.protocol.pushes_in_flight import PushTicket

_log = logging.getLogger("globalstep")

#: Values that came back with a push are used by the next step up to this age, seconds.
_REUSE_SECS = 1.0
#: How many sets of parameters that steps change are described at a time.
_MOST_DESCRIBED = 64

#: Computes a step from values; local steps stand in its place.
Compute = Callable[[Values, Sequence[Any], Sequence[int]], StepResult]


@dataclass(frozen=True)
class TrainedModel:
    """A model, and how it is trained.

    Attributes:
        model: The model.
        declared: What it declares with its optimizers.
        scope: What the names on the PS tasks begin with.
        rules: What is done to gradients.
        decays: Parameter -> the part of it that is added to its gradient, where there is one.
        increment: How a push moves the step on; None for by 1.
    """

    model: Model
    declared: DeclaredModel
    scope: str
    rules: GradientRules = field(default_factory=GradientRules)
    decays: Mapping[str, float] = field(default_factory=dict)
    increment: Increment | None = None

    @property
    def loss_dtype(self) -> np.dtype[Any]:
        """The dtype in which losses are shown, written and returned: that of the first floating parameter."""
        found = (item.value.dtype for item in self.model.parameters.values() if item.value.dtype.kind == "f")
        return next(found, np.dtype(np.float32))

    def name(self, parameter: str) -> str:
        """Give what the PS tasks call a parameter."""
        return self.scope + parameter


class Stepper:
    """Takes steps on one cluster, in one incarnation after another.

    Args:
        trained: The model.
        cluster: The cluster's client.
        compute: Computes a step; by default the model does.
        in_flight: How many pushes need not be waited for: a step begins with the newest values that have come.
        clock: Tells the age of values.

    Attributes:
        seen: The step that the values of the last step were read at.
        outcome: What became of the last push that was answered; None before.
        parts: What the loss function gave beside the loss of the last step.
    """

    def __init__(
        self,
        trained: TrainedModel,
        cluster: ClusterClient,
        compute: Compute,
        in_flight: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._trained = trained
        self._cluster, self._run = cluster, cluster.run.joined
        self._compute = compute
        self._in_flight = in_flight
        self._clock = clock
        self.seen = 0
        self.outcome: Outcome | None = None
        self.parts: Mapping[str, float] = {}
        cluster.unanswered = max(1, in_flight)
        model, name = trained.model, trained.name
        self._names = list(model.parameters)
        self._tables = list(model.tables)
        # In the model's order, in which a norm over all of them is added up too.
        self._dense = tuple(key for key, parameter in model.parameters.items() if parameter.trained)
        self._sparse = [key for key, table in model.tables.items() if table.trained]
        rules = trained.rules
        # Whether gradients are pushed as they were computed.
        self._pushes_as_is = not (self._sparse or trained.decays or rules.clip_value or rules.clip_norm)
        self._reads = [name(key) for key in self._names]
        self._loss_type = trained.loss_dtype.type
        # By the parameters that a step changes: a loss need not depend on all.
        self._pushes: dict[tuple[str, ...], StepPush] = {}
        self._dropped = DroppedPushes(cluster.task, clock)
        self._all_lookups = False
        # In which incarnation the optimizers were declared.
        self._declared_in = 0
        # Values as of a step, of an incarnation, with the time they came; None where they are to be read anew.
        self._fresh: tuple[int, float, int, Sequence[Array]] | None = None
        self._tickets: deque[PushTicket[PushResult]] = deque()

    def forget_values(self) -> None:
        """Read anew in the next step: something else has changed the parameters."""
        self._fresh = None

    def wait(self) -> None:
        """Wait for the pushes that no step has waited for; raises what went wrong with one."""
        while self._tickets:
            self._take(self._tickets.popleft().result())

    @np.errstate(all="ignore")
    def step(self, batches: Sequence[Any], seeds: Sequence[int]) -> float:
        """Take a step: read values, compute loss and gradients, and push these.

        Returns:
            The loss.

        Raises:
            JobDoneError: If the job has reached its last step; `values` is the loss then.
            InvalidArgumentError: If the loss is not finite; nothing was pushed.
            NotFiniteGradientError: If a gradient is not, and the run's policy ends the job with that.
            AbortedError: If the run's incarnation is over, or the sequencer gave up on the push.
        """
        while self._tickets and self._tickets[0].done():
            self._take(self._tickets.popleft().result())
        try:
            values, found = self._computed(batches, seeds)
        except MoreLookupsError:
            if self._all_lookups:
                raise
            self._all_lookups = True
            values, found = self._computed(batches, seeds)
        cluster = self._cluster
        if self._declared_in != self._run.incarnation:
            cluster.declare((), self._trained.declared.program.optimizers)
            self._declared_in = self._run.incarnation
        dense = self._dense
        if len(found.gradients) < len(dense):
            dense = self._changed(values, found)
        template = self._pushes.get(dense) or self._described(found, dense)
        gradients, rows = self._prepared(values, found, dense)
        updates: Sequence[Array] = ()
        if found.updates:
            updates = [np.asarray(value, values.dense[key].dtype) for key, value in found.updates.items()]
        push = template.made(gradients, rows, updates, self.seen)
        # Of the parameters' dtype: what is shown, written and returned is the same.
        loss = float(self._loss_type(found.loss))
        try:
            if self._in_flight:
                self._tickets.append(cluster.push(push, wait=False))
            else:
                self._fresh = None
                self._take(cluster.push(push))
        except JobDoneError as done:
            done.values = loss
            raise
        return loss

    def _computed(self, batches: Sequence[Any], seeds: Sequence[int]) -> tuple[Values, StepResult]:
        lookups = self._trained.model.lookups(batches, seeds, all_of_them=self._all_lookups)
        values = self._values(lookups)
        found = self._compute(values, batches, seeds)
        self.parts = found.parts
        return values, found

    def _values(self, lookups: Lookups) -> Values:
        """Give the parameters, and the rows of lookups: of one moment."""
        fresh = self._fresh
        if (
            fresh is not None
            and fresh[0] == self._run.incarnation
            and not lookups.ids
            and (self._in_flight or self._clock.monotonic() - fresh[1] < _REUSE_SECS)
        ):
            self.seen = fresh[2]
            return Values(dict(zip(self._names, fresh[3], strict=True)), lookups=lookups)
        name = self._trained.name
        reads = [Read(self._trained.declared.step), *map(Read, self._reads)]
        reads += [Read(name(table), ids) for table, ids in lookups.ids.items()]
        step, *found = self._cluster.pull(reads, (self, *lookups.ids))
        self.seen, count = int(step), len(self._reads)
        if self._in_flight:
            self._fresh = self._run.incarnation, self._clock.monotonic(), self.seen, found[:count]
        rows = dict(zip(lookups.ids, found[count:], strict=True))
        return Values(dict(zip(self._names, found, strict=False)), rows, lookups)

    def _changed(self, values: Values, found: StepResult) -> tuple[str, ...]:
        """Return the parameters that a step changes; a step of several workers takes all, with zeros."""
        given = found.gradients
        if self._trained.increment is None:
            return tuple(key for key in self._dense if key in given)
        found.gradients = {**{key: np.zeros_like(values.dense[key]) for key in self._dense}, **given}
        return self._dense

    def _described(self, found: StepResult, dense: tuple[str, ...]) -> StepPush:
        """Describe the pushes of this model that change the same parameters, once."""
        name = self._trained.name
        if len(self._pushes) == _MOST_DESCRIBED:
            self._pushes.clear()
        self._pushes[dense] = push = StepPush(
            self._trained.declared,
            [name(key) for key in dense],
            [name(key) for key in self._sparse],
            [name(key) for key in found.updates],
            # Rows have to be asked for anyway before the next step.
            () if self._tables else self._reads,
            self._trained.increment,
        )
        return push

    def _prepared(self, values: Values, found: StepResult, dense: tuple[str, ...]) -> tuple[list[Array], list[Rows]]:
        """Give the gradients as they are pushed."""
        gradients = list(map(found.gradients.__getitem__, dense))
        if self._pushes_as_is:
            return gradients, []
        gradients += map(found.rows.__getitem__, self._sparse)
        gradients = [np.asarray(one) for one in clipped(gradients, self._trained.rules)]
        for at, key in enumerate(dense):
            if decay := self._trained.decays.get(key):
                gradients[at] = np.asarray(decayed(gradients[at], values.dense[key], decay))
        ids, count = values.lookups.ids, len(dense)
        rows = [Rows(ids[key], one) for key, one in zip(self._sparse, gradients[count:], strict=True)]
        return gradients[:count], rows

    def _take(self, result: PushResult) -> None:
        """Take the outcome of a push, and the values that came with it."""
        outcome = self.outcome = result.outcome
        step = self._trained.declared.step
        if outcome.kind is OutcomeKind.ACCEPTED:
            if result.values and len(result.values) == len(self._reads) and step in outcome.steps:
                self._fresh = self._run.incarnation, self._clock.monotonic(), outcome.steps[step], result.values
        elif outcome.kind is OutcomeKind.REFUSED_DONE:
            steps = ", ".join(f"{name} = {value}" for name, value in sorted(outcome.steps.items()))
            raise JobDoneError(f"The job has reached its last step ({steps}); nothing was applied.")
        elif outcome.kind is OutcomeKind.ABANDONED:
            raise AbortedError("The sequencer gave up on a push that was silent for long; run again.")
        else:
            self._dropped.take(outcome)


class Computing:
    """Computes steps of a model, and says what is suspicious about them.

    Args:
        model: The model.

    Attributes:
        model: As given.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._has_trained = False

    def step(self, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """Compute a step; see Model.step."""
        try:
            found = self.model.step(values, batches, seeds)
        except Exception as error:
            error.__dict__["of_program"] = True
            if isinstance(error, InvalidArgumentError):
                parameters = {**values.dense, **values.rows}
                broken = [name for name, value in parameters.items() if not np.isfinite(value).all()]
                if broken:
                    error.add_note(
                        f"The parameter {broken[0]!r} was not finite before this step: an earlier one had a finite "
                        "loss and a gradient that was not (sqrt and log have such at 0), or the learning rate is too "
                        "high."
                    )
            raise
        if not self._has_trained:
            self._has_trained = True
            gradients = [*found.gradients.values(), *found.rows.values()]
            if not any(np.any(gradient) for gradient in gradients):
                _log.warning(
                    "All gradients of the first step are zero. Does the loss depend on the parameters that loss_fn is "
                    "called with? Another model's, detached or constant ones are not trained."
                )
        return found


def go_straight(error: Exception) -> None:
    """Let an error's traceback lead straight from its catcher to the loss function, if it came from there.

    The frames between are globalstep's own; they are logged at DEBUG.
    """
    if not getattr(error, "of_program", False):
        return
    inside, place = False, error.__traceback__
    while place is not None:
        module = place.tb_frame.f_globals.get("__name__", "")
        inside = inside or module == __name__
        if inside and not module.startswith("globalstep."):
            _log.debug("The whole way of an error of the loss function:", exc_info=error)
            error.__traceback__ = place
            return
        place = place.tb_next


class BadSteps:
    """Counts the steps of one worker that are left out. Not thread-safe: a trainer belongs to one thread.

    Args:
        most: With how many in a row training ends; None for it to go on.
        worker: Whose they are, for messages.
        step: Gives the global step that this worker knows of.
    """

    def __init__(self, most: int | None, worker: str, step: Callable[[], int]) -> None:
        self._most, self._worker, self._step = most, worker, step
        # In a row: of pushes, and of local steps; a round without any is pushed all the same.
        self._dropped = self._left_out = 0
        self._all_left_out = 0
        self._seen: Outcome | None = None

    def settle(self, outcome: Outcome, name_of: Callable[[str], str]) -> None:
        """Count the outcome of a push, once; the session has logged a drop.

        Raises:
            NotFiniteGradientError: If too many in a row were dropped for gradients that are not finite.
        """
        if outcome is self._seen:
            return
        self._seen = outcome
        if outcome.kind is OutcomeKind.ACCEPTED:
            self._dropped = 0
        elif outcome.kind is OutcomeKind.DROPPED_NAN:
            self._dropped += 1
            self._check(self._dropped, name_of(outcome.not_finite))

    def leaves_out(self, gradients: Mapping[Any, Array], name_of: Callable[[Any], str]) -> bool:
        """Whether a worker's own step is left out, since a gradient is not finite; says so.

        Raises:
            NotFiniteGradientError: If too many in a row are.
        """
        bad = next((key for key, gradient in gradients.items() if not np.isfinite(gradient).all()), None)
        if bad is None:
            self._left_out = 0
            return False
        self._left_out += 1
        self._all_left_out += 1
        self._check(self._left_out, name_of(bad))
        # Every power of two: a run may have many of them.
        if self._all_left_out & (self._all_left_out - 1) == 0:
            _log.warning(
                "The gradient of parameter %r in a local step of %s after global step %d is not finite; the step was "
                "left out (%d of this worker so far).",
                name_of(bad), self._worker, self._step(), self._all_left_out,
            )  # fmt: skip
        return True

    def _check(self, in_a_row: int, parameter: str) -> None:
        if self._most is not None and in_a_row >= self._most:
            raise NotFiniteGradientError(
                f"The gradient of parameter {parameter!r} was not finite on {self._worker} at global step "
                f"{self._step()}, in {in_a_row} steps in a row, while the loss was; none was applied, and "
                "training ends (max_bad_steps). sqrt, log, norm and division have such gradients at 0, and numbers "
                "beyond 3.4e38 are infinite as float32: add a small number inside, lower the rate, or look at the "
                "batches."
            )

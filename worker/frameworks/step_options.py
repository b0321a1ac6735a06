"""Training steps that are not one batch: local steps, or units of work.

docs/design/steps-of-several-workers.md, "Work units", is their specification; local steps are taken by
`worker/frameworks/local_rounds.py`.

Layer: worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.config import in_flight_of
from globalstep.errors import InvalidArgumentError, UnavailableError
from globalstep.optimizers.torch_optimizers import TorchOptimizer
from globalstep.worker.frameworks.training_model import described, misfit, number_of_at_least
from globalstep.worker.step.step_push import GradientRules

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient
    from globalstep.worker.waits.contributing import UnitOfWork

_MOST_UNITS = 1 << 16


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

    Raises:
        InvalidArgumentError: If a number is less than it may be, or `inner` is none of `gs.optim`.
    """

    inner: TorchOptimizer
    every: int
    replicas: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.inner, TorchOptimizer):
            raise InvalidArgumentError(
                f"LocalSteps: inner is {self.inner!r}; it must be one of gs.optim: gs.optim.AdamW(1e-3), say."
            )
        number_of_at_least(1, every=self.every, replicas=self.replicas)


@dataclass(frozen=True)
class WorkUnits:
    """Has each step made of `count` units of work: the mean of their gradients, from any of the workers.

    Args:
        count: How many units make a step.

    Raises:
        InvalidArgumentError: If it is no number from 1 to 65,536.
    """

    count: int

    def __post_init__(self) -> None:
        count = self.count
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_UNITS:
            raise InvalidArgumentError(
                f"WorkUnits: count is {count!r}; it must be a whole number from 1 to {_MOST_UNITS:,}."
            )


def check_options(local: Any, units: Any, gradients: GradientRules, config: Any) -> None:
    """Refuse local steps and units that do not go with what is done to gradients, with the session or each other.

    Raises:
        InvalidArgumentError: If they do not, or one is none.
    """
    if local is not None:
        if not isinstance(local, LocalSteps):
            raise InvalidArgumentError(f"local_steps is {local!r}; it must be gs.LocalSteps(optimizer, every=50).")
        if gradients.clip_norm is not None or gradients.clip_value is not None:
            raise InvalidArgumentError(
                "local_steps does not go with clip_grad_norm or clip_grad_value: clip in the loss."
            )
        if in_flight_of(config):
            raise InvalidArgumentError(
                "local_steps does not go with pushes_in_flight: a round begins with the result of the last one's "
                "push. Leave pushes_in_flight out, and GLOBALSTEP_PUSHES_IN_FLIGHT."
            )
    if units is not None and not isinstance(units, WorkUnits):
        raise InvalidArgumentError(f"units is {units!r}; it must be gs.WorkUnits(count).")
    if units is not None and local is not None:
        raise InvalidArgumentError("Give units or local_steps, not both.")


def batch_source(batches: Any, count: int) -> Callable[[int, int], Any]:
    """Give what gives the batch of a step, from 0, and of a unit of it, from 0.

    Args:
        batches: That, or a list of batches, which are taken one after another, again and again.
        count: How many units make a step.

    Raises:
        InvalidArgumentError: If it is neither, or a function of other arguments.

    >>> batch_of = batch_source("abcde", 2)
    >>> [batch_of(step, unit) for step in range(3) for unit in range(2)]
    ['a', 'b', 'c', 'd', 'e', 'a']
    """
    if callable(batches):
        if why := misfit(batches, 0, 0):
            raise InvalidArgumentError(
                f"batches is called as batches(step, unit), both from 0, where a step is made of units: {why}."
            )
        source: Callable[[int, int], Any] = batches
        return source
    try:
        size = len(batches)
    except TypeError:
        size = 0
    if not size or not hasattr(batches, "__getitem__"):
        raise InvalidArgumentError(
            f"batches is {described(batches)}; with units it must be a list of batches, or a function of step and unit "
            "that gives the batch, the same one on every worker: batches=lambda step, unit: read(step * 8 + unit)."
        )
    of: Sequence[Any] = batches
    return lambda step, unit: of[(step * count + unit) % size]


def take_unit(cluster: ClusterClient, step: str, count: int, value: int) -> UnitOfWork:
    """Ask for a unit of work, and wait for one; see Contributing.take_unit.

    Returns:
        The unit; none at the known step where the job has ended.
    """
    from globalstep.worker.waits.contributing import UnitOfWork

    try:
        return cluster.contributing.take_unit(step, count, value)
    except UnavailableError:
        if not cluster.job_done():
            raise
        # The PS tasks have ended with the job, as they had said.
        return UnitOfWork(value, 0)

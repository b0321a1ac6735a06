"""From a model, a loss function and an optimizer to what is trained.

Layer: chief.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from globalstep.cluster.program import ProgramVariable
from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.declared import declared_model, grouped
from globalstep.optimizers.optimizer_rule import StepSource
from globalstep.wire.declarations import Increment
from globalstep.wire.names import GLOBAL_STEP
from globalstep.worker.frameworks.training_model import SCOPE
from globalstep.worker.step.model import Model
from globalstep.worker.step.step_push import GradientRules
from globalstep.worker.step.stepping import TrainedModel

if TYPE_CHECKING:
    from globalstep.worker.frameworks.step_options import LocalSteps, WorkUnits

__all__ = ["Replicas", "replicas_of", "trained_model"]

_SCOPE = f"{SCOPE}/"


@runtime_checkable
class Synchronous(Protocol):
    """An optimizer whose steps are made of several workers' gradients, as `gs.train.SyncReplicasOptimizer`."""

    replicas_to_aggregate: int
    total_num_replicas: int

    @property
    def wrapped(self) -> Any:
        """The optimizer that applies the mean."""
        ...


@dataclass(frozen=True)
class Replicas:
    """Has steps made of several workers' gradients.

    Attributes:
        count: How many gradients make a step.
        workers: How many workers there are to give them.
        option: What asked for it.
    """

    count: int
    workers: int
    option: str

    @property
    def each(self) -> int:
        """How many gradients of one step a worker gives, at most."""
        return -(-self.count // self.workers)

    def among(self, workers: int) -> Replicas:
        """Give the same, of the workers that there are: where they are fewer, each gives more gradients.

        Args:
            workers: How many there are.
        """
        return replace(self, workers=min(self.workers, workers))


def replicas_of(optimizer: Any, local_steps: LocalSteps | None, units: WorkUnits | None) -> Replicas | None:
    """Say whose gradients make a step; None where each worker's make one, and for units of work.

    Args:
        optimizer: As given to `gs.fit`.
        local_steps: The same.
        units: The same.

    Raises:
        InvalidArgumentError: If a SyncReplicasOptimizer does not go with the rest.
    """
    given = optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]
    synchronous = [item for item in given if isinstance(item, Synchronous)]
    if not synchronous:
        local = None if local_steps is None else local_steps.replicas
        return None if local is None else Replicas(local, local, "LocalSteps with replicas")
    for what, instead in (
        (isinstance(optimizer, Mapping), "in a dict: one optimizer makes the steps of all parameters. Give it alone"),
        (local_steps is not None, "with local_steps. Give the optimizer alone, and LocalSteps(..., replicas=2), say"),
        (units is not None, "with units, which make steps of all workers' gradients. Give the optimizer alone"),
    ):
        if what:
            raise InvalidArgumentError(f"optimizer: SyncReplicasOptimizer cannot be {instead}.")
    wanted, total = synchronous[0].replicas_to_aggregate, synchronous[0].total_num_replicas
    return Replicas(wanted, total, "SyncReplicasOptimizer")


def trained_model(
    model: Model,
    optimizer: Any,
    known_step: Callable[[], int],
    rules: GradientRules,
    replicas: Replicas | None = None,
    units: int | None = None,
) -> TrainedModel:
    """Give what a model declares, and what its pushes are.

    Args:
        model: The model.
        optimizer: An optimizer, or a dict from patterns of names to optimizers.
        known_step: Gives the step that this worker knows of.
        rules: What is done to gradients.
        replicas: Whose gradients make a step; None for each worker's to make one.
        units: How many units of work make a step; None for none.

    Raises:
        InvalidArgumentError: If the optimizer is none, or not for the model.
    """
    parameters = [
        ProgramVariable(_SCOPE + name, item.value.dtype.name, item.value.shape, trainable=item.trained)
        for name, item in model.parameters.items()
    ]
    parameters += [
        ProgramVariable(_SCOPE + name, "float32", table.shape, trainable=table.trained, is_table=True)
        for name, table in model.tables.items()
    ]
    trained = [item.name.removeprefix(_SCOPE) for item in parameters if item.trainable]
    groups = grouped(optimizer.wrapped if isinstance(optimizer, Synchronous) else optimizer, trained)
    if (replicas is not None or units is not None) and (
        len(groups) > 1 or model.has_updates or rules.ema_decay is not None
    ):
        who = "WorkUnits" if replicas is None else replicas.option
        raise InvalidArgumentError(
            f"{who} has one optimizer, no ema_decay, and a model without running averages such as BatchNorm's. "
            "Leave it out, or use LayerNorm or GroupNorm."
        )
    decays: dict[str, float] = {}
    described = []
    for one, names in groups:
        decay = float(getattr(one, "weight_decay", 0.0))
        for name in names if decay else ():
            if name in model.tables:
                raise InvalidArgumentError(
                    f"{name!r} is an Embedding, whose gradient has only the rows of a batch: weight_decay is not for "
                    f'it, as in PyTorch. Give it an optimizer of its own: optimizer={{"{name}": '
                    'gs.optim.SparseAdam(), "*": ...}.'
                )
            decays[name] = decay
        described.append((one.rule_at(StepSource(GLOBAL_STEP, known_step)), [_SCOPE + name for name in names]))
    followed = [_SCOPE + name for name, item in model.parameters.items() if item.trained]
    declared = declared_model(parameters, described, ema_decay=rules.ema_decay, followed=followed)
    increment = None
    if units is not None:
        from globalstep.worker.waits.contributing import CLAIMED

        increment = Increment(declared.step, 1, units, 1, False, CLAIMED)
    elif replicas is not None:
        increment = Increment(declared.step, 1, replicas.count, replicas.each)
    return TrainedModel(model, declared, _SCOPE, rules, decays, increment)

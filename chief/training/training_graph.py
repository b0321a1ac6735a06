"""From a model, a loss function and an optimizer to one training op.

Layer: chief.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from globalstep.chief.training.saved_model import EMA, framework_of
from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.torch_optimizers import TorchOptimizer
from globalstep.tf1.graph.graph import Node, control_dependencies, get_default_graph
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops.clipping import clip_by_global_norm, clip_by_value
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.optimizers.moving_averages import ExponentialMovingAverage
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.tf1.optimizers.rule_optimizer import optimizer_of
from globalstep.tf1.optimizers.sync_replicas_optimizer import SyncReplicasOptimizer
from globalstep.tf1.variables.training_util import create_global_step
from globalstep.tf1.variables.variables import Variable
from globalstep.worker.frameworks.local_steps import LocalSteps
from globalstep.worker.frameworks.training_model import TrainingModel
from globalstep.worker.frameworks.work_units import WorkUnits, units_optimizer
from globalstep.worker.step.grouping import grouped

__all__ = ["Gradients", "Replicas", "TrainingGraph", "replicas_of", "training_model"]

_log = logging.getLogger("globalstep")


@dataclass(frozen=True)
class Gradients:
    """What is done to gradients before they are pushed, and to parameters after.

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
    synchronous = [item for item in given if isinstance(item, SyncReplicasOptimizer)]
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


@dataclass
class TrainingGraph:
    """The default graph, once a model is in it.

    Args:
        model: The model.
        optimizer: An optimizer, or a dict from patterns of names to optimizers.
        known_step: Gives the step that this worker knows of.
        gradients: What is done to gradients.
        replicas: Whose gradients make a step; None for each worker's to make one.
        units: How many units of work make a step; None for none.

    Attributes:
        step: The global step.
        train_op: Takes a step.
    """

    model: TrainingModel
    optimizer: Any
    known_step: Callable[[], int]
    gradients: Gradients
    replicas: Replicas | None = None
    units: int | None = None
    step: Variable = field(init=False)
    train_op: Node = field(init=False)

    def __post_init__(self) -> None:
        self.step = create_global_step()
        trained = {name: variable for name, variable in self.model.variables.items() if variable.trainable}
        trained |= {table.name: table.variable for table in self.model.tables if table.variable.trainable}
        groups = self._groups(trained)
        if self.replicas is not None or self.units is not None:
            if len(groups) > 1 or self.model.updates or self.gradients.ema_decay is not None:
                who = "WorkUnits" if self.replicas is None else self.replicas.option
                raise InvalidArgumentError(
                    f"{who} has one optimizer, no ema_decay, and a model without running averages such as BatchNorm's. "
                    "Leave it out, or use LayerNorm or GroupNorm."
                )
            groups = [(self._together(optimizer), decay, names) for optimizer, decay, names in groups]
        first = groups[0][0]
        pairs = first.compute_gradients(self.model.loss, var_list=list(trained.values()))
        found = {variable: grad for grad, variable in pairs}
        changed = [variable for variable, grad in found.items() if grad is not None]
        clipped = dict(zip(changed, self._clipped([found[variable] for variable in changed]), strict=True))
        ops: list[Node] = []
        with control_dependencies(list(self.model.updates)):
            for optimizer, decay, names in groups:
                applied = [(_decayed(name, clipped[trained[name]], trained[name], decay), trained[name])
                           for name in names if trained[name] in clipped]  # fmt: skip
                if applied:
                    ops.append(optimizer.apply_gradients(applied, global_step=None if ops else self.step))
        train_op = ops[0] if len(ops) == 1 else group(*ops)
        if self.gradients.ema_decay is not None:
            followed = [variable for variable in self.model.variables.values() if variable.trainable]
            with control_dependencies([train_op]):
                train_op = ExponentialMovingAverage(self.gradients.ema_decay, name=EMA).apply(followed)
        self.train_op = train_op
        with get_default_graph().name_scope(None):
            scalar("loss", self.model.loss)

    @property
    def loss(self) -> Node:
        """The mean of the losses of the step's batches."""
        return self.model.loss

    def _together(self, optimizer: Optimizer) -> Optimizer:
        """Have an optimizer apply the mean of several gradients."""
        if self.units is not None:
            return units_optimizer(optimizer, self.units)
        assert self.replicas is not None
        return SyncReplicasOptimizer(optimizer, self.replicas.count, self.replicas.workers)

    def _groups(self, trained: Mapping[str, Variable]) -> list[tuple[Optimizer, float, list[str]]]:
        """Give each optimizer with its weight decay, and the names of its parameters."""
        alone = self.optimizer.wrapped if isinstance(self.optimizer, SyncReplicasOptimizer) else self.optimizer
        return [
            (*_made_of(optimizer, self.step, self.known_step), names)
            for optimizer, names in grouped(alone, list(trained))
        ]

    def _clipped(self, grads: Sequence[Any]) -> list[Any]:
        found = list(grads)
        if self.gradients.clip_value is not None:
            limit = self.gradients.clip_value
            found = [clip_by_value(grad, -limit, limit) for grad in found]
        if self.gradients.clip_norm is not None:
            found = clip_by_global_norm(found, self.gradients.clip_norm)[0]
        return found


def _made_of(optimizer: Any, step: Variable, known: Callable[[], int]) -> tuple[Optimizer, float]:
    """Give an optimizer as a graph has it, and its weight decay."""
    if isinstance(optimizer, TorchOptimizer):
        return optimizer_of(optimizer, step, known), optimizer.weight_decay
    return optimizer, 0.0


def training_model(model: Any, loss_fn: Callable[..., Any]) -> TrainingModel:
    """Put a model into the default graph.

    Args:
        model: A torch module, or parameters of jax or numpy.
        loss_fn: Its loss function.

    Raises:
        InvalidArgumentError: If it is no model, or the function no function.
    """
    if not callable(loss_fn):
        raise InvalidArgumentError(
            f"loss_fn is {reprlib.repr(loss_fn)}; it must be a function, called as loss_fn(model, *batch), that gives "
            "the loss: gs.fit(model, loss_fn, batches)."
        )
    framework = framework_of(model)
    if framework == "torch":
        from globalstep.worker.frameworks.torch_training import TorchTraining

        return TorchTraining(model, loss_fn)
    if framework == "jax":
        from globalstep.worker.frameworks.jax_training import JaxTraining

        return JaxTraining(model, loss_fn)
    from globalstep.worker.frameworks.numpy_training import NumpyTraining

    return NumpyTraining(model, loss_fn)


def _decayed(name: str, grad: Any, variable: Variable, weight_decay: float) -> Any:
    if not weight_decay:
        return grad
    if isinstance(grad, IndexedSlices):
        raise InvalidArgumentError(
            f"{name!r} is an Embedding, whose gradient has only the rows of a batch: weight_decay is not for it, as in "
            f'PyTorch. Give it an optimizer of its own: optimizer={{"{name}": gs.optim.SparseAdam(), "*": ...}}.'
        )
    return grad + weight_decay * variable

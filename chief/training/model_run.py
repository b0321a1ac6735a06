"""A Trainer's model as what a run trains: what it declares with an optimizer, its sessions and its first values.

Layer: chief.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from globalstep.chief.sessions.run_model import RunModel, why_uninitialized
from globalstep.cluster.placement import Declarations, declared_by
from globalstep.cluster.program import ProgramVariable
from globalstep.cluster.run_policy import policy_of
from globalstep.config import in_flight_of
from globalstep.errors import InvalidArgumentError, JobDoneError
from globalstep.optimizers.declared import declared_model, grouped
from globalstep.optimizers.optimizer_rule import StepSource
from globalstep.wire.declarations import Increment, Op, OpKind, Outcome, Push, Read
from globalstep.wire.known_progress import KnownProgress
from globalstep.wire.names import GLOBAL_STEP
from globalstep.wire.wire_options import wire_options_of
from globalstep.worker.client.client import ClusterClient, connect
from globalstep.worker.frameworks.training_model import SCOPE
from globalstep.worker.step.model import Model
from globalstep.worker.step.step_push import GradientRules
from globalstep.worker.step.stepping import Compute, Stepper, TrainedModel

if TYPE_CHECKING:
    from globalstep.chief.training.kept_training import ModelSaver
    from globalstep.worker.frameworks.step_options import LocalSteps, WorkUnits

_SCOPE = f"{SCOPE}/"


@dataclass(frozen=True)
class Named:
    """A fetch of hooks: the global step that a step's values were read at, or its loss.

    Attributes:
        op_name: What the PS tasks call the step.
    """

    op_name: str


#: The loss of a step, where hooks ask for it.
LOSS = Named("loss")


@dataclass(slots=True, eq=False)
class StepCall:
    """A step that is to be taken, with a seed for each batch."""

    batches: Sequence[Any]
    seeds: Sequence[int]


class ModelSession:
    """A model on a cluster, until it is closed or the run's incarnation ends; a `RunSession`.

    Args:
        trained: The model.
        cluster: The client of the cluster; the session closes it.
        compute: Computes a step.
        in_flight: How many pushes need not be waited for.

    Attributes:
        cluster: As given.
        restored_from: Prefix of the checkpoint that the model was restored from; "" for none.
        at_close: What is let go of once the session has left its cluster.
        trains_alone: See RunSession.
        stepper: Takes the steps.
        pushes_in_flight: As given.
        last_outcome: What became of the last push that a step has had the answer of; None before the first.
    """

    def __init__(self, trained: TrainedModel, cluster: ClusterClient, compute: Compute, in_flight: int) -> None:
        self.cluster = cluster
        self.restored_from = ""
        self.at_close = contextlib.ExitStack()
        self.trains_alone = True
        self.stepper = Stepper(trained, cluster, compute, in_flight)
        self.pushes_in_flight = in_flight
        self.last_outcome: Outcome | None = None
        # Guards _closed; a leaf.
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Take a step, and answer what hooks ask for.

        Args:
            fetches: A StepCall, what is `Named`, or a dict of such.
            feed_dict: Nothing can be fed.
            options: Without effect.
            run_metadata: Without effect.

        Returns:
            The loss in the place of the StepCall, and the values of what is named.

        Raises:
            JobDoneError: With such as its `values`, if the job is done.
        """
        asked = fetches.values() if isinstance(fetches, dict) else (fetches,)
        for call in asked:
            if isinstance(call, StepCall):
                break
        else:
            self.last_outcome = self.stepper.outcome
            return self._answer(fetches, None, self._read_step(asked))
        try:
            loss = self.stepper.step(call.batches, call.seeds)
        except JobDoneError as done:
            if done.values is not None:
                done.values = self._answer(fetches, done.values, self.stepper.seen)
            raise
        finally:
            self.last_outcome = self.stepper.outcome
        return loss if call is fetches else self._answer(fetches, loss, self.stepper.seen)

    def _read_step(self, asked: Iterable[Any]) -> int:
        """Read the step, if somebody asks for it where none is taken."""
        step = next((item for item in asked if isinstance(item, Named) and item is not LOSS), None)
        return 0 if step is None else int(self.cluster.pull([Read(step.op_name)])[0])

    def _answer(self, fetches: Any, loss: Any, seen: int) -> Any:
        if not isinstance(fetches, dict):
            return np.int64(seen) if isinstance(fetches, Named) and fetches is not LOSS else loss
        answers = {}
        for key, item in fetches.items():
            # The loss, which the caller wants, is no reason for a call: each step comes here.
            answers[key] = loss if isinstance(item, StepCall) else self._answer(item, loss, seen)
        return answers

    def forget_values(self) -> None:
        """Read anew in the next step."""
        self.stepper.forget_values()

    def close(self) -> None:
        """Leave the cluster, or end the PS in this process. A second call does nothing."""
        with self._lock:
            was, self._closed = self._closed, True
        # In a forked child all of it is the parent's, which goes on.
        if was or os.getpid() != self._pid:
            return
        # They lie in memory that is shared with the PS tasks.
        self.stepper.forget_values()
        with self.at_close:
            self.cluster.close()


class ModelRun(RunModel[ModelSession]):
    """Makes sessions of a model, and gives it its values.

    Args:
        trained: The model.
        config: A `gs.ConfigProto`.
        compute: Computes a step.
        saver: Restores; None where nothing is kept.

    Attributes:
        progress: What the process has heard of the run.
    """

    def __init__(self, trained: TrainedModel, config: Any, compute: Compute, saver: ModelSaver | None) -> None:
        self._trained, self._config, self._compute, self._saver = trained, config, compute, saver
        self._step = Named(trained.declared.step)
        self.progress = KnownProgress()

    @property
    def step(self) -> Named:
        """See RunModel."""
        return self._step

    @property
    def restores(self) -> bool:
        """See RunModel."""
        return self._saver is not None

    def session(self, target: Any, task: str, retry_secs: float) -> ModelSession:
        """See RunModel."""
        config = self._config
        policy, wire = policy_of(config), wire_options_of(config)
        cluster = connect(target or "", task=task, retry_secs=retry_secs, policy=policy, wire=wire)
        return ModelSession(self._trained, cluster, self._compute, in_flight_of(config))

    def declarations(self, shards: int) -> Declarations:
        """See RunModel."""
        return declared_by(self._trained.declared.program, shards, policy_of(self._config))

    def compare_with_run(self, session: ModelSession) -> None:
        """See RunModel."""
        from globalstep.worker.client.declared_alike import check_optimizers, check_variables

        program, run = self._trained.declared.program, session.cluster.run.side()
        check_variables(program.variables, run)
        check_optimizers(program.optimizers, run)

    def initialize(self, session: ModelSession) -> None:
        """See RunModel: all but the rows that the PS tasks do not draw come in one push."""
        trained, cluster = self._trained, session.cluster
        declared, model = trained.declared, trained.model
        planned = self.declarations(cluster.shards)
        cluster.declare(planned.variables, planned.optimizers)
        # What is pushed is the run's: the program may change its own arrays.
        values = {trained.name(key): np.array(item.value, order="C") for key, item in model.parameters.items()}
        ops = [Op(OpKind.ASSIGN, name, value) for name, value in values.items()]
        ops += [Op(OpKind.ASSIGN, average, values[name]) for name, average in declared.averages.items()]
        for key, table in model.tables.items():
            ops.append(Op(OpKind.ASSIGN, trained.name(key), fill=0.0 if table.draw is None else table.draw))
        ops += [Op(OpKind.ASSIGN, name, fill=number) for name, number in declared.fills.items()]
        cluster.push(Push([*ops, Op(OpKind.ASSIGN, declared.step, fill=0)]))
        if model.tables:
            from globalstep.worker.client.row_pieces import push_rows

            for key, table in model.tables.items():
                push_rows(cluster, trained.name(key), table.given())

    def restore(self, session: ModelSession, prefix: str) -> None:
        """See RunModel."""
        assert self._saver is not None
        self._saver.restore(session, prefix)

    def why_not_ready(self, session: ModelSession) -> str:
        """See RunModel."""
        cluster = session.cluster
        empty = set(cluster.run.uninitialized())
        names = [variable.name for variable in self._trained.declared.program.variables]
        missing = [name for name in names if name in empty or name not in cluster.variables]
        return why_uninitialized(cluster, missing) if missing else ""

    def make_ready(self, session: ModelSession) -> None:
        """See RunModel."""
        if problem := self.why_not_ready(session):
            raise RuntimeError(f"The model is not ready after its start: {problem}")


@runtime_checkable
class Synchronous(Protocol):
    """An optimizer whose steps are made of several workers' gradients, as `gs.train.SyncReplicasOptimizer`."""

    replicas_to_aggregate: int
    total_num_replicas: int

    @property
    def wrapped(self) -> Any:
        """The optimizer that applies the mean."""


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
        """The most gradients that a worker gives for one step."""
        return -(-self.count // self.workers)

    def among(self, workers: int) -> Replicas:
        """Give the same, of the workers that there are: where they are fewer, each gives more gradients."""
        return replace(self, workers=min(self.workers, workers))


def replicas_of(optimizer: Any, local_steps: LocalSteps | None, units: WorkUnits | None) -> Replicas | None:
    """Say whose gradients make a step; None where each worker's make one, and for units of work.

    Raises:
        InvalidArgumentError: If a SyncReplicasOptimizer does not go with the rest.
    """
    optimizers = optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]
    synchronous = [item for item in optimizers if isinstance(item, Synchronous)]
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

"""`gs.Trainer`: a model in training, alone or as a task of a cluster, for a loop of one's own.

Layer: chief. Threads: a trainer belongs to one thread.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from globalstep.chief.hooks.run_report import RunReport, is_wanted
from globalstep.chief.hooks.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.step import StopAtStep
from globalstep.chief.sessions.chief_role import failover_of, own_task, place_of_task
from globalstep.chief.sessions.run_model import step_now
from globalstep.chief.sessions.session_creators import TaskCreator
from globalstep.chief.sessions.train_loop import TrainLoop
from globalstep.chief.training.batches import Share, are_own, share_of
from globalstep.chief.training.model_run import (
    LOSS,
    ModelRun,
    ModelSession,
    Named,
    StepCall,
    replicas_of,
    trained_model,
)
from globalstep.cluster.cluster import TaskConfig, session_tasks
from globalstep.cluster.run_policy import policy_of
from globalstep.config import ConfigProto
from globalstep.errors import InvalidArgumentError, JobDoneError, OpError, OutOfRangeError
from globalstep.runtime.log_format import write_to_stderr
from globalstep.wire.declarations import Op, OpKind, Push, Read
from globalstep.wire.wire_options import wire_options_of
from globalstep.worker.frameworks.training_model import (
    TABLE_BYTES,
    described,
    number_of_at_least,
    part_seed,
    training_model,
)
from globalstep.worker.step.step_push import GradientRules
from globalstep.worker.step.stepping import BadSteps, Compute, Computing, go_straight

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator
    from globalstep.chief.training.callbacks import Callback
    from globalstep.chief.training.evaluation import Evaluate
    from globalstep.chief.training.kept_training import KeptTraining
    from globalstep.proto import globalstep_pb2 as pb
    from globalstep.worker.frameworks.local_rounds import LocalRounds
    from globalstep.worker.frameworks.step_options import LocalSteps, WorkUnits
    from globalstep.worker.waits.contributing import UnitOfWork

_log = logging.getLogger("globalstep")
_log_progress = logging.getLogger("globalstep.progress")

#: In place of a rank, for random numbers that are the same on every worker.
_NOBODY = -2
#: Batches that a loop may take without a step before it gets an error.
_UNUSED_BATCHES = 1000


@dataclass
class FitResult:
    """The result of training.

    Attributes:
        model: The module, or new parameters, with the last values; of a table larger than 256 MiB `gs.load` has them,
            and a lookup says so. On an evaluator task those of the last checkpoint, as they were evaluated.
        step: The global step.
        loss: The loss of this task's last step; NaN without one.
        metrics: The last evaluation; empty without one, and on tasks that are not the chief.
        history: All evaluations: step and metrics of each.
        best_step: The step of the best one; None without one.
        run_dir: Where the run is kept; None for nowhere.
        is_chief: Whether this task is the chief: the one to go on with the result.
    """

    model: Any = field(repr=False)
    step: int
    loss: float = math.nan
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    best_step: int | None = None
    run_dir: str | None = None
    is_chief: bool = True


class Trainer:
    """Trains a model step by step; use it in a `with` block.

    Without a cluster the parameter server is in this process. With TF_CONFIG, as `globalstep launch` and cluster
    engines set it, this process is a task of the cluster.

    Args:
        model: A torch module; or parameters in jax or numpy: arrays in dicts, lists and tuples.
        loss_fn: Called as `loss_fn(model, *batch)` where a batch is a tuple or list, else as `loss_fn(model, batch)`.
            Gives a scalar loss; with numpy parameters, the loss and its gradients in the structure of the parameters.
            If it has an argument `rng` it gets a key (jax) or a generator (numpy) of the step.
        optimizer: One of `gs.optim`, or of `gs.train`; or a dict from patterns of parameters' names to optimizers.
        steps: The global step to stop at, exactly; None to go on until the loop ends.
        run_dir: Directory of checkpoints and TensorBoard's files; training goes on from the newest checkpoint there.
            None to keep nothing.
        evaluate: What to evaluate; a checkpoint is saved for each evaluation.
        callbacks: Told of steps, evaluations and the end, on the chief.
        seed: Decides on the order of batches and on random numbers of each step, on each worker others.
        clip_grad_norm: Scale gradients down to this norm over all of them.
        clip_grad_value: Clip each element of gradients to this magnitude.
        ema_decay: Keep moving averages of the parameters, of tables not; `gs.load(run_dir, model, ema=True)`.
        checkpoint_every_steps: Save every so many global steps; default as often as is evaluated, else every 10
            minutes.
        keep_checkpoints: How many checkpoints are kept.
        local_steps: A `gs.LocalSteps`: each worker takes so many steps on its own copy of the model, and `optimizer`
            gets the difference. A step of the trainer, and a global step, is a round of them then.
        units: A `gs.WorkUnits`: each step is made of so many units of work, from any of the workers, and has the
            same bits in each case; see `unit`.
        config: A `gs.ConfigProto`: durability, what is sent, pushes in flight.
        max_bad_steps: A step whose gradients are not finite is dropped, and the log says so; with so many of this
            worker in a row training ends with an error, with None never. `gs.RunPolicy(on_nan="apply")` in `config`
            applies them.

    Attributes:
        seed: As given.
        rank: Which worker this is: 0 is the chief.
        world_size: How many workers there are.

    Raises:
        InvalidArgumentError: For arguments that cannot be; says what to give instead.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any],
        *,
        optimizer: Any,
        steps: int | None = None,
        run_dir: str | None = None,
        evaluate: Evaluate | None = None,
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        ema_decay: float | None = None,
        checkpoint_every_steps: int | None = None,
        keep_checkpoints: int = 5,
        local_steps: LocalSteps | None = None,
        units: WorkUnits | None = None,
        config: Any = None,
        max_bad_steps: int | None = 10,
    ) -> None:
        write_to_stderr()
        number_of_at_least(1, steps=steps, checkpoint_every_steps=checkpoint_every_steps, max_bad_steps=max_bad_steps)
        number_of_at_least(0, keep_checkpoints=keep_checkpoints, seed=seed)
        if seed is None:
            raise InvalidArgumentError("seed is None; it must be a whole number: all workers need the same.")
        if config is not None and not isinstance(config, ConfigProto):
            raise InvalidArgumentError(f"config is {config!r}; it must be a gs.ConfigProto.")
        if callbacks != ():
            from globalstep.chief.training.callbacks import check_callbacks

            check_callbacks(callbacks)
        self._task = own_task()
        self._is_chief = self._task.is_chief
        if self._task.job in ("ps", "evaluator"):
            raise InvalidArgumentError(
                f"TF_CONFIG says that this task is {self._task.task}, which does not train: call gs.fit, which does "
                "what such a task is to do."
            )
        self.rank, self.world_size = _rank(self._task)
        self.seed = seed
        self._model_given, self._loss_fn, self._optimizer = model, loss_fn, optimizer
        self._steps = None if steps is None else int(steps)
        self._config: Any = config
        self._callbacks = list(callbacks)
        self._kept: KeptTraining | None = None
        if run_dir is not None or evaluate is not None:
            from globalstep.chief.training.kept_training import KeptTraining

            self._kept = KeptTraining(self, run_dir, evaluate, keep_checkpoints, checkpoint_every_steps)
        self._rules = GradientRules(clip_grad_norm, clip_grad_value, ema_decay)
        if local_steps is not None or units is not None:
            from globalstep.worker.frameworks.step_options import check_options

            check_options(local_steps, units, self._rules, config)
        self._local, self._units = local_steps, units
        self._rounds: LocalRounds | None = None
        worker = self._task.task or "this worker"
        self._bad_steps = BadSteps(max_bad_steps, worker, lambda: self._step)
        together = replicas_of(optimizer, self._local, self._units)
        self._replicas = None if together is None else together.among(self.world_size)
        self._stack = contextlib.ExitStack()
        self._pid = os.getpid()
        self._loop: TrainLoop | None = None
        #: The model on the cluster; another one after each recovery.
        self._session: ModelSession | None = None
        self._step = self._start = self._own_step = self._went_back = 0
        # Steps of this task before its process was started again, and the step whose batches it takes first.
        self._had = self._first = 0
        # The global step after each step of this process, and at its begin; and how many of this worker's were lost.
        self._own_steps = array("q")
        self._begun_at = self._lost = 0
        # Steps whose batches earlier calls of `batches` have given, to all workers; and what the next one leaves out of
        # this worker's own batches, None for what was had before.
        self._passed = 0
        # Of each of these calls: how many such steps there were when it began, and its epochs; of those of own batches
        # how many there were, and epochs.
        self._passes: list[tuple[int, int | None]] = []
        self._own_passes: list[tuple[int, int | None]] = []
        self._left_out: int | None = None
        self._loss = math.nan
        self._taken = 0
        self._stopped = False
        # Whether this worker's batches ended where all that are left are kept for others.
        self._left_to_others = False
        # Whether the run has ended, as `done` or a step has said.
        self._ended = False
        self._trained: Any = model
        self._has_last_values = False
        #: What came of training; None until the `with` block has ended without an error.
        self.result: FitResult | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which saves, evaluates and ends the run."""
        return self._is_chief

    @property
    def global_step(self) -> int:
        """The global step, as far as this task knows: exact after its own steps."""
        return self._step

    @property
    def done(self) -> bool:
        """Whether training is over: the last step has come, `stop()` was called, or the run has ended."""
        if not self._ended and self._loop is not None:
            self._ended = self._loop.should_stop()
        return self._ended or self._stopped or self._loop is None or self._has_last_step

    @property
    def _has_last_step(self) -> bool:
        return self._steps is not None and self._step >= self._steps

    @property
    def loss_parts(self) -> dict[str, float]:
        """Numbers beside the loss, by name, that the loss function gave in this worker's last step, for logs."""
        return dict(self._session.stepper.parts) if self._session is not None else {}

    def step(self, *batches: Any) -> float:
        """Take a step: compute the loss and its gradients, push them, and count the step.

        Args:
            batches: A batch; of several the gradients are averaged, and make one step. With `local_steps` each is one
                of the round's own steps.

        Returns:
            The loss, the mean of those of several batches. If the run has ended meanwhile, so that the step does not
            count, `done` is True afterwards.

        Raises:
            RuntimeError: Outside of a `with` block, or when training is over.
            InvalidArgumentError: If the loss is no finite scalar; nothing was pushed then.
        """
        loop = self._going()
        if self._units is not None:
            raise InvalidArgumentError("A Trainer with units has no step(): call trainer.unit(batches).")
        if not batches:
            raise InvalidArgumentError("step() needs a batch: trainer.step(batch).")
        if self._ended:
            return self._loss
        try:
            seeds = [0] * len(batches)
            if self._trained_model.model.draws:
                seeds = [part_seed(self.seed, self.rank, self._step, at) for at in range(len(batches))]
            loss = loop.run_hooked(StepCall(batches, seeds))
        except JobDoneError:
            return self._over()
        except Exception as error:
            go_straight(error)
            if isinstance(error, TypeError) and len(batches) > 1:
                error.add_note(f"step() was given {len(batches)} batches; one batch of two parts is step((x, y)).")
            raise
        self._taken += 1
        self._loss = self._loss if loss is None else float(loss)
        for callback in self._callbacks if self._is_chief else ():
            callback.on_step(self, self._step, self._loss)
        return self._loss

    def _over(self) -> float:
        """Take note that the job is done, as a session found that was made anew; gives the last loss."""
        self._ended = True
        return self._loss

    def unit(self, batches: Any) -> float:
        """Compute a unit of work: its loss and gradients, and push them. For a Trainer with `units`.

        Waits until this worker gets one. Where the others compute all that is left of a step, it returns once that
        is made, without a unit.

        Args:
            batches: A list of batches, of which unit u of step s takes number `s * count + u`, again from the first
                after the last; or a function of step and unit, both from 0, that gives the batch. It must be the same
                one on every worker; `rng` of the loss function is, too.

        Returns:
            The loss of the last unit that was computed here; NaN before the first.

        Raises:
            RuntimeError: Outside of a `with` block, or when training is over.
            InvalidArgumentError: Without `units`; or if the loss is no finite scalar: nothing was pushed then.
        """
        loop = self._going()
        if self._units is None:
            raise InvalidArgumentError("unit() needs a Trainer with units: gs.Trainer(..., units=gs.WorkUnits(8)).")
        if self._ended:
            return self._loss
        try:
            return self._take_unit(loop, batches, self._units.count)
        except JobDoneError:
            return self._over()
        except Exception as error:
            go_straight(error)
            raise

    def _take_unit(self, loop: TrainLoop, batches: Any, count: int) -> float:
        from globalstep.worker.frameworks.step_options import batch_source, take_unit

        before, name = self._step, self._trained_model.declared.step
        batch_of = batch_source(batches, count)
        work: UnitOfWork = loop.with_session(lambda session: take_unit(session.cluster, name, count, self._step))
        if work.unit:
            self._step = work.base
            seed = part_seed(self.seed, _NOBODY, work.base, work.unit - 1)
            loss = loop.run_hooked(StepCall([batch_of(work.base, work.unit - 1)], [seed]))
            self._loss = self._loss if loss is None else float(loss)
        else:
            self._stopped = self._stopped or work.base == self._step
            loop.run_hooked(Named(name))  # for the hooks
            self._step = work.base
        for callback in self._callbacks if self._is_chief and self._step != before else ():
            callback.on_step(self, self._step, self._loss)
        return self._loss

    def _going(self) -> TrainLoop:
        """Refuse a step outside of training; takes note of whether the run has ended.

        A run that others have ended since the caller asked `done` refuses nothing: nobody could have known.
        """
        if self._loop is None:
            raise RuntimeError(
                "A Trainer trains in a `with` block: with gs.Trainer(...) as trainer: trainer.step(batch)"
            )
        if self._ended or self._stopped or self._has_last_step:
            raise RuntimeError(
                f"Training is over at step {self._step}. Loop with `for batch in trainer.batches(dataset)`, or ask "
                "`trainer.done` before each step."
            )
        self._ended = self._loop.should_stop()
        return self._loop

    def batches(self, batches: Any, *, epochs: int | None = None, per_step: int = 1) -> Iterator[Any]:
        """Give this worker's batches until training is over: each of several workers gets others.

        Args:
            batches: An iterable that all workers have, or a function that gives one: each batch is had by one worker,
                and a quick worker has more. An argument `rank` or `seed` of the function says that it gives this
                worker's own. In a run that goes on from a checkpoint, the batches that were had before are left out.
                Another call goes on where those before it have ended: `for epoch in range(3)` around a loop over
                `trainer.batches(data, epochs=1)` goes through the data three times.
            epochs: How often to go through them; None for until training is over.
            per_step: How many of them make a step.

        Raises:
            InvalidArgumentError: If there is no batch.
            RuntimeError: If no step is taken with them.
        """
        if self._loop is None and self.result is None:
            raise RuntimeError(
                "A Trainer gives batches in a `with` block: with gs.Trainer(...) as trainer: for batch in "
                "trainer.batches(dataset): ..."
            )
        unused, taken = 0, self._taken
        for batch in self._share(batches, epochs, per_step):
            if self.done:
                return
            yield batch
            unused = 0 if self._taken != taken else unused + 1
            taken = self._taken
            if unused >= _UNUSED_BATCHES:
                raise RuntimeError(f"{unused} batches were taken, and no step: call trainer.step(batch) in the loop.")

    def _share(self, batches: Any, epochs: int | None, per_step: int) -> Iterator[Any]:
        """Give this worker's batches, after those of earlier calls; after a return of the run, again from there."""
        replicas, passed, claimed = self._replicas, self._passed, -1
        start = self._start * per_step * replicas.each if replicas else self._start * per_step // self.world_size
        start = start + self._had * per_step if self._left_out is None else self._left_out
        end = None if epochs is None or replicas or self._steps is None else self._steps - passed

        def claim(last: int) -> int:
            nonlocal claimed
            claimed = self._next_step(last if last < 0 else last + passed)
            return max(0, claimed - passed)

        share = Share(self.rank, self.world_size, self.seed, start, claim, per_step, end)
        own = are_own(batches)
        # An iterable that cannot be begun again goes on, wherever the run is.
        once = isinstance(batches, Iterator) or (replicas is not None and not own)
        total: int | None = None
        try:
            while total is None:
                went_back, lost, taken = self._went_back, self._lost, 0
                given = share_of(batches, share, epochs)
                while total is None and (once or self._went_back == went_back):
                    try:
                        batch = next(given)
                    except StopIteration as over:
                        total = int(over.value)
                        # Its last batches are pushed, and perhaps not saved yet: they may be lost, and had again.
                        if total == 0 and share.end is not None and not (own or once) and self._has_gone_back():
                            total = None
                    else:
                        taken += 1
                        yield batch
                if total is None and own:
                    at, epochs = self._own_pass_at(share.start + taken - (self._lost - lost) * per_step, epochs)
                    share = replace(share, start=at)
                elif total is None:
                    self._first = self._own_step + self.world_size - 1
                    passed, epochs = self._pass_of_first(passed, epochs)
                    share = replace(share, end=None if end is None or self._steps is None else self._steps - passed)
        finally:
            if own:
                self._left_out = 0 if total is None else max(0, share.start - total)
                self._own_passes.append((share.start + taken if total is None else total, epochs))
            elif claimed >= 0:
                self._passes.append((passed, epochs))
                # A pass that was left early is over for this worker: the next one begins anew.
                self._first = claimed if total is not None else self._next_step(claimed)
                # Nothing at all is had where all that is left is other workers'.
                self._left_to_others = total == 0
                steps = passed + total // per_step if total is not None else self._first - self.rank
                self._passed = max(self._passed, steps)

    def _has_gone_back(self) -> bool:
        """Wait, after this worker's last batches, for the last step to be saved; say whether the run went back."""
        loop, went_back = self._loop, self._went_back
        if loop is None or self.done:
            return False
        try:
            loop.await_rest(lambda: self._went_back == went_back)
            if self._went_back == went_back:
                loop.run_hooked(Named(self._trained_model.declared.step))  # hooks hear of the last step
        except JobDoneError:
            self._over()
        # At the limit `done` has the last step saved, or waits for that.
        return not self.done and self._went_back != went_back

    def _pass_of_first(self, passed: int, epochs: int | None) -> tuple[int, int | None]:
        """Give where the pass began that has this worker's next batches, and how many epochs are left from there."""
        for began, more in reversed(self._passes):
            if began < passed and self._first < passed and more is not None:
                passed, epochs = began, None if epochs is None else epochs + more
        return passed, epochs

    def _own_pass_at(self, at: int, epochs: int | None) -> tuple[int, int | None]:
        """Give where in which pass a batch of this worker's own is, and how many epochs are left from its begin.

        Args:
            at: Its number in the present pass; less than 0 in one before.
            epochs: Of the present pass.
        """
        while at < 0 and self._own_passes:
            size, more = self._own_passes.pop()
            at, epochs = at + size, None if epochs is None or more is None else epochs + more
        return max(0, at), epochs

    def _go_on_from(self, step: int) -> None:
        """Go on where the run has gone back to a step: batches of this worker's that it has lost are had again."""
        if step < self._own_step:
            kept = bisect_right(self._own_steps, step)
            self._lost += len(self._own_steps) - kept
            del self._own_steps[kept:]
            if step < self._begun_at:
                # Of the task's steps before this process began it is not known which they were: its share of them.
                start = min(step, self._start)
                self._lost += self._had + (self._start - start) // self.world_size
                self._start, self._had = start, 0
            self._own_step, self._went_back = step, self._went_back + 1
        self._begun_at = min(self._begun_at, step)

    def _begin(self, trained: pb.GetGlobalStepReply) -> None:
        """Begin with the batches that this task has not had, as far as the PS know: it may come late, or again."""
        name = self._trained_model.declared.step
        self._start = self._begun_at = self._step
        if name in trained.opened_with and self._replicas is None:
            self._start, self._had = trained.opened_with[name], trained.pushes
            self._own_step = trained.last_steps.get(name, 0)
        self._first = self._own_step + self.world_size - 1 if self._had else self._start + self.rank

    def _next_step(self, last: int) -> int:
        """Give the step, from 0, whose batches are this worker's next.

        The push that became step s of all gives its worker the batches of step s + world_size - 1: no two get the same,
        and a worker that is slow gets fewer.
        """
        if self._replicas is not None:
            # Each of the workers gives as many gradients of every step: the number of a step is a multiple of theirs.
            first = self._step * self._replicas.each * self.world_size + self.rank
            return first if last < 0 else max(last + self.world_size, first)
        if last < 0:
            return self._first
        return max(last + 1, self._own_step + self.world_size - 1)

    def assign(self, values: Mapping[str, Any]) -> None:
        """Give parameters other values, between two steps; what is done to the model itself does not count.

        All of them change in one push, after this worker's steps so far and before its next one. What other workers
        push between the read of a value that a function gets, and the change, is lost.

        Args:
            values: By the parameter's name: an array or tensor of its shape, or a function of the present value that
                gives one: `trainer.assign({"w": lambda w: w.clip(-0.01, 0.01)})`.

        Raises:
            RuntimeError: Outside of a `with` block.
            InvalidArgumentError: If a name or shape is not the model's, or with `local_steps`; nothing has changed.
        """
        if self._loop is None:
            raise RuntimeError("A Trainer assigns in a `with` block, between its steps.")
        if self._local is not None:
            raise InvalidArgumentError("assign is not for local_steps, where each worker has values of its own.")
        trained = self._trained_model
        known = {
            item.name.removeprefix(trained.scope): item
            for item in trained.declared.program.variables
            if item.name.startswith(trained.scope) and not item.primary
        }
        if unknown := sorted(set(values) - set(known)):
            raise InvalidArgumentError(f"The model has no parameter {unknown[0]!r}; it has {', '.join(known)}.")

        def change(session: ModelSession) -> None:
            cluster = session.cluster
            session.stepper.wait()
            ops = []
            for name, value in values.items():
                variable = known[name]
                given = value(np.array(cluster.pull([Read(variable.name)])[0])) if callable(value) else value
                array = given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
                if array.shape != variable.shape or array.dtype.kind not in "fiub":
                    raise InvalidArgumentError(
                        f"{name!r} has shape {list(variable.shape or ())}, and the assigned value is "
                        f"{described(array)}."
                    )
                array = np.ascontiguousarray(array, variable.dtype).reshape(array.shape)
                ops.append(Op(OpKind.ASSIGN, variable.name, array))
            cluster.push(Push(ops))
            session.forget_values()

        self._loop.with_session(change)

    def stop(self) -> None:
        """End training after this step; on the chief, the training of all workers."""
        self._stopped = True
        if self._loop is not None:
            self._loop.end_job()

    def __enter__(self) -> Self:
        if self._loop is not None or self.result is not None:
            raise RuntimeError("A Trainer trains once: make another one for another run. The model keeps its values.")
        try:
            return self._enter()
        except BaseException:
            loop, self._loop = self._loop, None
            with self._stack:
                if loop is not None:
                    loop.__exit__(*sys.exc_info())
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if os.getpid() != self._pid:
            return False  # a forked child: training is the parent's, which goes on
        if isinstance(error, (StopIteration, OutOfRangeError)):
            # To a session the end of an input is the end of training; batches end in `batches()`.
            given = RuntimeError(
                f"{type(error).__name__} in the program of {self._task.task or 'this worker'} at step {self._step}, "
                f"which would have ended training in silence: {str(error) or 'next() of an iterator that is used up?'} "
                "To end training call trainer.stop()."
            )
            given.__cause__ = error
            self.__exit__(type(given), given, trace)
            raise given
        loop, self._loop = self._loop, None
        assert loop is not None
        try:
            with self._stack:
                swallowed = loop.__exit__(kind, error, trace)
                if kind is None or swallowed:
                    self.result = self._result()
                    if self.is_chief and self._steps is not None and self._step < self._steps:
                        self._tell_of_early_end(self._steps)
                    if self.is_chief and self._kept is not None:
                        self._kept.note(self._trained_model, self._step, ended=True)
        finally:
            for callback in self._callbacks if self._is_chief else ():
                callback.on_end(self, self.result)
        return swallowed

    def _enter(self) -> Self:
        kept = self._kept
        if kept is not None:
            kept.open(self._stack)
        model = training_model(self._model_given, self._loss_fn)
        self._config = copy.copy(self._config) or ConfigProto()
        self._config.run_policy = policy_of(self._config, on_nan="drop")
        if self._local is not None:
            if model.tables:
                raise InvalidArgumentError("local_steps is not for a model with a gs.torch.Embedding.")
            self._config.wire = replace(wire_options_of(self._config), error_feedback=True)
        units = None if self._units is None else self._units.count
        known_step = lambda: self._step  # noqa: E731 (a method would be a circle)
        self._trained_model = trained_model(model, self._optimizer, known_step, self._rules, self._replicas, units)
        step = Computing(model).step
        if self._local is not None:
            from globalstep.worker.frameworks.local_rounds import LocalRounds

            rounds = self._rounds = LocalRounds(self._local.inner)
            if self._config.run_policy.on_nan == "drop":
                rounds.inner.bad_steps = self._bad_steps
            self._compute: Compute = functools.partial(rounds.round, step)
        else:
            self._compute = step
        if kept is None:
            self._loop = self._make_loop()
        else:
            kept.read_evaluations(self._model_given, self._loss_fn)
            with kept.explained():
                self._loop = self._make_loop()
        if self.is_chief:
            if kept is not None and not self.done:
                kept.note(self._trained_model, self._step, ended=False)
            for callback in self._callbacks:
                callback.on_start(self)
            self._report()
        return self

    def _report(self) -> None:
        """Tell callbacks of the evaluations that they have not heard of."""
        for step, metrics in self._kept.unreported() if self._kept is not None else ():
            for callback in self._callbacks:
                callback.on_evaluate(self, step, metrics)

    def _name_of(self, variable: str) -> str:
        """Give the name in the model of the parameter of a Variable."""
        return variable.removeprefix(self._trained_model.scope)

    def _make_loop(self) -> TrainLoop:
        """Join the run, or begin it, with the hooks of this task and of the chief that it is or may become."""
        kept, trained = self._kept, self._trained_model
        saver = kept.saver(trained) if kept is not None else None
        directory = kept.directory if kept is not None else None
        run = ModelRun(trained, self._config, self._compute, saver)
        step = run.step
        chief_hooks: list[SessionRunHook] = []
        if kept is not None and saver is not None:
            chief_hooks = kept.hooks(saver, step)
        own_hooks: list[SessionRunHook] = [_Following(self, step)]
        if self._steps is not None:
            own_hooks.insert(0, StopAtStep(last_step=self._steps, step=step))
        place, failover_secs, report = place_of_task(self._task), failover_of(None), None
        if is_wanted(None) and (place.is_chief or failover_secs is not None):
            report = RunReport([*chief_hooks, *own_hooks], directory, lambda: step, _loss_of)
            # First, to see the checkpoint that was restored before a hook saves it again.
            chief_hooks.insert(0, report)
        creator = TaskCreator(
            run, place, checkpoint_dir=directory, failover_secs=failover_secs, chief_hooks=chief_hooks
        )
        return TrainLoop(creator, own_hooks, report=report)

    def _tell_of_early_end(self, steps: int) -> None:
        if not self._left_to_others or self._stopped:
            _log_progress.info("Training ended at step %d of %d.", self._step, steps)
            return
        _log_progress.warning(
            "Training ended at step %d of %d: the batches of the rest were kept for workers that died, never came, or "
            "had ended when the run went back. With steps=%d in place of epochs those that are here go on to it.",
            self._step,
            steps,
            steps,
        )

    def _result(self) -> FitResult:
        if not self._has_last_values:
            self._take_saved_values()
        kept = self._kept.results() if self._kept is not None else {}
        return FitResult(model=self._trained, step=self._step, loss=self._loss, is_chief=self.is_chief, **kept)

    def _take_saved_values(self) -> None:
        """Bring the newest checkpoint's values into the model: the PS tasks ended before this task asked for theirs."""
        try:
            saved = None if self._kept is None else self._kept.last_saved(self._model_given)
        except OpError as error:
            _log.warning("The last values could not be brought into the model, gs.load has them: %s", error)
            return
        if saved is not None:
            self._step, self._trained = saved
            if self._is_chief and self._kept is not None:
                self._kept.make_up(self._step)
                self._report()
            return
        _log.warning(
            "The job was done before this task had its last values: the model that it returns has those of step %d. "
            "With run_dir=, a directory that all tasks see, it would have those of the last checkpoint.",
            self._step,
        )


def _loss_of(session: ModelSession, fetches: Any) -> Any:
    return LOSS if isinstance(fetches, StepCall) else None


class _Following(SessionRunHook):
    """Follows the session of a trainer: its step, and at the end its values."""

    def __init__(self, trainer: Trainer, step: Named) -> None:
        self._trainer, self._step = trainer, step
        self._incarnation = 0
        #: For the run's report: whether the checkpoints' directory stays when training has ended.
        self.keeps_directory = trainer._kept is not None and trainer._kept.run_dir is not None

    def after_create_session(self, session: ModelSession, coord: Coordinator) -> None:
        """See SessionRunHook."""
        trainer = self._trainer
        trainer._session = session
        trainer._step = step_now(session, self._step)
        incarnation, trained = session.cluster.incarnation, session.cluster.trained()
        if not self._incarnation:
            trainer._begin(trained)
        elif incarnation != self._incarnation:
            # Others may have gone on already.
            trainer._go_on_from(trained.opened_with.get(self._step.op_name, trainer._step))
        self._incarnation = incarnation
        if trainer._kept is not None:
            trainer._kept.forget_after(trainer._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook."""
        outcome = run_context.session.last_outcome
        if outcome is not None:
            trainer = self._trainer
            trainer._step = trainer._own_step = outcome.steps.get(self._step.op_name, trainer._step)
            trainer._own_steps.append(trainer._step)
            trainer._bad_steps.settle(outcome, trainer._name_of)
            if trainer._rounds is not None:
                trainer._rounds.settle(outcome.kind)

    def end(self, session: ModelSession) -> None:
        """See SessionRunHook: brings the last values into the model."""
        trainer = self._trainer
        trained, cluster = trainer._trained_model, session.cluster
        names = list(trained.model.parameters)
        tables = list[str]()
        if trainer.is_chief:
            tables = [name for name, table in trained.model.tables.items() if table.nbytes <= TABLE_BYTES]
        try:
            step, *arrays = cluster.pull([Read(trained.declared.step), *(Read(trained.name(name)) for name in names)])
            values = dict(zip(names, arrays, strict=True))
            if tables:
                from globalstep.worker.client.row_pieces import pull_table

                values |= {name: pull_table(cluster, trained.name(name)) for name in tables}
        except OpError as error:
            _log.info("The last values could not be read from the PS tasks: %s", error)
            return
        trainer._step = int(step)
        trainer._trained = trained.model.put(values)
        trainer._has_last_values = True


def _rank(task: TaskConfig) -> tuple[int, int]:
    """Give a task's rank, the chief's being 0, and how many workers there are."""
    tasks = sorted(session_tasks(task.cluster), key=lambda name: "worker" in name) or [task.task]
    return (tasks.index(task.task) if task.task in tasks else 0), len(tasks)

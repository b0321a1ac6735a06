"""A Trainer's directory: checkpoints, evaluations of them, summaries, and notes for the next run.

A training without a directory does not load this module, nor what it imports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import reprlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from globalstep.chief.checkpoints.checkpoint_save import saveables_of_program
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.checkpoints.cluster_saver import BackgroundSave, ClusterSaver
from globalstep.chief.events.events import WRITERS
from globalstep.chief.hooks.checkpoint import CheckpointSaver, CheckpointSaverListener
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.hooks.summaries import StepCounter, SummarySaver
from globalstep.chief.sessions.causes import why_not_written
from globalstep.chief.sessions.run_model import RunSession
from globalstep.chief.training.evaluation import Evaluate, Evaluations, note_training
from globalstep.chief.training.model_run import LOSS, ModelSession, Named
from globalstep.chief.training.saved_model import load, saved_step
from globalstep.errors import InvalidArgumentError, OpError
from globalstep.files.storage import directory_of, is_full, leave_probe, storage_for
from globalstep.files.tensorboard_protos import Summary
from globalstep.worker.step.stepping import TrainedModel

if TYPE_CHECKING:
    from globalstep.chief.training.trainer import Trainer

_log = logging.getLogger("globalstep")
_log_progress = logging.getLogger("globalstep.progress")

_CHECKPOINT_SECS = 600
#: Global steps between summaries, and between reports of their speed.
_SUMMARY_STEPS = 100


class KeptTraining:
    """The directory of a Trainer.

    Args:
        trainer: The Trainer.
        run_dir: As given to it; without one, what is evaluated is kept until training ends.
        evaluate: What to evaluate.
        max_to_keep: How many checkpoints are kept.
        checkpoint_steps: Global steps between checkpoints; None as for `gs.Trainer`.

    Attributes:
        run_dir: As given.
        evaluate: As given.
        directory: Where checkpoints go; None where this task keeps none.
        evaluations: The evaluations of the run; None where nothing is evaluated.

    Raises:
        InvalidArgumentError: For arguments that cannot be.
    """

    def __init__(
        self, trainer: Trainer, run_dir: Any, evaluate: Any, max_to_keep: int, checkpoint_steps: int | None
    ) -> None:
        _check(run_dir, evaluate)
        self._trainer = trainer
        self.run_dir = None if run_dir is None else os.fspath(run_dir)
        self.evaluate: Evaluate | None = evaluate
        self._max_to_keep, self._checkpoint_steps = max_to_keep, checkpoint_steps
        self.directory: str | None = None
        self.evaluations: Evaluations | None = None
        # Steps of the evaluations that callbacks have heard of.
        self._reported: set[int] = set()

    def open(self, stack: contextlib.ExitStack) -> None:
        """Make the directory ready.

        Args:
            stack: Closes and deletes at the end what is not to stay.

        Raises:
            InvalidArgumentError: If it cannot be written to.
        """
        if self.run_dir is not None:
            self.directory = self.run_dir
            if self._trainer.is_chief:
                _try_to_write(self.run_dir)
        elif self._trainer.is_chief:
            self.directory = tempfile.mkdtemp(prefix="globalstep-run-")
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        if self.directory is not None:
            stack.callback(WRITERS.close, self.directory)

    def read_evaluations(self, model: Any, loss_fn: Any) -> None:
        """Read what was evaluated before."""
        if self.evaluate is not None and self.directory is not None:
            self.evaluations = Evaluations(self.evaluate, self.directory, model, loss_fn)
            self._reported = {entry["step"] for entry in self.evaluations.history}

    def saver(self, trained: TrainedModel) -> ModelSaver:
        """Return the saver of a model."""
        return ModelSaver(trained, self._max_to_keep)

    def hooks(self, saver: ModelSaver, step: Named) -> list[SessionRunHook]:
        """Return the chief's hooks, which save, evaluate and write summaries."""
        hooks: list[SessionRunHook] = []
        if self.directory is not None:
            steps = self._checkpoint_steps
            if steps is None and self.evaluate is not None:
                steps = self.evaluate.every_steps
            listeners = [_EvaluatingCheckpoints(self._trainer, self)] if self.evaluations is not None else []
            secs = _CHECKPOINT_SECS if steps is None else None
            hooks.append(CheckpointSaver(self.directory, secs, steps, saver, listeners=listeners, step=step))
        if self.run_dir is not None:
            hooks += [
                # A Trainer's step counts itself: that a program has forgotten to is not worth a warning.
                StepCounter(_SUMMARY_STEPS, output_dir=self.run_dir, step=step, shared=True),
                SummarySaver(_SUMMARY_STEPS, None, self.run_dir, step=step, fetched=[LOSS], as_summary=_loss_summary),
            ]
        return hooks

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say what to do where a checkpoint is of another model."""
        try:
            yield
        except OpError as error:
            if "Restoring from checkpoint failed" in str(error):
                reason = str(error).rsplit("Original error:", 1)[-1].strip()
                # The traceback, and the text of TensorFlow's Saver, speak of graphs that the program never made.
                raise type(error)(
                    f"run_dir {self.run_dir!r} has checkpoints of another model or optimizer, from which this one "
                    f"cannot go on: {reason}. Give another run_dir, or the model and optimizer of before."
                ) from None
            raise

    def forget_after(self, step: int) -> None:
        """Leave out evaluations of steps that the run has gone back behind."""
        if self.evaluations is not None:
            self.evaluations.forget_after(step)
            self._reported &= {entry["step"] for entry in self.evaluations.history}

    def note(self, trained: TrainedModel, step: int, ended: bool) -> None:
        """Note in the run's directory that the run trains, or has ended."""
        if self.run_dir is not None:
            note_training(self.run_dir, step, ended, trained.declared.program.optimizers)

    @property
    def evaluator_does(self) -> bool:
        """Whether an evaluator task does the evaluations."""
        return "evaluator" in self._trainer._task.cluster.jobs

    def make_up(self, step: int) -> bool:
        """Do the evaluations up to a step that a chief before, which was killed, did not come to.

        Returns:
            Whether there were any.
        """
        if self.evaluations is None or self.run_dir is None or self.evaluator_does:
            return False
        steps = self._trainer._steps
        return self.evaluations.make_up(step, is_last=steps is not None and step >= steps)

    def unreported(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield step and metrics of the evaluations that callbacks have not heard of."""
        for entry in list(self.evaluations.history) if self.evaluations is not None else ():
            if entry["step"] not in self._reported:
                self._reported.add(entry["step"])
                yield entry["step"], entry["metrics"]

    def last_saved(self, model: Any) -> tuple[int, Any] | None:
        """Give the step of the newest checkpoint, and the model with its values; None where there is none."""
        prefix = None if self.run_dir is None else latest_checkpoint(self.run_dir, thorough=False)
        return None if prefix is None else (saved_step(prefix), load(prefix, model))

    def results(self) -> dict[str, Any]:
        """Return what a FitResult says of the run's directory and evaluations."""
        outcome = {} if self.evaluations is None else self.evaluations.outcome()
        return {"run_dir": self.run_dir, **outcome}


class ModelSaver:
    """Saves a model's Variables to checkpoints, and gives them values from there.

    Args:
        trained: The model.
        max_to_keep: How many checkpoints are kept.
    """

    #: See CheckpointSaver.
    saves_in_background = True

    def __init__(self, trained: TrainedModel, max_to_keep: int) -> None:
        self._program, self._step = trained.declared.program, trained.declared.step
        self._saveables = saveables_of_program(self._program)
        self._saver = ClusterSaver(max_to_keep)

    def save(self, session: ModelSession, path: str, global_step: Any = None) -> str:
        """Write a checkpoint, named by the step of its own snapshot; it is durable when this returns."""
        return self._saver.save(session.cluster, self._saveables, path, self._step)

    def start_save(self, session: ModelSession, path: str, global_step: Any = None) -> BackgroundSave:
        """Save without waiting for the disk: returns once the snapshot is taken."""
        cluster = session.cluster
        return BackgroundSave(
            lambda on_taken: self._saver.save(cluster, self._saveables, path, self._step, on_taken=on_taken),
            lambda: why_not_written(cluster, directory_of(path)),
        )

    def restore(self, session: ModelSession, prefix: str) -> None:
        """Give all Variables their values from a checkpoint."""
        self._saver.restore(session.cluster, lambda: self._program, self._saveables, prefix)


class _EvaluatingCheckpoints(CheckpointSaverListener):
    """Evaluates checkpoints as they are saved, or takes note of what the evaluator task found."""

    def __init__(self, trainer: Trainer, training: KeptTraining) -> None:
        assert training.evaluate is not None
        assert training.evaluations is not None
        self._trainer, self._training = trainer, training
        self._every, self._evaluations = training.evaluate.every_steps, training.evaluations
        self._directory = training.evaluations.directory
        self._last: int | None = None
        self._said = False

    def after_save(self, session: RunSession, global_step_value: int) -> bool:
        """See CheckpointSaverListener: says whether training should end."""
        if self._last is None:
            # The checkpoint of the beginning. Callbacks get it after the start.
            self._last, trainer = global_step_value, self._trainer
            made_up = self._training.make_up(global_step_value)
            trainer._stopped = trainer._stopped or (made_up and self._is_over())
            return False
        if global_step_value // self._every > self._last // self._every:
            self._last = global_step_value
            self._attend_to(global_step_value)
        return self._is_over()

    def end(self, session: RunSession, global_step_value: int) -> None:
        """See CheckpointSaverListener: the last checkpoint is evaluated too."""
        if not session.cluster.shutdown.asked and global_step_value > self._trainer._start:
            self._attend_to(global_step_value)

    def _attend_to(self, step: int) -> None:
        if self._training.evaluator_does:
            self._evaluations.read()
        elif not self._evaluations.has(step):
            self._evaluations.of_checkpoint(storage_for(self._directory).join(self._directory, f"model.ckpt-{step}"))
        self._trainer._report()

    def _is_over(self) -> bool:
        if not self._evaluations.is_over:
            return False
        if not self._said:
            # Another checkpoint, the last one, comes after the one that ends training.
            self._said, best = True, self._evaluations.best
            since = best["step"] if best is not None else "the first"
            _log_progress.info("Training ends: no better evaluation since step %s.", since)
        return True


def _loss_summary(loss: float) -> Summary:
    return Summary(value=[Summary.Value(tag="loss", simple_value=loss)])


def _check(run_dir: Any, evaluate: Any) -> None:
    """Refuse arguments of another type than their own."""
    if evaluate is not None and not isinstance(evaluate, Evaluate):
        raise InvalidArgumentError(f"evaluate is {reprlib.repr(evaluate)}; it must be a gs.Evaluate(batches, metrics).")
    if run_dir is not None and (not isinstance(run_dir, (str, os.PathLike)) or not os.fspath(run_dir)):
        raise InvalidArgumentError(f"run_dir is {run_dir!r}; it must be a path, or None to keep nothing.")
    if run_dir is not None and os.fspath(run_dir).startswith("~"):
        raise InvalidArgumentError(
            f"run_dir is {os.fspath(run_dir)!r}: only a shell expands ~. Give "
            f"os.path.expanduser({os.fspath(run_dir)!r})."
        )


def _try_to_write(run_dir: str) -> None:
    storage = storage_for(run_dir)
    try:
        storage.make_directories(run_dir)
        with leave_probe(storage, run_dir):
            pass
    except (OSError, OpError) as error:
        if is_full(error):
            # A chief that was started again: the others train meanwhile.
            _log.warning("There is no room in run_dir %r now: %s", run_dir, error)
            return
        raise InvalidArgumentError(
            f"run_dir {run_dir!r} cannot be written to: {error}. Give a directory that this user may write to, or "
            "None to keep nothing."
        ) from error

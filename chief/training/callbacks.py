"""Callbacks of `gs.fit` and `gs.Trainer`: told of steps, evaluations and the end, on the chief.

Those that log to MLflow and Weights & Biases import these when training begins.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.training_model import misfit, require_extra

if TYPE_CHECKING:
    from globalstep.chief.training.trainer import FitResult, Trainer


_log = logging.getLogger("globalstep")

#: What each method of a callback is called with.
_ARGUMENTS = {
    "on_start": ("trainer",),
    "on_step": ("trainer", "step", "loss"),
    "on_evaluate": ("trainer", "step", "metrics"),
    "on_end": ("trainer", "result"),
}


class Callback:
    """Base of callbacks; every method here does nothing. They are called on the chief, in the training thread."""

    def on_start(self, trainer: Trainer) -> None:
        """Act when training begins, or goes on from a checkpoint.

        Args:
            trainer: The trainer; its `global_step` is where training goes on.
        """

    def on_step(self, trainer: Trainer, step: int, loss: float) -> None:
        """Act after a step of the chief's own.

        Args:
            trainer: The trainer; `trainer.stop()` ends training.
            step: The global step.
            loss: The loss of the step's batch; `trainer.loss_parts` is what the loss function gave beside it.
        """

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """Act after an evaluation.

        Args:
            trainer: The trainer.
            step: The step of the checkpoint that was evaluated.
            metrics: Name -> number.
        """

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """Act when training ends.

        Args:
            trainer: The trainer.
            result: What came of it; None if it failed.
        """


def check_callbacks(callbacks: Any) -> None:
    """Refuse what is no list of callbacks, and methods of other arguments; warn of methods that nothing calls.

    Raises:
        InvalidArgumentError: If it is none, or a method cannot be called with its arguments.
    """
    if not isinstance(callbacks, (list, tuple)):
        raise InvalidArgumentError(f"callbacks is {callbacks!r}; it must be a list: callbacks=[gs.CSVLogger(path)].")
    if wrong := [item for item in callbacks if not isinstance(item, Callback)]:
        made = " It is a class: give one of it, made by calling it." if isinstance(wrong[0], type) else ""
        raise InvalidArgumentError(f"callbacks: {wrong[0]!r} is no gs.Callback.{made}")
    for callback in callbacks:
        _check_methods(callback)


def _check_methods(callback: Callback) -> None:
    kind = type(callback).__name__
    for name, arguments in _ARGUMENTS.items():
        if why := misfit(getattr(callback, name), *arguments):
            raise InvalidArgumentError(
                f"{kind}.{name} is called as {name}({', '.join(arguments)}): give it these arguments ({why})."
            )
    others = sorted(name for name in dir(type(callback)) if name.startswith("on_") and name not in _ARGUMENTS)
    if others:
        _log.warning(
            "%s has %s, which is never called: a callback has %s.", kind, ", ".join(others), ", ".join(_ARGUMENTS)
        )


class _Logger(Callback):
    """Logs the loss every so many steps, and evaluations."""

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps
        self._due = 0

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        raise TypeError(f"{type(self).__name__} must define _log().")

    def on_step(self, trainer: Trainer, step: int, loss: float) -> None:
        """See Callback."""
        if step >= self._due:
            self._due = step - step % self._every + self._every
            parts = {f"loss/{name}": value for name, value in trainer.loss_parts.items()}
            self._log({"loss": loss, **parts}, step)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """See Callback."""
        self._log({f"eval/{name}": value for name, value in metrics.items()}, step)


class CSVLogger(_Logger):
    """Writes a line for every so many steps of the chief, and for every evaluation, to a CSV file.

    The columns are step, name, value. A run that goes on after a restart adds to the file.

    Args:
        path: The file.
        every_steps: How many global steps lie between two lines of the loss.
    """

    def __init__(self, path: str | os.PathLike[str], every_steps: int = 100) -> None:
        super().__init__(every_steps)
        self._path = os.fspath(path)
        self._file: IO[str] | None = None

    def on_start(self, trainer: Trainer) -> None:
        """See Callback."""
        if self._file is not None:
            return
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        is_new = not os.path.exists(self._path)
        self._file = open(self._path, "a", newline="", buffering=1)  # noqa: SIM115 (closed in on_end)
        self._due = trainer.global_step
        if is_new:
            self._write("step", "name", "value")

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """See Callback."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._write(step, name, value)

    def _write(self, *row: Any) -> None:
        csv.writer(self._file).writerow(row)  # type: ignore[arg-type]


class MLflowLogger(_Logger):
    """Logs the loss and evaluations to a run of MLflow.

    Where MLflow keeps it, MLflow's own settings say: MLFLOW_TRACKING_URI, `mlflow.set_experiment`. A run that the
    program has begun is used, and left open; else one is begun, and ended with training.

    Args:
        every_steps: How many global steps lie between two values of the loss.
        run_name: Name of the run, where one is begun.
        params: What to log as parameters.
    """

    def __init__(
        self, every_steps: int = 100, *, run_name: str | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(every_steps)
        self._name = run_name
        self._params = dict(params or {})
        self._mlflow: Any = None
        self._is_ours = False

    def on_start(self, trainer: Trainer) -> None:
        """See Callback."""
        self._mlflow = require_extra("mlflow", "gs.MLflowLogger", "mlflow")
        self._is_ours = self._mlflow.active_run() is None
        if self._is_ours:
            self._mlflow.start_run(run_name=self._name)
        if self._params:
            self._mlflow.log_params(self._params)
        self._due = trainer.global_step

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """See Callback."""
        if self._is_ours and self._mlflow is not None:
            self._mlflow.end_run("FINISHED" if result is not None else "FAILED")

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(metrics), step=step)


class WandbLogger(_Logger):
    """Logs the loss and evaluations to a run of Weights & Biases.

    A run that the program has begun with `wandb.init` is used, and left open; else one is begun, and finished with
    training. Without a network: WANDB_MODE=offline.

    Args:
        every_steps: How many global steps lie between two values of the loss.
        **init: Arguments of `wandb.init`, where a run is begun: project, name, config.
    """

    def __init__(self, every_steps: int = 100, **init: Any) -> None:
        super().__init__(every_steps)
        self._init = init
        self._run: Any = None
        self._is_ours = False

    def on_start(self, trainer: Trainer) -> None:
        """See Callback."""
        wandb = require_extra("wandb", "gs.WandbLogger", "wandb")
        self._is_ours = wandb.run is None
        self._run = wandb.init(**self._init) if self._is_ours else wandb.run
        # Evaluations come after the loss of later steps, which wandb's own counter would drop.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")
        self._due = trainer.global_step

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """See Callback."""
        if self._is_ours and self._run is not None:
            self._run.finish(exit_code=0 if result is not None else 1)

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, "global_step": step})

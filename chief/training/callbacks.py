"""Callbacks of `gs.fit` and `gs.Trainer`: told of steps, evaluations and the end, on the chief.

Layer: chief.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.training_model import misfit

if TYPE_CHECKING:
    from globalstep.chief.training.trainer import FitResult, Trainer

__all__ = ["CSVLogger", "Callback", "Callbacks"]

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


class Callbacks(Callback):
    """Several callbacks, called in order. Warns of methods that look as if they were called, and are not.

    Args:
        callbacks: The callbacks.

    Raises:
        InvalidArgumentError: If a method cannot be called with what it is told.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            _check_methods(callback)

    def on_start(self, trainer: Trainer) -> None:
        """See Callback."""
        for callback in self._callbacks:
            callback.on_start(trainer)

    def on_step(self, trainer: Trainer, step: int, loss: float) -> None:
        """See Callback."""
        for callback in self._callbacks:
            callback.on_step(trainer, step, loss)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """See Callback."""
        for callback in self._callbacks:
            callback.on_evaluate(trainer, step, metrics)

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """See Callback."""
        for callback in self._callbacks:
            callback.on_end(trainer, result)


class CSVLogger(Callback):
    """Writes a line for every so many steps of the chief, and for every evaluation, to a CSV file.

    The columns are step, name, value. A run that goes on after a restart adds to the file.

    Args:
        path: The file.
        every_steps: How many global steps lie between two lines of the loss.
    """

    def __init__(self, path: str | os.PathLike[str], every_steps: int = 100) -> None:
        self._path = os.fspath(path)
        self._every = every_steps
        self._due = 0
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

    def on_step(self, trainer: Trainer, step: int, loss: float) -> None:
        """See Callback."""
        if step >= self._due:
            self._due = step - step % self._every + self._every
            self._write(step, "loss", loss)
            for name, value in trainer.loss_parts.items():
                self._write(step, f"loss/{name}", value)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """See Callback."""
        for name, value in metrics.items():
            self._write(step, f"eval/{name}", value)

    def on_end(self, trainer: Trainer, result: FitResult | None) -> None:
        """See Callback."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, *row: Any) -> None:
        csv.writer(self._file).writerow(row)  # type: ignore[arg-type]


def _check_methods(callback: Callback) -> None:
    """Refuse a callback with methods of other arguments, and warn of those that nothing calls."""
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

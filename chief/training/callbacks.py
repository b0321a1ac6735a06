"""Callbacks of `gs.fit` and `gs.Trainer`: told of steps, evaluations and the end, on the chief.

Layer: chief.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.training_model import misfit

if TYPE_CHECKING:
    from globalstep.chief.training.trainer import FitResult, Trainer

__all__ = ["Callback", "check_callbacks"]

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

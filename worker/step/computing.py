"""Calls a model's step: what goes wrong in it is the program's own, and is told with what may be its cause.

Layer: worker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.worker.step.model import Model, StepResult, Values

__all__ = ["Computing", "go_straight"]

_log = logging.getLogger("globalstep")


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
                given = {**values.dense, **values.rows}
                broken = [name for name, value in given.items() if not np.isfinite(value).all()]
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
    """Let an error's traceback go from who catches it straight to the loss function, where it came of one.

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

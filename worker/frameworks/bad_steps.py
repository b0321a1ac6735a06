"""Steps of a trainer whose gradients are not finite: counted, and after some in a row training ends.

Layer: worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from globalstep.errors import NotFiniteGradientError
from globalstep.wire.declarations import Outcome, OutcomeKind
from globalstep.worker.frameworks.training_model import Array

__all__ = ["BadSteps"]

_log = logging.getLogger("globalstep")


class BadSteps:
    """Counts the steps of one worker that are left out. Not thread-safe: a trainer belongs to one thread.

    Args:
        most: With how many in a row training ends; None for it to go on.
        worker: Whose they are, for messages.
        step: Gives the global step that this worker knows of.
    """

    def __init__(self, most: int | None, worker: str, step: Callable[[], int]) -> None:
        self._most, self._worker, self._step = most, worker, step
        # In a row: of pushes, and of local steps, of which a round of none is pushed all the same.
        self._dropped = self._left_out = 0
        self._all_left_out = 0
        self._seen: Outcome | None = None

    def settle(self, outcome: Outcome, name_of: Callable[[str], str]) -> None:
        """Count what became of a push, once; that it was dropped its session has said.

        Args:
            outcome: What became of it.
            name_of: Gives the parameter's name for that of a Variable.

        Raises:
            NotFiniteGradientError: If too many in a row were dropped for gradients that are not finite.
        """
        if outcome is self._seen:
            return
        self._seen = outcome
        if outcome.kind is OutcomeKind.ACCEPTED:
            self._dropped = 0
        elif outcome.kind is OutcomeKind.DROPPED_NAN:
            self._dropped += 1
            self._check(self._dropped, name_of(outcome.not_finite))

    def leaves_out(self, gradients: Mapping[Any, Array], name_of: Callable[[Any], str]) -> bool:
        """Whether a worker's own step is left out, since a gradient is not finite; says so.

        Args:
            gradients: Its gradients.
            name_of: Gives the parameter's name for a key of them.

        Raises:
            NotFiniteGradientError: If too many in a row are.
        """
        bad = next((key for key, gradient in gradients.items() if not np.isfinite(gradient).all()), None)
        if bad is None:
            self._left_out = 0
            return False
        self._left_out += 1
        self._all_left_out += 1
        self._check(self._left_out, name_of(bad))
        # Every power of two: a run may have many of them.
        if self._all_left_out & (self._all_left_out - 1) == 0:
            _log.warning(
                "The gradient of parameter %r in a local step of %s after global step %d is not finite; the step was "
                "left out (%d of this worker so far).",
                name_of(bad), self._worker, self._step(), self._all_left_out,
            )  # fmt: skip
        return True

    def _check(self, in_a_row: int, parameter: str) -> None:
        if self._most is not None and in_a_row >= self._most:
            raise NotFiniteGradientError(
                f"The gradient of parameter {parameter!r} was not finite on {self._worker} at global step "
                f"{self._step()}, in {in_a_row} steps in a row, while the loss was; none was applied, and "
                "training ends (max_bad_steps). sqrt, log, norm and division have such gradients at 0, and numbers "
                "beyond 3.4e38 are infinite as float32: add a small number inside, lower the rate, or look at the "
                "batches."
            )

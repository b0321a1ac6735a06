"""An evaluator task: it follows a run's checkpoints, and evaluates each that it finds, until the run has ended.

    RUN_DIR/training.json      {"ended": true, "step": 1000, "optimizers": {...}}: written by the chief; while it trains
                               "ended" is false

Layer: chief.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.training.evaluation import Evaluate, Evaluations
from globalstep.chief.training.saved_model import saved_step
from globalstep.errors import InvalidArgumentError, OpError
from globalstep.files.storage import Storage, atomic_write, is_full, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import Expr
from globalstep.worker.waits.polling_wait import PollingWait

_log = logging.getLogger("globalstep")

_FILE = "training.json"
#: How long a run that had ended before this task was started may yet go on.
_ENDED_BEFORE_SECS = 60.0


def note_training(run_dir: str, step: int, ended: bool, optimizers: Iterable[OptimizerDecl] = ()) -> None:
    """Note in the run's directory that the run trains, or has ended; its evaluator and the next run read it.

    Args:
        run_dir: The run's directory.
        step: The global step.
        ended: Whether it has ended.
        optimizers: Its optimizers: the log says which are others than before.
    """
    storage = storage_for(run_dir)
    noted = _described(optimizers)
    _log_changes(run_dir, step, _noted(storage, run_dir).get("optimizers", {}), noted)
    try:
        with atomic_write(storage, storage.join(run_dir, _FILE)) as file:
            file.write(json.dumps({"ended": ended, "step": step, "optimizers": noted}).encode())
    except (OpError, OSError) as error:
        if ended or not is_full(error):
            raise
        # An evaluator that does not find it waits for the run's end all the same, unless it has ended before.
        _log.warning("Could not write into %s that the run trains: %s", run_dir, error)


def _noted(storage: Storage, run_dir: str) -> dict[str, Any]:
    """Read what is noted; nothing where that cannot be read."""
    try:
        with storage.open_read(storage.join(run_dir, _FILE)) as file:
            notes = json.loads(file.read())
    except (OSError, OpError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


class Following:
    """Evaluates the checkpoints of a run as they come.

    Args:
        evaluate: What to evaluate.
        run_dir: The run's directory, which this task sees too.
        model: The model.
        loss_fn: The loss function.
        steps: The step at which the run stops, if that is known.
        clock: Where time comes from.

    Raises:
        InvalidArgumentError: Without something to evaluate, or a directory.
    """

    def __init__(
        self,
        evaluate: Evaluate | None,
        run_dir: str | None,
        model: Any,
        loss_fn: Callable[..., Any],
        steps: int | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if evaluate is None or run_dir is None:
            raise InvalidArgumentError(
                "This task is an evaluator, by TF_CONFIG: it evaluates the run's checkpoints, so gs.fit needs "
                "evaluate= and run_dir=, a directory that all tasks see."
            )
        self._dir = str(run_dir)
        self._steps = steps
        self._clock = clock
        self._storage = storage_for(self._dir)
        self.evaluations = Evaluations(evaluate, self._dir, model, loss_fn, in_place=True)
        self._ended_before = self._ended_at()

    def run(self) -> int:
        """Evaluate until the run has ended; the model has the values of the last checkpoint then.

        The chief tells its callbacks of what is found here.

        Returns:
            The step of the last checkpoint that was evaluated; 0 for none.
        """
        last, wait = 0, PollingWait(self._clock, math.inf)
        while True:
            prefix = self._newest()
            step = -1 if prefix is None else saved_step(prefix)
            if prefix is not None and step > 0 and not self.evaluations.has(step):
                try:
                    self.evaluations.of_checkpoint(prefix)
                except OpError:
                    # Deleted meanwhile, for a newer one: then there is one.
                    if self._newest() == prefix:
                        raise
                    continue
                last, wait = step, PollingWait(self._clock, math.inf)
            if self._is_over(step, wait.waited_secs):
                if prefix is not None and step != last:
                    # Evaluated by an evaluator before this one.
                    self.evaluations.bring(prefix)
                return max(last, step, 0)
            wait.pause(f"a checkpoint later than step {max(step, 0)} in {self._dir}, which the chief saves")

    def _is_over(self, step: int, waited_secs: float) -> bool:
        if self._steps is not None and step >= self._steps:
            return True
        ended = self._ended_at()
        if ended is None or ended != step:
            return False
        return ended != self._ended_before or waited_secs > _ENDED_BEFORE_SECS

    def _newest(self) -> str | None:
        return latest_checkpoint(self._dir, thorough=False) if self._storage.is_directory(self._dir) else None

    def _ended_at(self) -> int | None:
        """Give the step at which the run has ended; None while it trains."""
        notes = _noted(self._storage, self._dir)
        return int(notes["step"]) if notes.get("ended") else None


Noted = Mapping[str, Mapping[str, str]]


def _described(optimizers: Iterable[OptimizerDecl]) -> Noted:
    """Give each optimizer's rule and hyper-parameters as texts, by its name."""
    return {one.name: {"rule": one.kind} | {key: _text(value) for key, value in one.hypers.items()}
            for one in optimizers}  # fmt: skip


def _log_changes(run_dir: str, step: int, before: Noted, now: Noted) -> None:
    """Log what has changed in a run that goes on."""
    changes = [
        f"{key} of {name}: {now[name].get(key, 'none')} now, {before[name].get(key, 'none')} before"
        for name in now
        if name in before
        for key in {**now[name], **before[name]}
        if now[name].get(key) != before[name].get(key)
    ]
    if before and set(now) != set(before):
        changes.append(f"optimizers: {', '.join(now)} now, {', '.join(before)} before")
    if changes:
        _log.warning("The run in %s goes on from step %d with changes: %s.", run_dir, step, "; ".join(changes))


def _text(value: Expr) -> str:
    if value.op == "const":
        return f"{value.value:g}"
    return value.name if value.op == "name" else f"{value.op}({', '.join(map(_text, value.args))})"

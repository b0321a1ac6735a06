"""`gs.fit`: train a model on batches, alone or as a task of a cluster.

Layer: chief.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.chief_role import own_task
from globalstep.chief.training.batches import are_own, check_batches, parts_of
from globalstep.chief.training.model_run import replicas_of
from globalstep.chief.training.trainer import FitResult, Trainer
from globalstep.errors import InvalidArgumentError
from globalstep.roles import ENTRIES
from globalstep.runtime.log_format import write_to_stderr
from globalstep.worker.frameworks.training_model import number_of_at_least

if TYPE_CHECKING:
    from globalstep.chief.training.callbacks import Callback
    from globalstep.chief.training.evaluation import Evaluate, Following

__all__ = ["fit"]

_log = logging.getLogger("globalstep")


def fit(
    model: Any,
    loss_fn: Callable[..., Any],
    batches: Any,
    *,
    optimizer: Any,
    steps: int | None = None,
    epochs: int | None = None,
    run_dir: str | None = None,
    evaluate: Evaluate | None = None,
    callbacks: Sequence[Callback] = (),
    accumulate: int = 1,
    **options: Any,
) -> FitResult:
    """Train a model on batches.

    The same script trains alone, its parameter server in the process, and as a task of a cluster, which TF_CONFIG
    describes: under `globalstep launch` and every engine. A task that is a parameter server serves in this call, and
    does not return from it; one that is an evaluator evaluates the run's checkpoints until it has ended.

    Args:
        model: See `gs.Trainer`.
        loss_fn: See `gs.Trainer`.
        batches: See `Trainer.batches`; with `units` see `Trainer.unit`.
        optimizer: See `gs.Trainer`.
        steps: The global step to stop at, exactly; all workers' steps count.
        epochs: Or how often to go through the batches: by all workers together, or by each through its own. Without
            either: once.
        run_dir: See `gs.Trainer`.
        evaluate: See `gs.Trainer`.
        callbacks: See `gs.Trainer`.
        accumulate: Batches that make one step: their gradients are averaged.
        **options: Others of `gs.Trainer`, such as `seed` and `clip_grad_norm`.

    Returns:
        What came of it. `result.is_chief` says which task is to go on with it.

    Raises:
        InvalidArgumentError: For arguments that cannot be; says what to give instead.

    >>> import numpy as np
    >>> import globalstep as gs
    >>> def loss_fn(w, x, y):
    ...     error = x @ w - y
    ...     return np.mean(error**2), 2 * x.T @ error / len(x)
    >>> x = np.eye(3, dtype=np.float32)
    >>> result = gs.fit(np.zeros(3, np.float32), loss_fn, [(x, x @ [1, -2, 3])], optimizer=gs.optim.SGD(0.5), steps=50)
    >>> result.step, result.model.round(3).tolist()
    (50, [1.0, -2.0, 3.0])
    """
    check_batches(batches)
    _check_names(options)
    number_of_at_least(1, accumulate=accumulate, epochs=epochs)
    write_to_stderr()
    local, units, rounds = options.get("local_steps"), options.get("units"), None
    if local is not None or units is not None:
        from globalstep.worker.frameworks.step_options import LocalSteps, WorkUnits, batch_source

        if local is not None and accumulate != 1:
            raise InvalidArgumentError("Give accumulate or local_steps, not both: each batch is a step of its own.")
        if isinstance(units, WorkUnits):
            if accumulate != 1:
                raise InvalidArgumentError("Give accumulate or units, not both: a unit is one batch.")
            accumulate = units.count
            batch_source(batches, units.count)
        rounds = local if isinstance(local, LocalSteps) else None
    size = accumulate if rounds is None else rounds.every
    replicas = replicas_of(optimizer, rounds, units)
    together = size * (1 if replicas is None else replicas.count)
    task = own_task()
    if task.job == "ps":
        ENTRIES["serve"]()
        raise SystemExit(0)
    last = _last_step(batches, steps, epochs, together, apart=local is None and replicas is None)
    if units is not None and last is None:
        raise InvalidArgumentError("Give steps: with units, a function that gives their batches has no end.")
    if task.job == "evaluator":
        from globalstep.chief.training.evaluation import Following

        return _followed(Following(evaluate, run_dir, model, loss_fn, last))
    trainer = Trainer(
        model,
        loss_fn,
        optimizer=optimizer,
        steps=last,
        run_dir=run_dir,
        evaluate=evaluate,
        callbacks=callbacks,
        **options,
    )
    # To a step that was asked for, and one of several workers' contributions, batches are had again and again.
    passes = (epochs or 1) if steps is None and (last is None or replicas is None) else None
    with trainer:
        if units is not None:
            while not trainer.done:
                trainer.unit(batches)
        else:
            _go_through(trainer, batches, size, passes, steps)
    assert trainer.result is not None
    return trainer.result


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse an option that no Trainer has, with the name that was meant."""
    names = [*inspect.signature(fit).parameters, *inspect.signature(Trainer).parameters]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            meant = f" Did you mean {close[0]!r}?" if close else " The learning rate and such are the optimizer's."
            raise TypeError(f"gs.fit has no argument {name!r}.{meant}")


def _go_through(trainer: Trainer, batches: Any, size: int, epochs: int | None, steps: int | None) -> None:
    """Take steps of `size` batches until training is over, or the batches are."""
    parts = trainer.batches(batches, epochs=epochs, per_step=size)
    while group := list(itertools.islice(parts, size)):
        trainer.step(*group)
    if steps is not None and not trainer.done:
        _log.warning(
            "The batches ended at step %d of %d: an iterator is gone through once. Give a list, or a function that "
            "gives the iterator anew: lambda: zip(x, y).",
            trainer.global_step,
            steps,
        )


def _followed(following: Following) -> FitResult:
    """Evaluate the checkpoints of a run until it has ended."""
    step, evaluations = following.run(), following.evaluations
    outcome = evaluations.outcome()
    return FitResult(evaluations.model, step, run_dir=evaluations.directory, is_chief=False, **outcome)


def _last_step(batches: Any, steps: int | None, epochs: int | None, accumulate: int, apart: bool) -> int | None:
    """Give the step to stop at; None for the end of the batches.

    Args:
        batches: The batches.
        steps: As given.
        epochs: As given.
        accumulate: How many batches make a step.
        apart: Whether a worker goes through batches of its own to their end, however quick others are.
    """
    if steps is not None and epochs is not None:
        raise InvalidArgumentError("Give steps or epochs, not both.")
    if steps is not None:
        return steps
    if isinstance(batches, Iterator) and epochs is not None and epochs > 1:
        raise InvalidArgumentError(
            f"epochs is {epochs}, and batches an iterator, which can be gone through once. Give a list, or a function "
            "that gives the iterator anew: lambda: zip(x, y)."
        )
    try:
        size = len(batches) * parts_of(batches)
    except TypeError:
        return None
    if not size:
        raise InvalidArgumentError("batches gave no batch: is the dataset empty?")
    if apart and are_own(batches):
        return None
    return max(1, (epochs or 1) * size // accumulate)

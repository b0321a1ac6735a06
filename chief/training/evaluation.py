"""`gs.Evaluate`: metrics of checkpoints, the best checkpoint, and the end of a run that no longer improves.

Checkpoints are what is evaluated, by the chief when one is saved, or by an evaluator task that follows them: the same
code, the same numbers, and `gs.load` gives the very model that a number is of.

    RUN_DIR/evaluations.json      [{"step": 1000, "metrics": {"auc": 0.79}}, ...]
    RUN_DIR/best/                 the best checkpoint
    RUN_DIR/eval/                 the metrics for TensorBoard
    RUN_DIR/training.json         {"ended": true, "step": 1000, "optimizers": {...}}: written by the chief; while it
                                  trains "ended" is false
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from globalstep.chief.checkpoints.checkpoint import delete_checkpoint
from globalstep.chief.checkpoints.checkpoint_format import find_index, prefixes_in, read_index
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint, update_checkpoint_state
from globalstep.chief.events.events import SummaryFileWriter
from globalstep.chief.training.batches import check_batches
from globalstep.chief.training.saved_model import BEST, read_model, saved_step
from globalstep.errors import InvalidArgumentError, OpError
from globalstep.files.storage import Storage, atomic_write, directory_of, is_full, storage_for
from globalstep.files.tensorboard_protos import Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import Expr
from globalstep.worker.frameworks.training_model import (
    arguments,
    described,
    framework_of,
    number_of_at_least,
    parted,
    put_values,
)
from globalstep.worker.waits.polling_wait import PollingWait

_log = logging.getLogger("globalstep")
_log_progress = logging.getLogger("globalstep.progress")

_FILE = "evaluations.json"
_COPY_BYTES = 16 << 20

_NO_BATCH = (
    "There is no batch to evaluate on. Each evaluation goes through the batches anew, an iterator has them once: give "
    "a list, a DataLoader, or a function that gives an iterator."
)


class Evaluate:
    """Evaluation during training: what to evaluate, how often, and what follows from it.

    Args:
        batches: Batches to evaluate on, as those of `gs.fit`; gone through anew each time.
        metrics: Name -> function. With `predict` a function gets what that gave for all batches, joined, as arrays:
            those of sklearn.metrics fit. Without it a function is called as `fn(model, batches)`. None for "loss", the
            mean of the loss function over the batches.
        predict: Called as `predict(model, *batch)`; gives a tuple of tensors or arrays, such as labels and scores.
        every_steps: Evaluate every so many global steps, and at the end.
        best: The metric by which the best checkpoint is kept in RUN_DIR/best; default the first.
        mode: "max" or "min", which is better; default "min" for a metric whose name ends with "loss", else "max".
        patience: Stop training after so many evaluations in a row without a better one; None for never.
        ema: Evaluate the moving averages that `gs.fit(ema_decay=...)` keeps.

    Raises:
        InvalidArgumentError: For arguments that cannot be.
    """

    def __init__(
        self,
        batches: Any,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        *,
        predict: Callable[..., Any] | None = None,
        every_steps: int = 1000,
        best: str | None = None,
        mode: str | None = None,
        patience: int | None = None,
        ema: bool = False,
    ) -> None:
        check_batches(batches)
        if metrics is not None and not (
            isinstance(metrics, Mapping) and metrics and all(map(callable, metrics.values()))
        ):
            raise InvalidArgumentError('metrics must be functions by name: {"auc": roc_auc_score}.')
        names = ["loss"] if metrics is None else list(metrics)
        if predict is not None and metrics is None:
            raise InvalidArgumentError("predict gives what metrics are computed from: give metrics too.")
        number_of_at_least(1, every_steps=every_steps, patience=patience)
        if mode not in (None, "min", "max"):
            raise InvalidArgumentError(f"mode is {mode!r}; it must be 'min' or 'max'.")
        self.best = best or names[0]
        if self.best not in names:
            raise InvalidArgumentError(f"best is {best!r}; it must be one of the metrics: {', '.join(names)}.")
        self.batches = batches
        self.metrics = metrics
        self.predict = predict
        self.every_steps = every_steps
        self.mode = mode or ("min" if self.best.endswith("loss") else "max")
        self.patience = patience
        self.ema = ema

    def of_model(self, model: Any, loss_fn: Callable[..., Any]) -> dict[str, float]:
        """Evaluate a model, as it is.

        Args:
            model: A module, or parameters.
            loss_fn: The loss function, for the metric "loss".

        Returns:
            Name -> number.

        Raises:
            InvalidArgumentError: If there is no batch, or a metric gives no number.
        """
        with _quiet(model):
            if self.metrics is None:
                return {"loss": self._mean_loss(model, loss_fn)}
            if self.predict is None:
                return {
                    name: _number(name, _called(f"The metric {name!r} is called as fn(model, batches).", fn, model,
                                                self._batches()))
                    for name, fn in self.metrics.items()
                }  # fmt: skip
            columns: list[tuple[Any, ...]] = []
            for batch in self._batches():
                made = _called("predict is called as predict(model, *batch).", self.predict, model, *arguments(batch))
                columns.append(tuple(map(_array, made if isinstance(made, (tuple, list)) else (made,))))
            if not columns:
                raise InvalidArgumentError(_NO_BATCH)
            joined = [np.concatenate([np.atleast_1d(part) for part in parts]) for parts in zip(*columns, strict=True)]
            called = "is called with what predict gave, joined:"
            return {name: _number(name, _called(f"The metric {name!r} {called} {described(joined)}.", fn, *joined))
                    for name, fn in self.metrics.items()}  # fmt: skip

    def is_better(self, value: float, than: float | None) -> bool:
        """Say whether a value of the metric `best` is better than another; NaN never is."""
        if than is None or value != value:
            return value == value
        return value > than if self.mode == "max" else value < than

    def _batches(self) -> Any:
        return self.batches() if callable(self.batches) else self.batches

    def _mean_loss(self, model: Any, loss_fn: Callable[..., Any]) -> float:
        total, count = 0.0, 0
        for batch in self._batches():
            result = loss_fn(model, *arguments(batch))
            # Numpy's gradients, and what is only logged, stand beside the loss.
            loss, _ = parted(result)
            loss, _ = parted(loss[0] if isinstance(loss, (tuple, list)) else loss)
            size = _length(batch)
            total, count = total + _number("loss", loss) * size, count + size
        if not count:
            raise InvalidArgumentError(_NO_BATCH)
        return total / count


class Evaluations:
    """The evaluations of a run: done, written down, and judged.

    Args:
        evaluate: What to evaluate; None to look at what others did.
        run_dir: Where checkpoints are, and results go.
        model: The model; a copy is evaluated.
        loss_fn: The loss function.
        in_place: Evaluate the model itself, where nothing trains it.

    Attributes:
        model: The model that was evaluated last; of one with parameters as arrays these are new.
    """

    def __init__(
        self, evaluate: Evaluate, run_dir: str, model: Any, loss_fn: Callable[..., Any], in_place: bool = False
    ) -> None:
        self._evaluate = evaluate
        self.directory = self._dir = run_dir
        self.model = model
        self._is_copy = in_place
        self._loss_fn = loss_fn
        self._storage = storage_for(run_dir)
        self.history: list[dict[str, Any]] = []
        self.read()

    def read(self) -> None:
        """Read what has been evaluated so far, by this task or another."""
        path = self._storage.join(self._dir, _FILE)
        if not self._storage.exists(path):
            return
        try:
            with self._storage.open_read(path) as file:
                self.history = list(json.loads(file.read()))
        except ValueError as error:
            _log.warning("%s cannot be read, and begins anew: %s", path, error)

    def forget_after(self, step: int) -> None:
        """Leave out evaluations of steps that the run has gone back behind."""
        self.history = [entry for entry in self.history if entry["step"] <= step]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation; None before the first."""
        best: dict[str, Any] | None = None
        for entry in self.history:
            value = entry["metrics"].get(self._evaluate.best)
            if value is not None and self._evaluate.is_better(
                value, best["metrics"][self._evaluate.best] if best else None
            ):
                best = entry
        return best

    def outcome(self) -> dict[str, Any]:
        """Return what a FitResult says of them."""
        return {
            "history": list(self.history),
            "metrics": self.history[-1]["metrics"] if self.history else {},
            "best_step": None if self.best is None else self.best["step"],
        }

    @property
    def is_over(self) -> bool:
        """Whether training should end, after so many evaluations without a better one."""
        patience, best = self._evaluate.patience, self.best
        if patience is None or best is None:
            return False
        since = [entry for entry in self.history if entry["step"] > best["step"]]
        return len(since) >= patience

    def has(self, step: int) -> bool:
        """Say whether a step has been evaluated."""
        return any(entry["step"] == step for entry in self.history)

    def of_checkpoint(self, prefix: str) -> dict[str, float]:
        """Evaluate a checkpoint, and write the result to the history."""
        step = saved_step(prefix)
        self.bring(prefix)
        metrics = self._evaluate.of_model(self.model, self._loss_fn)
        self.history = [entry for entry in self.history if entry["step"] != step]
        self.history.append({"step": step, "metrics": metrics})
        shown = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        is_best = self.best is self.history[-1]
        _log_progress.info("evaluation at step %d: %s%s", step, shown, " (best so far)" if is_best else "")
        # The history comes last: what it does not have is evaluated again by a run that goes on.
        if is_best:
            _keep_best(self._storage, prefix, self._storage.join(self._dir, BEST))
        self._write(step, metrics)
        return metrics

    def make_up(self, step: int, is_last: bool) -> bool:
        """Do the evaluations that were cut off, and see to it that the best checkpoint is kept.

        Args:
            step: That of the checkpoint from which the run goes on.
            is_last: Whether it is the last step, which is always evaluated.

        Returns:
            Whether there were any.
        """
        self.forget_after(step)
        every, made_up = self._evaluate.every_steps, False
        for prefix in sorted(prefixes_in(self._storage, self._dir), key=saved_step):
            at, before = saved_step(prefix), max((entry["step"] for entry in self.history), default=0)
            if before < at <= step and (at // every > before // every or (is_last and at == step)):
                _log.info("The evaluation at step %d was cut off, and is done now.", at)
                self.of_checkpoint(prefix)
                made_up = True
        self._mend_best()
        return made_up

    def _mend_best(self) -> None:
        """Keep the checkpoint that is the best by the history, where another one is kept."""
        best, directory = self.best, self._storage.join(self._dir, BEST)
        if best is None:
            return
        steps = [saved_step(prefix) for prefix in prefixes_in(self._storage, directory)]
        if steps == [best["step"]]:
            return
        for prefix in prefixes_in(self._storage, self._dir):
            if saved_step(prefix) == best["step"]:
                _keep_best(self._storage, prefix, directory)
                return
        _log.warning(
            "%s has the checkpoint of step %s, and the best evaluation is that of step %d, whose checkpoint is gone.",
            directory,
            ", ".join(map(str, steps)) or "none",
            best["step"],
        )

    def bring(self, prefix: str) -> None:
        """Bring the values of a checkpoint into the model that is evaluated."""
        values = read_model(prefix, self._evaluate.ema)
        if not self._is_copy and framework_of(self.model) == "torch":
            from globalstep.worker.frameworks.torch_embedding import copied_without_tables

            self.model = copied_without_tables(self.model)
        self._is_copy = True
        self.model = put_values(self.model, values)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        with atomic_write(self._storage, self._storage.join(self._dir, _FILE)) as file:
            file.write(json.dumps(self.history, indent=1).encode())
        with SummaryFileWriter(self._storage.join(self._dir, "eval")) as writer:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            writer.add_summary(Summary(value=values), step)


def _keep_best(storage: Storage, prefix: str, directory: str) -> None:
    """Copy a checkpoint, its index last, and delete the one before it."""
    storage.make_directories(directory)
    index = find_index(storage, prefix)
    assert index is not None
    source = directory_of(prefix)
    target = storage.join(directory, prefix[len(source) :].lstrip("/"))
    names = [file.file for file in read_index(storage, prefix).files]
    for path in (*(storage.join(source, name) for name in names), index):
        place = storage.join(directory, path[len(directory_of(path)) :].lstrip("/"))
        with storage.open_read(path) as file, atomic_write(storage, place) as copied:
            while piece := file.read(_COPY_BYTES):
                copied.write(piece)
    update_checkpoint_state(directory, target, [target], storage=storage, save_relative_paths=True)
    for other in prefixes_in(storage, directory):
        if other != target:
            delete_checkpoint(other, storage)


@contextlib.contextmanager
def _quiet(model: Any) -> Iterator[None]:
    """Put a module into `eval()`, without gradients, for a while."""
    if framework_of(model) != "torch":
        yield
        return
    import torch

    from globalstep.worker.frameworks.torch_module import in_eval

    with in_eval(model), torch.no_grad():
        yield


def _called(how: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's, and say how it is called if it fails."""
    try:
        return function(*args)
    except Exception as error:
        error.add_note(f"In an evaluation. {how}")
        raise


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _number(name: str, value: Any) -> float:
    array = _array(value)
    if array.shape not in ((), (1,)) or array.dtype.kind not in "fiub":
        text = described(value) if not isinstance(value, numbers.Number) else repr(value)
        raise InvalidArgumentError(f"The metric {name!r} must be a real number; its function gave {text}.")
    return float(array.reshape(()))


def _length(batch: Any) -> int:
    first = arguments(batch)[0] if arguments(batch) else None
    if isinstance(first, Mapping):
        first = next(iter(first.values()), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else 1


_NOTES = "training.json"
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
        with atomic_write(storage, storage.join(run_dir, _NOTES)) as file:
            file.write(json.dumps({"ended": ended, "step": step, "optimizers": noted}).encode())
    except (OpError, OSError) as error:
        if ended or not is_full(error):
            raise
        # An evaluator that does not find it waits for the run's end all the same, unless it has ended before.
        _log.warning("Could not write into %s that the run trains: %s", run_dir, error)


def _noted(storage: Storage, run_dir: str) -> dict[str, Any]:
    """Read what is noted; nothing where that cannot be read."""
    try:
        with storage.open_read(storage.join(run_dir, _NOTES)) as file:
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

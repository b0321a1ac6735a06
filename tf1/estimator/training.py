"""`train_and_evaluate`: an Estimator's run in the role that TF_CONFIG gives this process.

Layer: tf1. Source of behaviour and texts: TensorFlow 1.15 `tf.estimator.train_and_evaluate`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import RunSession
from globalstep.deploy.server import Server
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.estimator.estimator import Estimator
from globalstep.tf1.estimator.exporter import Exporter
from globalstep.tf1.estimator.model_fn import checked_hooks
from globalstep.tf1.estimator.run_config import RunConfig, TaskType

_log = logging.getLogger("globalstep")
#: A worker begins so much later than the one before it, and never later than the second.
_DELAY_SECS, _MOST_DELAY_SECS = 5, 60
#: What is said of a checkpoint that does not come, again and again.
_WARN_SECS = 600.0
#: An evaluator without a throttle looks for a checkpoint so often.
_POLL_SECS = 1.0


class _TrainSpec(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[SessionRunHook, ...]
    saving_listeners: tuple[CheckpointSaverListener, ...]


class TrainSpec(_TrainSpec):
    """Training options of `train_and_evaluate`.

    Args:
        input_fn: As for `Estimator.train`.
        max_steps: The step to train to; None for without end.
        hooks: Hooks of every task that trains.
        saving_listeners: Called by the chief around each checkpoint.

    Raises:
        ValueError: If `max_steps` is not positive.
        TypeError: For what is no function, hook or listener.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> TrainSpec:
        """Check what is given."""
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn}")
        if max_steps is not None and max_steps <= 0:
            raise ValueError(f"Must specify max_steps > 0, given: {max_steps}")
        listeners = tuple(saving_listeners or ())
        for listener in listeners:
            if not isinstance(listener, CheckpointSaverListener):
                raise TypeError(f"All saving_listeners must be `CheckpointSaverListener` instances, given: {listener}")
        return super().__new__(cls, input_fn, max_steps, checked_hooks(hooks), listeners)


class _EvalSpec(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[SessionRunHook, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalSpec):
    """Evaluation and export options of `train_and_evaluate`.

    Args:
        input_fn: As for `Estimator.evaluate`.
        steps: As for `Estimator.evaluate`.
        name: As for `Estimator.evaluate`.
        hooks: As for `Estimator.evaluate`.
        exporters: An Exporter, or several with different names.
        start_delay_secs: An evaluator waits so long at first.
        throttle_secs: Evaluations begin at least so far apart.

    Raises:
        ValueError: For numbers out of range, or exporters of one name.
        TypeError: For what is no function, string, hook or exporter.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        """Check what is given."""
        if not callable(input_fn):
            raise TypeError(f"`input_fn` must be callable, given: {input_fn}")
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name}")
        for what, secs in (("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs)):
            if secs < 0:
                raise ValueError(f"Must specify {what} >= 0, given: {secs}")
        return super().__new__(
            cls, input_fn, steps, name, checked_hooks(hooks), _exporters(exporters), start_delay_secs, throttle_secs
        )


def _exporters(value: Any) -> tuple[Exporter, ...]:
    if value is None:
        return ()
    try:
        exporters = (value,) if isinstance(value, Exporter) else tuple(value)
    except TypeError:
        exporters = (None,)
    if not all(isinstance(one, Exporter) for one in exporters):
        raise TypeError(f"`exporters` must be an Exporter, an iterable of Exporter, or `None`, found {value}.")
    names = [one.name for one in exporters]
    if not all(names):
        raise ValueError(f"An Exporter cannot have a name that is `None` or empty. All exporter names: {names}")
    if len(set(names)) < len(names):
        raise ValueError(
            f"`exporters` must have unique names. Such a name cannot be `None`. All exporter names: {names}"
        )
    return exporters


class _Evaluator:
    """Evaluates and exports each new checkpoint once."""

    def __init__(self, estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, clock: Clock) -> None:
        self._estimator, self._train_spec, self._spec, self._clock = estimator, train_spec, eval_spec, clock
        self._last: str | None = None
        self._warned_at = -_WARN_SECS
        #: What came of the last evaluation, and of its exports.
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] = []

    @property
    def is_final(self) -> bool:
        """Whether the last evaluation was of the last step."""
        most = self._train_spec.max_steps
        return bool(self.metrics and most and self.metrics["global_step"] >= most)

    def evaluate(self) -> bool:
        """Evaluate and export the newest checkpoint; return whether there was a new one."""
        path = self._estimator.latest_checkpoint()
        if path is None or path == self._last:
            now = self._clock.monotonic()
            if now - self._warned_at > _WARN_SECS:
                self._warned_at = now
                if path is None:
                    _log.warning("Estimator is not trained yet. Will start an evaluation when a checkpoint is ready.")
                else:
                    _log.warning("No new checkpoint ready for evaluation since %s.", path)
            return False
        spec = self._spec
        self.metrics = self._estimator.evaluate(
            spec.input_fn, steps=spec.steps, name=spec.name, checkpoint_path=path, hooks=spec.hooks
        )
        self._last, self._warned_at = path, -_WARN_SECS
        self.exports = [
            one.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", one.name),
                checkpoint_path=path,
                eval_result=self.metrics,
                is_the_final_export=self.is_final,
            )
            for one in spec.exporters
        ]
        return True


class _EvaluateCheckpoints(CheckpointSaverListener):
    """Evaluates after checkpoints that are far enough apart, and after the last."""

    def __init__(self, evaluator: _Evaluator, throttle_secs: float) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs

    def begin(self) -> None:
        self._timer = SecondOrStepTimer(every_secs=self._throttle_secs)
        self._is_first = True

    def after_save(self, session: RunSession, global_step_value: int) -> None:
        """Evaluate if that is due; not after the first save, before which nothing was trained."""
        if self._is_first:
            self._is_first = False
        elif self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value)
        else:
            _log.info("Skip the current checkpoint eval due to throttle secs (%s secs).", self._throttle_secs)

    def end(self, session: RunSession, global_step_value: int) -> None:
        """Evaluate the last checkpoint, unless that is done."""
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate(global_step_value)

    def _evaluate(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        self._evaluator.evaluate()


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, *, clock: Clock = SYSTEM_CLOCK
) -> Any:
    """Train and evaluate an Estimator, in the role that TF_CONFIG gives this process.

    Without TF_CONFIG it trains and evaluates here, after each checkpoint and at the end. In a cluster the chief (or
    master) and the workers train, the parameter servers serve until the job is done, an evaluator evaluates every new
    checkpoint until it has seen that of the last step; a master evaluates between its own steps.

    Args:
        estimator: The Estimator.
        train_spec: How to train.
        eval_spec: How to evaluate and export.
        clock: Time.

    Returns:
        Without a cluster: the last evaluation's metrics, and what its exporters gave. Else None.

    Raises:
        TypeError: For other types of arguments.
        ValueError: For a role that there is none of.
    """
    for what, value, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"`{what}` must have type `tf.estimator.{kind.__name__}`. Got: {type(value)}")
    config, job = estimator.config, estimator.config.task_type
    evaluator = _Evaluator(estimator, train_spec, eval_spec, clock)
    listeners = list(train_spec.saving_listeners)
    evaluates = _EvaluateCheckpoints(evaluator, eval_spec.throttle_secs)
    if job == TaskType.EVALUATOR:
        if config.task_id > 0:
            raise ValueError(
                "For distributed training, there can only be one `evaluator` task (with task id 0).  Given task id "
                f"{config.task_id}"
            )
        _evaluate_until_the_end(evaluator, eval_spec, clock)
        return None
    if not config.cluster_spec:
        _log.info("Running training and evaluation locally (non-distributed).")
        _train(estimator, train_spec, [*listeners, evaluates])
        return evaluator.metrics, evaluator.exports
    if job not in (TaskType.CHIEF, TaskType.MASTER, TaskType.WORKER, TaskType.PS):
        raise ValueError(
            f"Task type {job} is not supported. Supported task types are chief, evaluator, master, ps and worker."
        )
    server = Server(config.cluster_spec, config.task_type, config.task_id) if config.master else None
    if job == TaskType.PS:
        assert server is not None
        server.join()
    try:
        if job == TaskType.WORKER:
            listeners = []
            _wait_for_turn(config, clock)
        elif job == TaskType.MASTER:
            listeners.append(evaluates)
        _train(estimator, train_spec, listeners)
    finally:
        if server is not None:
            server.stop()
    return None


def _train(estimator: Estimator, spec: TrainSpec, listeners: list[CheckpointSaverListener]) -> None:
    estimator.stays = False
    estimator.train(spec.input_fn, hooks=spec.hooks, max_steps=spec.max_steps, saving_listeners=listeners)


def _wait_for_turn(config: RunConfig, clock: Clock) -> None:
    """Have a worker begin later than those before it, so that the first steps are few workers'."""
    most = config.experimental_max_worker_delay_secs
    secs = min(_MOST_DELAY_SECS if most is None else most, (config.task_id + 1) * _DELAY_SECS)
    if secs > 0:
        _log.info("Waiting %d secs before starting training.", secs)
        clock.sleep(secs)


def _evaluate_until_the_end(evaluator: _Evaluator, spec: EvalSpec, clock: Clock) -> None:
    """Evaluate new checkpoints, up to the checkpoint of the last step."""
    if spec.start_delay_secs:
        _log.info("Waiting %f secs before starting eval.", spec.start_delay_secs)
        clock.sleep(spec.start_delay_secs)
    while True:
        began = clock.monotonic()
        evaluator.evaluate()
        if evaluator.is_final:
            _log.info("Exiting evaluation: the checkpoint of the last step has been evaluated.")
            return
        left = spec.throttle_secs - (clock.monotonic() - began)
        clock.sleep(max(left, _POLL_SECS))

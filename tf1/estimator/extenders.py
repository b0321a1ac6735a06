"""Estimators from estimators: more metrics, and features that predictions pass on; and hooks that stop early.

Layer: tf1. Source of behaviour and texts: TensorFlow 1.15 `tf.contrib.estimator` and `tf.estimator.experimental`.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

from globalstep import dtypes
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.tf1.estimator.estimator import Estimator
from globalstep.tf1.estimator.exporter import scalars_of
from globalstep.tf1.estimator.model_fn import EstimatorSpec, ModeKeys, PredictOutput
from globalstep.tf1.graph.callables import fn_args
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops import clipping, constant_ops, parsing_ops

_log = logging.getLogger("globalstep")


def _extended(estimator: Estimator, model_fn: Callable[..., EstimatorSpec]) -> Estimator:
    """Return an Estimator with another model function, and the same directory and configuration."""
    return Estimator(model_fn, estimator.model_dir, estimator.config)


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Return an Estimator with more metrics.

    Args:
        estimator: The Estimator.
        metric_fn: Function of `features`, `labels`, `predictions` and `config`, of which it has those it needs, that
            gives metrics as `eval_metric_ops` has them; they replace those of the same name.

    Raises:
        ValueError: If it has other arguments.
    """
    names = fn_args(metric_fn)
    others = set(names) - {"features", "labels", "predictions", "config"}
    if others:
        raise ValueError(f"metric_fn ({metric_fn}) has following not expected args: {sorted(others)}")

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        arguments = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        more = metric_fn(**{name: arguments[name] for name in names})
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **more})

    return _extended(estimator, model_fn)


def forward_features(estimator: Estimator, keys: Any = None, sparse_default_values: Any = None) -> Estimator:
    """Return an Estimator whose predictions have some features too, so that they can be told apart.

    Args:
        estimator: An Estimator that predicts a dict.
        keys: Name, or names, of the features; default all.
        sparse_default_values: Name of a SparseTensor -> what it is filled with; default 0, or "".

    Raises:
        ValueError: For a name that is no feature, or is a prediction.
    """
    wanted = [keys] if isinstance(keys, str) else keys
    if wanted is not None and not isinstance(wanted, (list, tuple)):
        raise TypeError(f"keys should be either a string or a list of strings. Given: {type(keys)}")
    for key in wanted or ():
        if not isinstance(key, str):
            raise TypeError(f"All items in the given keys list should be a string. There exist an item with: {key}")
    defaults = sparse_default_values or {}

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.PREDICT:
            return spec
        predictions = spec.predictions
        if not isinstance(predictions, dict):
            raise ValueError(f"Predictions should be a dict to be able to forward features. Given: {type(predictions)}")
        added: dict[str, Any] = {}
        for key in list(features) if wanted is None else wanted:
            if key not in features:
                raise ValueError(
                    f'keys should be exist in features. Key "{key}" is not in features dict. features dict has '
                    f"following keys: {list(features)}. Please check the argument keys."
                )
            if key in predictions:
                raise ValueError(f"Cannot forward feature key ({key}). Since it does exist in predictions.")
            value = features[key]
            if isinstance(value, SparseTensor):
                default = defaults.get(key, "" if value.dtype == dtypes.string else 0)
                added[key] = parsing_ops.sparse_tensor_to_dense(value, default_value=default)
            elif key in defaults:
                raise ValueError(f"Feature ({key}) is expected to be a `SparseTensor`.")
            else:
                added[key] = constant_ops.convert_to_tensor(value)
        outputs = {
            name: PredictOutput({**output.outputs, **added}) if isinstance(output, PredictOutput) else output
            for name, output in spec.export_outputs.items()
        }
        return spec._replace(predictions={**predictions, **added}, export_outputs=outputs)

    return _extended(estimator, model_fn)


def clip_gradients_by_norm(optimizer: Any, clip_norm: float) -> Any:
    """Return an optimizer that clips the norm of all gradients together before they are applied."""

    class ClippingOptimizer(type(optimizer)):  # type: ignore[misc]
        """The optimizer, with gradients that are clipped."""

        def __init__(self) -> None:
            self.__dict__.update(optimizer.__dict__)

        def get_name(self) -> str:
            """Return the name that its slots and operations have."""
            return f"ClipByNorm{optimizer.get_name()}"

        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            clipped, _ = clipping.clip_by_global_norm(gradients, clip_norm)
            return super().apply_gradients(list(zip(clipped, variables, strict=True)), global_step, name)

    return ClippingOptimizer()


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """Return what evaluations have written: step -> metric -> value, in order of steps."""
    metrics: dict[int, dict[str, float]] = {}
    names = sorted(os.listdir(eval_dir)) if os.path.isdir(eval_dir) else []
    for name in names:
        if ".tfevents." in name:
            for step, values in scalars_of(os.path.join(eval_dir, name)):
                metrics.setdefault(step, {}).update(values)
    return dict(sorted(metrics.items()))


class _StopEarly(SessionRunHook):
    """Asks now and then whether training is to stop."""

    def __init__(self, should_stop: Callable[[], bool], every_secs: float | None, every_steps: int | None) -> None:
        self._should_stop = should_stop
        self._timer = SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)
        self._runs = 0

    def before_run(self, run_context: Any) -> None:
        """Stop, if it is time to ask and the answer is yes."""
        if self._timer.should_trigger_for_step(self._runs):
            self._timer.update_last_triggered_step(self._runs)
            if self._should_stop():
                _log.info("Requesting early stopping at run %d of this task.", self._runs)
                run_context.request_stop()
        self._runs += 1


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Return a hook that ends training once a function says so.

    Args:
        estimator: The Estimator.
        should_stop_fn: The function.
        run_every_secs: Seconds between calls of it.
        run_every_steps: Or runs between them; then `run_every_secs` is None.

    Raises:
        TypeError: If it is no function.
        ValueError: If not exactly one of both is given.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"`estimator` must have type `tf.estimator.Estimator`. Got: {type(estimator)}")
    if not callable(should_stop_fn):
        raise TypeError("`should_stop_fn` must be callable.")
    if (run_every_secs is None) == (run_every_steps is None):
        raise ValueError("Only one of `run_every_secs` and `run_every_steps` must be set.")
    return _StopEarly(should_stop_fn, run_every_secs, run_every_steps)


def _metric_hook(
    is_enough: Callable[[list[tuple[int, float]]], bool],
    estimator: Estimator,
    metric_name: str,
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> SessionRunHook:
    """Return a hook that ends training once the steps and values of a metric are enough."""
    where = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        results = read_eval_metrics(where).items()
        history = [(step, one[metric_name]) for step, one in results if step >= min_steps and metric_name in one]
        return is_enough(history)

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def _reaches(is_beyond: Callable[[float, float], bool], metric_name: str, threshold: float) -> Callable[..., bool]:
    """Return a function that says whether a metric has gone beyond a threshold."""

    def is_enough(history: list[tuple[int, float]]) -> bool:
        for step, value in history:
            if is_beyond(value, threshold):
                _log.info("At step %d, metric %r has reached %s.", step, metric_name, value)
                return True
        return False

    return is_enough


def _rests(is_better: Callable[[float, float], bool], metric_name: str, most_steps: int) -> Callable[..., bool]:
    """Return a function that says whether a metric has not got better for so many steps."""

    def is_enough(history: list[tuple[int, float]]) -> bool:
        best_step, best = history[0] if history else (0, 0.0)
        for step, value in history[1:]:
            if is_better(value, best):
                best_step, best = step, value
            elif step - best_step >= most_steps:
                _log.info("Metric %r has not got better than %s since step %d.", metric_name, best, best_step)
                return True
        return False

    return is_enough


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Return a hook that ends training once a metric of the evaluations is higher than a threshold."""
    is_enough = _reaches(operator.gt, metric_name, threshold)
    return _metric_hook(is_enough, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Return a hook that ends training once a metric of the evaluations is lower than a threshold."""
    is_enough = _reaches(operator.lt, metric_name, threshold)
    return _metric_hook(is_enough, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Return a hook that ends training once a metric has not increased for so many steps."""
    is_enough = _rests(operator.gt, metric_name, max_steps_without_increase)
    return _metric_hook(is_enough, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Return a hook that ends training once a metric has not decreased for so many steps."""
    is_enough = _rests(operator.lt, metric_name, max_steps_without_decrease)
    return _metric_hook(is_enough, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)

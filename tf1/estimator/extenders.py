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
from globalstep.chief.events.events import summary_iterator
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.tf1.estimator.estimator import Estimator
from globalstep.tf1.estimator.input_fns import argument_names
from globalstep.tf1.estimator.model_fn import EstimatorSpec, ModeKeys, PredictOutput
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops import clipping, constant_ops, parsing_ops

__all__ = [
    "add_metrics",
    "clip_gradients_by_norm",
    "forward_features",
    "make_early_stopping_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

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
    names = argument_names(metric_fn)
    others = set(names) - {"features", "labels", "predictions", "config"}
    if others:
        raise ValueError(f"metric_fn ({metric_fn}) has following not expected args: {sorted(others)}")

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        given = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        more = metric_fn(**{name: given[name] for name in names})
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

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator.model_fn(features, labels, mode, config)
        predictions = spec.predictions
        if mode != ModeKeys.PREDICT:
            return spec
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
            if not isinstance(value, SparseTensor):
                if key in (sparse_default_values or {}):
                    raise ValueError(f"Feature ({key}) is expected to be a `SparseTensor`.")
                value = constant_ops.convert_to_tensor(value)
            else:
                default = (sparse_default_values or {}).get(key, "" if value.dtype == dtypes.string else 0)
                value = parsing_ops.sparse_tensor_to_dense(value, default_value=default)
            added[key] = value
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
            """See Optimizer."""
            gradients, variables = zip(*grads_and_vars, strict=True)
            clipped, _ = clipping.clip_by_global_norm(gradients, clip_norm)
            return super().apply_gradients(list(zip(clipped, variables, strict=True)), global_step, name)

    return ClippingOptimizer()


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """Return what evaluations have written: step -> metric -> value, in order of steps."""
    found: dict[int, dict[str, float]] = {}
    names = sorted(os.listdir(eval_dir)) if os.path.isdir(eval_dir) else []
    for name in names:
        if ".tfevents." not in name:
            continue
        for event in summary_iterator(os.path.join(eval_dir, name)):
            values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
            if values:
                found.setdefault(event.step, {}).update(values)
    return dict(sorted(found.items()))


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
                _log.info("Requesting early stopping at global step of this task's run %d", self._runs)
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


def _threshold_hook(
    is_enough: Callable[[float, float], bool],
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> SessionRunHook:
    where = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        for step, metrics in read_eval_metrics(where).items():
            if step >= min_steps and metric_name in metrics and is_enough(metrics[metric_name], threshold):
                _log.info("At step %d, metric %r has reached %s.", step, metric_name, metrics[metric_name])
                return True
        return False

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
    return _threshold_hook(
        operator.gt, estimator, metric_name, threshold, eval_dir, min_steps, run_every_secs, run_every_steps
    )


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
    return _threshold_hook(
        operator.lt, estimator, metric_name, threshold, eval_dir, min_steps, run_every_secs, run_every_steps
    )


def _no_better_hook(
    is_better: Callable[[float, float], bool],
    estimator: Estimator,
    metric_name: str,
    most_steps: int,
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> SessionRunHook:
    where = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        best: float | None = None
        best_step = 0
        for step, metrics in read_eval_metrics(where).items():
            if step < min_steps or metric_name not in metrics:
                continue
            value = metrics[metric_name]
            if best is None or is_better(value, best):
                best, best_step = value, step
            elif step - best_step >= most_steps:
                _log.info("Metric %r has not got better than %s since step %d.", metric_name, best, best_step)
                return True
        return False

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


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
    return _no_better_hook(
        operator.gt, estimator, metric_name, max_steps_without_increase, eval_dir, min_steps, run_every_secs,
        run_every_steps,
    )  # fmt: skip


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
    return _no_better_hook(
        operator.lt, estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, run_every_secs,
        run_every_steps,
    )  # fmt: skip

"""`gs.contrib.learn.Experiment` and its runner: `train_and_evaluate` as programs of 2017 ask for it.

Layer: tf1. Source: TensorFlow 1.15 `contrib/learn/python/learn/experiment.py`, `learn_runner.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from globalstep.tf1.estimator.estimator import Estimator
from globalstep.tf1.estimator.run_config import RunConfig, TaskType
from globalstep.tf1.estimator.training import EvalSpec, TrainSpec, train_and_evaluate

_SCHEDULES = {TaskType.MASTER: "train_and_evaluate", TaskType.PS: "run_std_server", TaskType.WORKER: "train"}


class Experiment:
    """An Estimator with what it is trained on and evaluated by.

    Args:
        estimator: One of `gs.estimator`.
        train_input_fn: As for `gs.estimator.TrainSpec`.
        eval_input_fn: As for `gs.estimator.EvalSpec`.
        eval_metrics: Must be None: the Estimator's model function gives them.
        train_steps: The step to train to.
        eval_steps: Steps of an evaluation.
        train_monitors: Hooks of training.
        eval_hooks: Hooks of evaluations.
        eval_delay_secs: An evaluation waits so long at first.
        continuous_eval_throttle_secs: Evaluations begin at least so far apart.
        export_strategies: Must be None: `gs.estimator.EvalSpec` takes exporters.
        **kwargs: Accepted as in TensorFlow.

    Raises:
        ValueError: For what must be None, and for another Estimator.
    """

    def __init__(
        self, estimator: Any, train_input_fn: Callable[..., Any], eval_input_fn: Callable[..., Any],
        eval_metrics: Any = None, train_steps: int | None = None, eval_steps: int | None = 100,
        train_monitors: Any = None, eval_hooks: Any = None, *, eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60, export_strategies: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        if eval_metrics is not None or export_strategies:
            raise ValueError("`eval_metrics` and `export_strategies` must be `None` with `tf.estimator.Estimator`.")
        if not isinstance(estimator, Estimator):
            raise ValueError("`estimator` must implement `tf.estimator.Estimator`.")
        self.estimator = estimator
        self._train = TrainSpec(train_input_fn, train_steps, train_monitors)
        self._eval = EvalSpec(
            eval_input_fn, eval_steps, None, eval_hooks, None, eval_delay_secs, continuous_eval_throttle_secs
        )

    def train_and_evaluate(self) -> Any:
        """Do what `gs.estimator.train_and_evaluate` does in this task's role."""
        return train_and_evaluate(self.estimator, self._train, self._eval)

    run_std_server = train_and_evaluate

    def train(self) -> Any:
        """Train, without evaluations where this is the only process."""
        if self.estimator.config.cluster_spec:
            return self.train_and_evaluate()
        return self.estimator.train(self._train.input_fn, self._train.hooks, max_steps=self._train.max_steps)

    def evaluate(self) -> Any:
        """Evaluate the newest checkpoint."""
        return self.estimator.evaluate(self._eval.input_fn, self._eval.steps, self._eval.hooks)


def run(
    experiment_fn: Callable[..., Experiment], output_dir: str | None = None, schedule: str | None = None,
    run_config: RunConfig | None = None, hparams: Any = None,
) -> Any:  # fmt: skip
    """Make an experiment and call one of its methods.

    Args:
        experiment_fn: Gives it: of `output_dir`, or of `run_config` and `hparams`.
        output_dir: A directory; or None.
        schedule: Name of the method; by default that of this task's role.
        run_config: A configuration, where there is no `output_dir`.
        hparams: Any.

    Raises:
        ValueError: Unless there is one of directory and configuration; for a role or method that there is none of.
    """
    if (output_dir is None) == (run_config is None):
        raise ValueError("Must set value for `output_dir` or `run_config`, not both")
    experiment = experiment_fn(output_dir) if run_config is None else experiment_fn(run_config, hparams)
    config = experiment.estimator.config
    schedule = schedule or (_SCHEDULES.get(config.task_type) if config.cluster_spec else "train_and_evaluate")
    if schedule is None or not hasattr(experiment, schedule):
        raise ValueError(f"Schedule references non-existent task {schedule} of {config.task_type}")
    return getattr(experiment, schedule)()


learn_runner = types.SimpleNamespace(run=run)

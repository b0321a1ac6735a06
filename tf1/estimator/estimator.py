"""Estimator: trains, evaluates, predicts with and exports what a model function describes.

Layer: tf1. Threads: an Estimator is used by one. Source of behaviour and texts: TensorFlow 1.15
`tf.estimator.Estimator`.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.cluster.cluster import target_of
from globalstep.errors import NotFoundError, OpError
from globalstep.files.tensorboard_protos import Summary
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.estimator.input_fns import parsed_input
from globalstep.tf1.estimator.model_fn import EstimatorSpec, ModeKeys, checked_hooks
from globalstep.tf1.estimator.run_config import RunConfig, TaskType
from globalstep.tf1.exporting.saved_model import SavedModelBuilder
from globalstep.tf1.graph.callables import fn_args
from globalstep.tf1.graph.device import replica_device_setter
from globalstep.tf1.graph.graph import Graph, GraphKeys, add_to_collection, device, get_collection
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.hooks.step import StepCounterHook, StopAtStepHook
from globalstep.tf1.hooks.summary import SummarySaverHook
from globalstep.tf1.hooks.values import FinalOpsHook, LoggingTensorHook, NanTensorHook
from globalstep.tf1.metrics.means import mean
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.ops.random_ops import set_random_seed
from globalstep.tf1.ops.summaries import FileWriterCache
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.tf1.variables.checkpoint_variables import list_variables, load_variable
from globalstep.tf1.variables.training_util import create_global_step, get_global_step
from globalstep.tf1.variables.warm_starting import VocabInfo, warm_start
from globalstep.wire.transports import known_target
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.client import ClusterClient, connect
from globalstep.worker.client.leaving import ends_unfinished

_log = logging.getLogger("globalstep")
_LOSS = "loss"
_STEP = "global_step"


class WarmStartSettings(NamedTuple):
    """The checkpoint that Variables of a new model begin with, and which Variables those are.

    Attributes:
        ckpt_to_initialize_from: A checkpoint, or a directory of them.
        vars_to_warm_start: A regular expression of names of trained Variables, or a list of names or Variables.
        var_name_to_vocab_info: Name of a Variable -> its vocabularies.
        var_name_to_prev_var_name: Name of a Variable -> its name in the checkpoint.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


class Estimator:
    """A model that is trained, evaluated, predicted with and exported, each in a graph of its own.

    Args:
        model_fn: Function of `features` and, if it has them, `labels`, `mode`, `params` and `config`, that gives an
            EstimatorSpec.
        model_dir: Where checkpoints, summaries and exports go; default the config's, else a temporary directory.
        config: A RunConfig; by default one from TF_CONFIG.
        params: Hyper-parameters for `model_fn`.
        warm_start_from: A checkpoint, or WarmStartSettings, that a new model begins with.

    Raises:
        ValueError: If `model_fn` has other arguments, or the directories differ.

    >>> import tempfile
    >>> import globalstep as tf
    >>> def model_fn(features, labels, mode):
    ...     weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    ...     loss = tf.reduce_mean(tf.square(features * weight - labels))
    ...     optimizer = tf.train.GradientDescentOptimizer(0.1)
    ...     train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    ...     return tf.estimator.EstimatorSpec(mode, predictions=features * weight, loss=loss, train_op=train_op)
    >>> def input_fn():
    ...     return tf.constant([1.0, 2.0]), tf.constant([3.0, 6.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     estimator = tf.estimator.Estimator(model_fn, folder)
    ...     print(estimator.train(input_fn, steps=50).evaluate(input_fn, steps=1)["global_step"])
    ...     tf.summary.FileWriterCache.clear()
    50
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        _check_arguments(model_fn, params)
        self._config = _with_model_dir(config, model_dir)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        if warm_start_from is not None and not isinstance(warm_start_from, WarmStartSettings):
            warm_start_from = WarmStartSettings(str(warm_start_from))
        self._warm_start: WarmStartSettings | None = warm_start_from
        #: Whether the job goes on after `train`: PS tasks are to wait for what this program does next.
        self.stays = True
        self._presence: ClusterClient | None = None
        _log.info("Using config: %s", vars(self._config))

    @property
    def model_dir(self) -> str:
        """Where checkpoints, summaries and exports are."""
        assert self._config.model_dir is not None
        return self._config.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of its configuration."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        """A copy of its hyper-parameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model function with its `params`: a function of features, labels, mode and config."""
        return lambda features, labels, mode, config: self._call_model_fn(features, labels, mode, config)

    def eval_dir(self, name: str | None = None) -> str:
        """Return where the results of an evaluation of that name are written."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Return the newest checkpoint; None where there is none yet."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of all Variables of the newest checkpoint."""
        return [name for name, _ in list_variables(self._trained())]

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a Variable in the newest checkpoint."""
        return load_variable(self._trained(), name)

    def _trained(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return checkpoint

    # ---- Training -------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Iterable[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Train, from the newest checkpoint on.

        Args:
            input_fn: Gives (features, labels), or a Dataset of them; it may have arguments `mode`, `params`, `config`.
            hooks: Hooks of this task.
            steps: Steps to make from here; None until the input ends.
            max_steps: The step to train to; nothing is done where a checkpoint has it already.
            saving_listeners: Called around each checkpoint.

        Returns:
            Itself.

        Raises:
            ValueError: For numbers out of range, both of them, or a task that does not train.
            NanLossDuringTrainingError: If the loss is NaN.
        """
        if self._config.task_type in (TaskType.EVALUATOR, TaskType.PS):
            raise ValueError(
                "Train has been called wrong configuration. Please use tf.estimator.train_and_evaluate which calls "
                f"proper API according to given configuration. Current configuration: {vars(self._config)}."
            )
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        for name, count in (("steps", steps), ("max_steps", max_steps)):
            if count is not None and count <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {count}")
        if max_steps is not None and max_steps <= _saved_step(self.model_dir):
            _log.info("Skipping training since max_steps has already saved.")
            return self
        all_hooks = list(checked_hooks(hooks))
        config = self._config
        if steps is not None and config.cluster_spec:
            # A number of steps counts from where the job began, and the job may have had a session before.
            max_steps = _saved_step(self.model_dir) + steps
            steps = None
        if steps is not None or max_steps is not None:
            all_hooks.append(StopAtStepHook(num_steps=steps, last_step=max_steps))
        listeners = list(saving_listeners or ())
        for listener in listeners:
            if not isinstance(listener, CheckpointSaverListener):
                raise TypeError(f"saving_listeners must be a list of CheckpointSaverListener, given: {listener}")
        if self.stays and TaskType.PS in config.cluster_spec.jobs:
            all_hooks.append(_JobGoesOn())
            if self._presence is None:
                self._presence = connect(target_of(config.cluster_spec))
                if config.is_chief:
                    atexit.register(_end_job, self._presence)
        setter = config.device_fn or replica_device_setter(
            cluster=config.cluster_spec or None, worker_device=f"/job:{config.task_type}/task:{config.task_id}"
        )
        with Graph().as_default(), device(setter):
            spec, input_hooks = self._built(input_fn, ModeKeys.TRAIN)
            loss = self._train(spec, [*input_hooks, *all_hooks], listeners)
        _log.info("Loss for final step: %s.", loss)
        return self

    def _train(self, spec: EstimatorSpec, hooks: list[Any], listeners: Sequence[CheckpointSaverListener]) -> Any:
        """Run the steps of a model whose graph is made; return the loss of the last."""
        config = self._config
        self._begin_warm()
        if not any(summary.op.name == _LOSS for summary in get_collection(GraphKeys.SUMMARIES)):
            scalar(_LOSS, spec.loss)
        add_to_collection(GraphKeys.LOSSES, spec.loss)
        hooks.append(NanTensorHook(spec.loss))
        if config.log_step_count_steps is not None:
            logged = {"loss": spec.loss, "step": get_global_step()}
            hooks.append(LoggingTensorHook(logged, every_n_iter=config.log_step_count_steps))
        hooks += spec.training_hooks
        if spec.scaffold.saver is None and not get_collection(GraphKeys.SAVERS):
            saver = Saver(
                sharded=True,
                max_to_keep=config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
                defer_build=True,
                save_relative_paths=True,
            )
            add_to_collection(GraphKeys.SAVERS, saver)
        chief_hooks: list[Any] = list(spec.training_chief_hooks)
        savers = [hook for hook in (*hooks, *chief_hooks) if isinstance(hook, CheckpointSaverHook)]
        if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
            savers = [
                CheckpointSaverHook(
                    self.model_dir,
                    save_secs=config.save_checkpoints_secs,
                    save_steps=config.save_checkpoints_steps,
                    scaffold=spec.scaffold,
                )
            ]
            chief_hooks.insert(0, savers[0])
        if listeners:
            if not savers:
                raise ValueError(
                    "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
                    "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
                )
            savers[0].add_listeners(listeners)
        summary_steps, log_steps = config.save_summary_steps, config.log_step_count_steps
        if TaskType.WORKER in config.cluster_spec.jobs and TaskType.MASTER in config.cluster_spec.jobs:
            # A master evaluates between steps, so the first worker writes what tells of speed.
            if config.task_type == TaskType.WORKER and config.task_id == 0:
                if summary_steps:
                    hooks.append(SummarySaverHook(summary_steps, output_dir=self.model_dir, scaffold=spec.scaffold))
                if log_steps:
                    hooks.append(StepCounterHook(log_steps, output_dir=self.model_dir))
            summary_steps, log_steps = 0, None
        loss = None
        with MonitoredTrainingSession(
            master=_target_of(config),
            is_chief=config.is_chief,
            checkpoint_dir=self.model_dir,
            scaffold=spec.scaffold,
            hooks=hooks,
            chief_only_hooks=chief_hooks,
            save_checkpoint_secs=0,
            save_summaries_steps=summary_steps,
            config=config.session_config,
            log_step_count_steps=log_steps,
            max_wait_secs=config.session_creation_timeout_secs,
        ) as session:
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        return loss

    # ---- Evaluation and prediction --------------------------------------------------------------

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint in this process, and write the results as summaries.

        Args:
            input_fn: As for `train`.
            steps: Batches to evaluate; None until the input ends.
            hooks: Hooks of the evaluation.
            checkpoint_path: Default the newest; without one, Variables begin anew.
            name: Tells evaluations of several inputs apart.

        Returns:
            Metric -> value, with "loss", the mean of the batches' losses, and "global_step".

        Raises:
            ValueError: If `steps` is not positive, or a metric is named "loss" or "global_step".
        """
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        checkpoint_path = self._checkpoint_or_none(checkpoint_path, "evaluate")
        with Graph().as_default():
            spec, input_hooks = self._built(input_fn, ModeKeys.EVAL)
            metrics = dict(spec.eval_metric_ops)
            for reserved in (_LOSS, _STEP):
                if reserved in metrics:
                    raise ValueError(
                        f'Metric with name "{reserved}" is not allowed, because Estimator already defines a default '
                        "metric with the same name."
                    )
            metrics[_LOSS] = mean(spec.loss)
            update = group(*[metrics[key][1] for key in sorted(metrics)])
            final = FinalOpsHook({**{key: value for key, (value, _) in metrics.items()}, _STEP: get_global_step()})
            if checkpoint_path is None:
                self._begin_warm()
            scaffold = spec.scaffold
            if scaffold.local_init_op is not None:
                both = group(scaffold.local_init_op, Scaffold.default_local_init_op())
                scaffold = Scaffold(local_init_op=both, copy_from_scaffold=scaffold)
            all_hooks = [*input_hooks, *checked_hooks(hooks), *spec.evaluation_hooks, final]
            with self._session(scaffold, checkpoint_path, all_hooks) as session:
                done = 0
                while not session.should_stop() and done != steps:
                    session.run(update)
                    done += 1
        results = dict(final.final_ops_values)
        self._write_results(name, results)
        return results

    def _write_results(self, name: str | None, results: Mapping[str, Any]) -> None:
        """Log the results of an evaluation, and write them as summaries of its step."""
        step = int(results[_STEP])
        shown = ", ".join(f"{key} = {value}" for key, value in sorted(results.items()))
        _log.info("Saving dict for global step %d: %s", step, shown)
        writer = FileWriterCache.get(self.eval_dir(name))
        summary = Summary()
        for key, value in results.items():
            if np.ndim(value) == 0:
                if key != _STEP and not isinstance(value, (bytes, str)):
                    summary.value.add(tag=key, simple_value=float(value))
            else:
                _log.warning("Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int.", key)
        writer.add_summary(summary, step)
        writer.flush()

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Iterable[SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predict until the input ends.

        Args:
            input_fn: Gives features; labels beside them are left out.
            predict_keys: Which predictions; default all.
            hooks: Hooks of the prediction.
            checkpoint_path: Default the newest; without one, Variables begin anew.
            yield_single_examples: Whether each example comes by itself; else whole batches.

        Yields:
            The predictions, in their structure.

        Raises:
            ValueError: For keys that the model does not predict, or predictions of different lengths.
        """
        checkpoint_path = self._checkpoint_or_none(checkpoint_path, "predict")
        graph = Graph()
        with graph.as_default():
            spec, input_hooks = self._built(input_fn, ModeKeys.PREDICT)
            wanted = _chosen(spec.predictions, predict_keys)
            if checkpoint_path is None:
                self._begin_warm()
            all_hooks = [*input_hooks, *checked_hooks(hooks), *spec.prediction_hooks]
            session = self._session(spec.scaffold, checkpoint_path, all_hooks)
        # The caller's default graph is its own again between two predictions.
        with session:
            while not session.should_stop():
                with graph.as_default():
                    predictions = session.run(wanted)
                if predictions is None:
                    continue
                yield from _examples(predictions) if yield_single_examples else [predictions]

    def _checkpoint_or_none(self, checkpoint_path: str | None, purpose: str) -> str | None:
        """Return the given checkpoint, or the newest; None, and log it, where there is none."""
        checkpoint = checkpoint_path or self.latest_checkpoint()
        if checkpoint is None:
            _log.info(
                "Could not find trained model in model_dir: %s, running initialization to %s.", self.model_dir, purpose
            )
        return checkpoint

    def _session(self, scaffold: Scaffold, checkpoint_path: str | None, hooks: Sequence[SessionRunHook]) -> Any:
        """Make a session of this process, with the values of a checkpoint."""
        creator = ChiefSessionCreator(
            scaffold, checkpoint_filename_with_path=checkpoint_path, config=self._config.session_config
        )
        return MonitoredSession(creator, hooks)

    # ---- Exports --------------------------------------------------------------------------------

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
        strip_default_attrs: bool | None = None,
    ) -> bytes:
        """Write the model as a saved model, into a new directory that is named by the time.

        Args:
            export_dir_base: Where that directory goes.
            serving_input_receiver_fn: Gives a ServingInputReceiver.
            assets_extra: Path below "assets.extra" -> file that is copied there.
            as_text: Whether the graph is written as text.
            checkpoint_path: Default the newest.
            experimental_mode: Which mode's graph; one that predicts.
            strip_default_attrs: Accepted.

        Returns:
            The directory. What of the graph ONNX has is beside it as "<signature>.onnx".

        Raises:
            ValueError: Without a function, or a checkpoint that has all Variables.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined.")
        checkpoint_path = checkpoint_path or self._trained()
        base = os.fspath(export_dir_base)
        os.makedirs(base, exist_ok=True)
        made = tempfile.mkdtemp(prefix="temp-", dir=base)
        with Graph().as_default() as graph:
            create_global_step()
            set_random_seed(self._config.tf_random_seed)
            receiver = serving_input_receiver_fn()
            spec = self._call_model_fn(
                receiver.features, getattr(receiver, "labels", None), experimental_mode, self.config
            )
            signatures = _signatures(receiver, spec)
            with Session(graph=graph, config=self._config.session_config) as session:
                saver = spec.scaffold.saver or Saver(sharded=True)
                try:
                    saver.restore(session, checkpoint_path)
                except NotFoundError as error:
                    raise ValueError(
                        "Could not load all requested variables from checkpoint. Please make sure your model_fn does "
                        "not expect variables that were not saved in the checkpoint.\n\nEncountered error with mode "
                        f"`{experimental_mode}` while restoring checkpoint from: `{checkpoint_path}`: {error}"
                    ) from error
                local = spec.scaffold.local_init_op or Scaffold.default_local_init_op()
                _write_model(made, session, signatures, local, saver, as_text)
        for name, source in (assets_extra or {}).items():
            target = os.path.join(made, "assets.extra", name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(source, target)
        return _named_by_time(made, base).encode()

    #: Its name until TensorFlow 1.13.
    export_savedmodel = export_saved_model

    def experimental_export_all_saved_models(
        self, export_dir_base: str, input_receiver_fn_map: Mapping[str, Any], **kwargs: Any
    ) -> bytes:
        """Write the model for its mode of prediction, which `input_receiver_fn_map` must have."""
        if ModeKeys.PREDICT not in input_receiver_fn_map:
            raise ValueError(
                f"No valid modes for exporting found. Got {list(input_receiver_fn_map)}; globalstep exports "
                f"{ModeKeys.PREDICT!r} only."
            )
        return self.export_saved_model(export_dir_base, input_receiver_fn_map[ModeKeys.PREDICT], **kwargs)

    # ---- The user's functions -------------------------------------------------------------------

    def _built(self, input_fn: Callable[..., Any], mode: str) -> tuple[EstimatorSpec, list[SessionRunHook]]:
        """Make a mode's input and model in the default graph; return the model, and the hooks of the input."""
        set_random_seed(self._config.tf_random_seed)
        create_global_step()
        names = fn_args(input_fn)
        args = {"mode": mode, "params": self.params, "config": self.config}
        with device("/cpu:0"):
            features, labels, hooks = parsed_input(input_fn(**{name: args[name] for name in args if name in names}))
        if mode == ModeKeys.PREDICT:
            labels = None
        return self._call_model_fn(features, labels, mode, self.config), hooks

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        names = fn_args(self._model_fn)
        if labels is not None and "labels" not in names:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        args = {"labels": labels, "mode": mode, "params": self.params, "config": config}
        _log.info("Calling model_fn.")
        spec = self._model_fn(features=features, **{name: args[name] for name in args if name in names})
        _log.info("Done calling model_fn.")
        if not isinstance(spec, EstimatorSpec):
            raise ValueError("model_fn should return an EstimatorSpec.")
        return spec

    def _begin_warm(self) -> None:
        """Have the Variables begin with another model's values, where that was asked for."""
        if self._warm_start is not None:
            _log.info("Warm-starting with WarmStartSettings: %s", self._warm_start)
            warm_start(*self._warm_start)


def _check_arguments(model_fn: Callable[..., Any], params: Any) -> None:
    names = fn_args(model_fn)
    if "features" not in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if params is not None and "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed to Estimator."
        )
    if params is None and "params" in names:
        _log.warning(
            "Estimator's model_fn (%s) includes params argument, but params are not passed to Estimator.", model_fn
        )
    others = set(names) - {"features", "labels", "mode", "params", "self", "config"}
    if others:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {sorted(others)}")


def _with_model_dir(config: RunConfig | None, model_dir: Any) -> RunConfig:
    if config is None:
        config = RunConfig()
    if not isinstance(config, RunConfig):
        raise ValueError(f"config must be an instance of `RunConfig`, but provided {config}.")
    if model_dir is not None:
        model_dir = os.fspath(model_dir)
        if config.model_dir is not None and config.model_dir != model_dir:
            raise ValueError(
                "`model_dir` are set both in constructor and `RunConfig`, but with different values. In constructor: "
                f"'{model_dir}', in `RunConfig`: '{config.model_dir}' "
            )
    model_dir = model_dir or config.model_dir
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        _log.warning("Using temporary folder as model directory: %s", model_dir)
    return config.replace(model_dir=model_dir)


class _JobGoesOn(SessionRunHook):
    """The end of this session is not the end of the job: the program may train again."""

    job_goes_on = True


def _end_job(client: ClusterClient) -> None:
    """Declare the job done at the end of the chief's program, if that is a good one."""
    if not (client.shutdown.asked or ends_unfinished(getattr(sys, "last_value", None))):
        with contextlib.suppress(OpError):
            client.refresh()
            client.chief_lease.candidate = candidate = Candidate(configured=True)
            if candidate.claim(client):
                client.finish()


def _target_of(config: RunConfig) -> str:
    """Return what the session of training is connected to: "" finds the cluster of TF_CONFIG by itself."""
    return config.master if config.master and known_target(config.master).task else ""


def _saved_step(model_dir: str) -> int:
    checkpoint = latest_checkpoint(model_dir)
    if checkpoint is None:
        return 0
    try:
        return int(load_variable(checkpoint, _STEP))
    except NotFoundError:
        return 0


def _chosen(predictions: Any, keys: Any) -> Any:
    """Return the predictions of some keys."""
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    selected = {key: value for key, value in predictions.items() if key in keys}
    if not selected:
        raise ValueError(f"Expected to run at least one output from {predictions.keys()}, provided {keys}.")
    return selected


def _examples(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {key: len(value) for key, value in batch.items()}
    for key, length in lengths.items():
        if length != next(iter(lengths.values())):
            raise ValueError(
                f"Batch length of predictions should be same. {key} has different batch length than others."
            )
    for at in range(next(iter(lengths.values()))):
        yield {key: value[at] for key, value in batch.items()}


def _signatures(receiver: Any, spec: EstimatorSpec) -> dict[str, Any]:
    """Return the signatures of a model's outputs, but for those that these inputs cannot serve."""
    signatures: dict[str, Any] = {}
    excluded = []
    alternatives = receiver.receiver_tensors_alternatives or {}
    for inputs, lead in [(receiver.receiver_tensors, ""), *((one, f"{name}:") for name, one in alternatives.items())]:
        for name, output in (spec.export_outputs or {}).items():
            try:
                signatures[lead + name] = output.as_signature_def(inputs)
            except ValueError as error:
                excluded.append(f"{lead + name!r} : {error}")
    if not signatures:
        raise ValueError("\n".join(["These inputs serve no signature of the model:", *excluded]))
    for one in excluded:
        _log.info("Signatures EXCLUDED from export: %s", one)
    if "serving_default" not in signatures:
        _log.warning("Export includes no default signature!")
    return signatures


def _write_model(
    directory: str, session: Session, signatures: Mapping[str, Any], main_op: Any, saver: Saver, as_text: bool
) -> None:
    builder = SavedModelBuilder(directory)
    builder.add_meta_graph_and_variables(
        session, ["serve"], signature_def_map=signatures, main_op=main_op, saver=saver, clear_devices=True
    )
    builder.save(as_text)


def _named_by_time(made: str, base: str) -> str:
    """Give a finished export its name: the seconds since 1970, or one more where that name is taken."""
    stamp = int(SYSTEM_CLOCK.time())
    while True:
        target = os.path.join(base, str(stamp))
        try:
            os.rename(made, target)
        except OSError:
            if not os.path.exists(target):
                raise
            stamp += 1
            continue
        os.chmod(target, 0o755)
        return target

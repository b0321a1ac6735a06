"""Configuration of an Estimator's run: which task this is, where it saves, and how often.

Layer: tf1. Source of defaults, checks and texts: TensorFlow 1.15 `tf.estimator.RunConfig`.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from globalstep.cluster.cluster import ClusterSpec
from globalstep.config import ConfigProto

_BOTH = "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
_USE_DEFAULT: Any = object()
_DEFAULT_SAVE_SECS = 600


def _is_device_fn(function: Any) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == ["op"]


#: Property -> what its value must be like, and what is said of one that is not; None is always taken.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model_dir": (bool, "model_dir should be non-empty"),
    "save_summary_steps": (lambda steps: steps >= 0, "save_summary_steps should be >= 0"),
    "save_checkpoints_steps": (lambda steps: steps >= 0, "save_checkpoints_steps should be >= 0"),
    "save_checkpoints_secs": (lambda secs: secs >= 0, "save_checkpoints_secs should be >= 0"),
    "session_config": (lambda it: isinstance(it, ConfigProto), "session_config must be instance of ConfigProto"),
    "keep_checkpoint_max": (lambda most: most >= 0, "keep_checkpoint_max should be >= 0"),
    "keep_checkpoint_every_n_hours": (lambda hours: hours > 0, "keep_checkpoint_every_n_hours should be > 0"),
    "log_step_count_steps": (lambda steps: steps > 0, "log_step_count_steps should be > 0"),
    "tf_random_seed": (lambda seed: isinstance(seed, int), "tf_random_seed must be integer."),
    "device_fn": (_is_device_fn, 'device_fn must be callable with exactly one argument "op".'),
    "protocol": (lambda name: name in ("grpc", "grpc+verbs"), "protocol should be grpc or grpc+verbs"),
}


class TaskType:
    """The jobs of a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


class RunConfig:
    """The configuration of a run; which task this is comes from TF_CONFIG.

    Args:
        model_dir: Where checkpoints, summaries and exports go; default TF_CONFIG's "model_dir".
        tf_random_seed: Seed of the graphs.
        save_summary_steps: Global steps between summaries.
        save_checkpoints_steps: Global steps between checkpoints.
        save_checkpoints_secs: Seconds between checkpoints; default 600, unless the steps are given.
        session_config: A ConfigProto.
        keep_checkpoint_max: Checkpoints that are kept; 0 for all.
        keep_checkpoint_every_n_hours: One of so many hours is kept for good.
        log_step_count_steps: Global steps between reports of the speed.
        train_distribute: Must be None: a run is distributed over parameter servers.
        device_fn: Places operations; default `gs.train.replica_device_setter`.
        protocol: "grpc".
        eval_distribute: Must be None.
        experimental_distribute: Must be None.
        experimental_max_worker_delay_secs: The most that a worker waits before it begins to train.
        session_creation_timeout_secs: How long a task waits for the others, seconds.
        checkpoint_save_graph_def: Accepted.

    Raises:
        ValueError: If both frequencies of checkpoints are given, a value is out of range, a strategy is asked for, or
            TF_CONFIG does not fit in itself.

    >>> config = RunConfig(model_dir="/tmp/model", save_checkpoints_steps=50)
    >>> config.is_chief, config.task_type, config.replace(keep_checkpoint_max=1).keep_checkpoint_max
    (True, 'worker', 1)
    """

    #: Of TF_CONFIG: the cluster, empty for one process, and for an evaluator; this task; who it is among the others.
    cluster_spec: ClusterSpec
    task_type: str
    task_id: int
    is_chief: bool
    #: "grpc://host:port" of this task, "" in one process; of evaluations, which are always of this process.
    master: str
    evaluation_master: str = ""
    num_ps_replicas: int
    num_worker_replicas: int
    #: Among all tasks, the chief first, the PS last; None for an evaluator.
    global_id_in_cluster: int | None
    service: Mapping[str, Any] | None

    def __init__(
        self,
        model_dir: str | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = _USE_DEFAULT,
        save_checkpoints_secs: float | None = _USE_DEFAULT,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Callable[[Any], Any] | None = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,
    ) -> None:
        if save_checkpoints_steps is _USE_DEFAULT and save_checkpoints_secs is _USE_DEFAULT:
            save_checkpoints_steps, save_checkpoints_secs = None, _DEFAULT_SAVE_SECS
        elif save_checkpoints_secs is _USE_DEFAULT:
            save_checkpoints_secs = None
        elif save_checkpoints_steps is _USE_DEFAULT:
            save_checkpoints_steps = None
        elif save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError(_BOTH)
        tf_config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        self.model_dir = _model_dir(tf_config, model_dir)
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps, self.save_checkpoints_secs = save_checkpoints_steps, save_checkpoints_secs
        self.session_config = session_config
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.train_distribute, self.eval_distribute = train_distribute, eval_distribute
        self.experimental_distribute = experimental_distribute
        self.device_fn, self.protocol = device_fn, protocol
        self.experimental_max_worker_delay_secs = experimental_max_worker_delay_secs
        self.session_creation_timeout_secs = session_creation_timeout_secs
        self.checkpoint_save_graph_def = checkpoint_save_graph_def
        self._check()
        self._take_place(tf_config)

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass may have a property of that name, which comes before the value.
        vars(self)[name] = value

    def replace(self, **kwargs: Any) -> RunConfig:
        """Return a copy with other values of some properties.

        Raises:
            ValueError: For a property that cannot be replaced, or a value out of range.
        """
        new = copy.deepcopy(self)
        replaceable = list(inspect.signature(RunConfig).parameters)
        for name, value in kwargs.items():
            if name not in replaceable:
                raise ValueError(f"Replacing {name} is not supported. Allowed properties are {replaceable}.")
            setattr(new, name, value)
        steps, secs = (kwargs.get(f"save_checkpoints_{what}") for what in ("steps", "secs"))
        if steps is not None and secs is not None:
            raise ValueError(_BOTH)
        if steps is not None:
            new.save_checkpoints_secs = None
        elif secs is not None:
            new.save_checkpoints_steps = None
        new._check()
        return new

    def _check(self) -> None:
        for name, (is_right, text) in _CHECKS.items():
            value = getattr(self, name)
            if value is not None and not is_right(value):
                raise ValueError(text)
        for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is set, but globalstep has no distribution strategies. Leave it out: TF_CONFIG, or "
                    "`globalstep launch`, distributes a run over parameter servers."
                )

    def _take_place(self, tf_config: Mapping[str, Any]) -> None:
        """Take from TF_CONFIG which task this is."""
        service = tf_config.get("service")
        if service is not None and not isinstance(service, dict):
            raise TypeError(f'If "service" is set in TF_CONFIG, it must be a dict. Given {type(service)}')
        self.service = service
        cluster, task = ClusterSpec(tf_config.get("cluster") or {}), tf_config.get("task") or {}
        self.cluster_spec, self.global_id_in_cluster, self.master = cluster, 0, ""
        self.num_ps_replicas, self.num_worker_replicas = 0, 1
        if not cluster:
            self.task_type, self.task_id = task.get("type", TaskType.WORKER), int(task.get("index", 0))
            if self.task_type != TaskType.WORKER:
                raise ValueError('If "cluster" is not set in TF_CONFIG, task type must be WORKER.')
            if self.task_id:
                raise ValueError('If "cluster" is not set in TF_CONFIG, task index must be 0.')
            self.master, self.is_chief = tf_config.get("session_master", ""), True
            return
        chief = TaskType.MASTER if TaskType.MASTER in cluster.jobs else TaskType.CHIEF
        if chief == TaskType.MASTER and TaskType.CHIEF in cluster.jobs:
            raise ValueError("If `master` node exists in `cluster`, job `chief` is not supported.")
        self.task_type, self.task_id = _task_of(cluster, task, chief)
        self.is_chief = self.task_type == chief
        if self.task_type == TaskType.EVALUATOR:
            if chief == TaskType.MASTER:
                raise ValueError("If `master` node exists in `cluster`, task_type `evaluator` is not supported.")
            # It is no part of the training cluster.
            self.cluster_spec, self.global_id_in_cluster, self.num_worker_replicas = ClusterSpec({}), None, 0
            return
        counts = {job: len(cluster.job_tasks(job)) for job in cluster.jobs}
        if list(counts.values()) != [1]:
            self.master = tf_config.get("session_master") or (
                f"grpc://{cluster.task_address(self.task_type, self.task_id)}"
            )
        self.num_ps_replicas = counts.get(TaskType.PS, 0)
        self.num_worker_replicas = counts.get(TaskType.WORKER, 0) + counts[chief]
        between = sorted(job for job in cluster.jobs if job not in (chief, TaskType.PS))
        jobs = [chief, *between, TaskType.PS]
        before = sum(counts[job] for job in jobs[: jobs.index(self.task_type)])
        self.global_id_in_cluster = before + self.task_id


def _task_of(cluster: ClusterSpec, task: Mapping[str, Any], chief: str) -> tuple[str, int]:
    """Return the job and index of TF_CONFIG's task, checked against its cluster."""
    if chief not in cluster.jobs:
        raise ValueError(f'If "cluster" is set in TF_CONFIG, it must have one "{chief}" node.')
    if len(cluster.job_tasks(chief)) > 1:
        raise ValueError(f'The "cluster" in TF_CONFIG must have only one "{chief}" node.')
    job, index = task.get("type"), task.get("index")
    if not job:
        raise ValueError('If "cluster" is set in TF_CONFIG, task type must be set.')
    if index is None:
        raise ValueError('If "cluster" is set in TF_CONFIG, task index must be set.')
    index = int(index)
    if index < 0:
        raise ValueError("Task index must be non-negative number.")
    if job == TaskType.EVALUATOR:
        return job, index
    hint = f"in the cluster_spec:\n{cluster}\n\nNote that these values may be coming from the TF_CONFIG environment "
    if job not in cluster.jobs:
        raise ValueError(f"{job} is not a valid task_type {hint}variable.")
    if index not in cluster.task_indices(job):
        raise ValueError(f"{index} is not a valid task_id for task_type {job} {hint}variable.")
    return job, index


def _model_dir(tf_config: Mapping[str, Any], model_dir: str | None) -> str | None:
    """Return where the model is saved, which TF_CONFIG may say."""
    if model_dir == "":
        raise ValueError("model_dir should be non-empty.")
    configured = tf_config.get("model_dir")
    if configured == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty.")
    if configured and model_dir and configured != model_dir:
        raise ValueError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value as the model_dir in "
            f'TF_CONFIG. model_dir: {model_dir}\nTF_CONFIG["model_dir"]: {configured}.\n'
        )
    model_dir = model_dir or configured
    return None if model_dir is None else os.fspath(model_dir)

"""MonitoredTrainingSession: the one call that a training program makes.

Follows TensorFlow 1.15, python/training/monitored_session.py; without a master it reads TF_CONFIG, so that
one script serves every task of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.chief.hooks.run_report import RunReport, is_wanted
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.chief_role import TaskPlace, failover_of, place_of_task
from globalstep.chief.sessions.session_creators import TaskCreator
from globalstep.cluster.cluster import from_tf_config
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.execution.fetches import flatten
from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.hooks.step import StepCounterHook
from globalstep.tf1.hooks.summary import SummarySaverHook
from globalstep.tf1.optimizers.minimized import loss_of
from globalstep.tf1.sessions.graph_model import GraphModel
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.variables.training_util import integer_step

#: Stands for "not given" where None means "off", as in TensorFlow.
USE_DEFAULT: Any = object()

_DEFAULT_CHECKPOINT_SECS = 600
_DEFAULT_SUMMARY_STEPS = 100


def MonitoredTrainingSession(  # noqa: N802 (TensorFlow's name)
    master: Any = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = USE_DEFAULT,
    save_summaries_steps: int | None = USE_DEFAULT,
    save_summaries_secs: float | None = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | None = USE_DEFAULT,
    summary_dir: str | None = None,
    *,
    failover_secs: float | None = None,
    progress: bool | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> MonitoredSession:
    """Make the MonitoredSession of a task: the chief's with everything, the others' with their hooks.

    On the chief the hooks stand in this order: the one that shows progress, `chief_only_hooks`, StepCounterHook,
    SummarySaverHook, CheckpointSaverHook, `hooks`. Those with names need a directory.

    Args:
        master: Target: a Server's, "grpc://host:port,..." with every PS task, or a ClusterSpec. "" takes
            the cluster of TF_CONFIG, and without one a parameter server within this process.
        is_chief: Whether this task initializes, restores, saves and ends the run. Taken from TF_CONFIG
            where `master` is.
        checkpoint_dir: Where checkpoints are restored from and saved to.
        scaffold: What makes the model ready.
        hooks: Hooks of every task.
        chief_only_hooks: Hooks of the chief.
        save_checkpoint_secs: Seconds between checkpoints; None or 0 for none. Default 600, unless
            `save_checkpoint_steps` is given.
        save_summaries_steps: Global steps between summaries. Default 100, unless `save_summaries_secs`
            is given.
        save_summaries_secs: Seconds between summaries.
        config: Configuration of the session.
        stop_grace_period_secs: Time for threads to end, and on the chief for the other workers to
            leave, in seconds.
        log_step_count_steps: Global steps between reports of their speed; None or 0 for none.
        max_wait_secs: How long a worker waits for the chief, and the chief for the parameter servers.
        save_checkpoint_steps: Global steps between checkpoints.
        summary_dir: Where summaries go; default `checkpoint_dir`.
        failover_secs: The chief's silence, in seconds, after which this task acts as chief in its place, with all
            that the chief has: its hooks, and the right to restore and to end the run. To be given to the chief
            too. Default the environment variable GLOBALSTEP_FAILOVER_SECS; 0 for never.
        progress: Whether the chief tells how the run fares: what was restored, step, speed and loss while it trains
            (on a terminal a line that changes, elsewhere a log line now and then), and how it ended. Default yes,
            unless the environment variable GLOBALSTEP_PROGRESS is 0.
        clock: Where time comes from.

    Returns:
        A MonitoredSession, ready to run.

    Raises:
        ValueError: If both seconds and steps are given for one purpose; if TF_CONFIG says that this task
            is a parameter server.
        RuntimeError: If there is no global step and a hook needs one.

    Source: TensorFlow 1.15 `tf.train.MonitoredTrainingSession`.
    """
    summaries_steps, summaries_secs = _one_of(save_summaries_steps, save_summaries_secs, _DEFAULT_SUMMARY_STEPS, None)
    checkpoint_steps, checkpoint_secs = _one_of(
        save_checkpoint_steps, save_checkpoint_secs, None, _DEFAULT_CHECKPOINT_SECS
    )
    # What a Server's target or a ClusterSpec means, the session manager knows.
    place = TaskPlace(master, is_chief) if master else place_of_task(from_tf_config(), is_chief)
    scaffold = scaffold or Scaffold()
    failover_secs = failover_of(failover_secs)
    all_hooks = list(chief_only_hooks or ())
    summary_dir = summary_dir or checkpoint_dir
    if summary_dir and log_step_count_steps and log_step_count_steps > 0:
        all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=summary_dir, clock=clock))
    if summary_dir and (_positive(summaries_steps) or _positive(summaries_secs)):
        all_hooks.append(SummarySaverHook(summaries_steps, summaries_secs, summary_dir, scaffold=scaffold, clock=clock))
    if checkpoint_dir and (_positive(checkpoint_secs) or _positive(checkpoint_steps)):
        all_hooks.append(
            CheckpointSaverHook(checkpoint_dir, checkpoint_secs, checkpoint_steps, scaffold=scaffold, clock=clock)
        )
    report = None
    if is_wanted(progress) and (place.is_chief or failover_secs is not None):
        report = RunReport([*all_hooks, *(hooks or ())], checkpoint_dir, _step, _loss_of, clock)
        # First, to see the checkpoint that was restored before a hook saves it again.
        all_hooks.insert(0, report)
    creator = TaskCreator(
        GraphModel(scaffold, config),
        place,
        max_wait_secs,
        checkpoint_dir=checkpoint_dir,
        failover_secs=failover_secs,
        chief_hooks=all_hooks,
        clock=clock,
    )
    return MonitoredSession(creator, hooks, stop_grace_period_secs, clock, report=report)


def _step() -> Any:
    return integer_step(get_default_graph())


def _loss_of(session: Session, fetches: Any) -> Any:
    return loss_of(session.graph, flatten(fetches, session.graph)[0])


def _one_of(steps: Any, secs: Any, default_steps: Any, default_secs: Any) -> tuple[Any, Any]:
    """Resolve a pair of options: passing one turns off the default of the other."""
    if steps is USE_DEFAULT and secs is USE_DEFAULT:
        return default_steps, default_secs
    return (None if steps is USE_DEFAULT else steps), (None if secs is USE_DEFAULT else secs)


def _positive(value: float | None) -> bool:
    return value is not None and value > 0

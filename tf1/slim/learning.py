"""`slim.learning.train`: a Supervisor, its session and the loop, in one call.

Layer: tf1. Source: TensorFlow 1.15 `contrib/slim/python/slim/learning.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from globalstep.errors import AbortedError, OutOfRangeError
from globalstep.files.storage import atomic_write, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.execution.tracing import Trace
from globalstep.tf1.graph.graph import Graph, Node, get_default_graph
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.constant_ops import constant
from globalstep.tf1.ops.control_flow_ops import group, tables_initializer
from globalstep.tf1.ops.summary_ops import merge_all
from globalstep.tf1.optimizers.sync_replicas_optimizer import SyncReplicasOptimizer
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.supervisor import Supervisor
from globalstep.tf1.variables.training_util import get_or_create_global_step
from globalstep.tf1.variables.variable_collections import (
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


_log = logging.getLogger("globalstep")
#: Says that an argument was not given, where None means "none".
_USE_DEFAULT: Any = 0
#: How often a worker that is to start late looks at the step.
_POLL_SECS = 1.0


def train_step(
    sess: Session, train_op: Node, global_step: Any, train_step_kwargs: Mapping[str, Any], clock: Clock = SYSTEM_CLOCK
) -> tuple[Any, bool]:
    """Make one step of `train`; a program's own function may take its place.

    Args:
        sess: The session.
        train_op: The op of `create_train_op`.
        global_step: The step.
        train_step_kwargs: Nodes that are asked: "should_stop", "should_log" and "should_trace"; with the latter,
            "logdir" for the trace, `tf_trace-<step>.json`.
        clock: Where time comes from.

    Returns:
        The loss, and whether to stop.

    Raises:
        ValueError: For "should_trace" without a "logdir".
    """
    traces = "should_trace" in train_step_kwargs
    if traces and "logdir" not in train_step_kwargs:
        raise ValueError("logdir must be present in train_step_kwargs when should_trace is present")
    trace = None
    if traces and sess.run(train_step_kwargs["should_trace"]):
        trace = sess.trace = Trace(sess.cluster.task or "session", clock)
    began = clock.monotonic()
    try:
        loss, step = sess.run([train_op, global_step])
    finally:
        if trace is not None:
            sess.trace = None
    secs = clock.monotonic() - began
    if trace is not None:
        storage = storage_for(train_step_kwargs["logdir"])
        path = storage.join(train_step_kwargs["logdir"], f"tf_trace-{step}.json")
        _log.info("Writing trace to %s", path)
        storage.make_directories(train_step_kwargs["logdir"])
        with atomic_write(storage, path) as file:
            file.write(trace.to_json().encode())
    asked = {key: train_step_kwargs[key] for key in ("should_log", "should_stop") if key in train_step_kwargs}
    told = sess.run(asked) if asked else {}
    if told.get("should_log", False):
        _log.info("global step %d: loss = %.4f (%.3f sec/step)", step, loss, secs)
    return loss, bool(told.get("should_stop", False))


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: Callable[..., tuple[Any, Any]] = train_step,
    train_step_kwargs: Any = _USE_DEFAULT,
    log_every_n_steps: int = 1,
    graph: Graph | None = None,
    master: Any = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = _USE_DEFAULT,
    init_feed_dict: Mapping[Any, Any] | None = None,
    local_init_op: Any = _USE_DEFAULT,
    init_fn: Callable[[Any], Any] | None = None,
    ready_op: Any = _USE_DEFAULT,
    summary_op: Any = _USE_DEFAULT,
    save_summaries_secs: float = 600,
    summary_writer: Any = _USE_DEFAULT,
    startup_delay_steps: int = 0,
    saver: Any = None,
    save_interval_secs: float = 600,
    sync_optimizer: Any = None,
    session_config: Any = None,
    session_wrapper: Callable[[Any], Any] | None = None,
    trace_every_n_steps: int | None = None,
    ignore_live_threads: bool = False,
) -> Any:
    """Train until a number of steps is reached, or the input ends.

    The chief initializes or restores, saves every so often and at the end, and writes summaries; others wait for it
    and train beside it until the job is done.

    Args:
        train_op: The op of `create_train_op`.
        logdir: Where checkpoints and event files go; None for neither.
        train_step_fn: Function of session, `train_op`, step and `train_step_kwargs` that makes a step and gives the
            loss and whether to stop.
        train_step_kwargs: Its keyword arguments; default as for `train_step`.
        log_every_n_steps: A line about the loss for every so many steps; 0 for none.
        graph: The graph; default the current one.
        master: Target of the session.
        is_chief: Whether this task initializes, restores and saves.
        global_step: The step; default the graph's, which is made if need be.
        number_of_steps: Step to stop at; None to go on for ever. Several workers may go a few steps beyond it, as
            with TensorFlow; `gs.train.StopAtStepHook` stops exactly.
        init_op: Operation that initializes the model.
        init_feed_dict: What to feed for it.
        local_init_op: Operation to run in every session.
        init_fn: Function of the session, called after `init_op`: restores a part of the model, for example.
        ready_op: Node that names what is not initialized.
        summary_op: Merged summaries to write; default all; None for none.
        save_summaries_secs: Seconds between summaries.
        summary_writer: Writes summaries; default a FileWriter on `logdir`.
        startup_delay_steps: Step that a worker waits for before it trains.
        saver: Saves; default a Saver of all Variables.
        save_interval_secs: Seconds between checkpoints.
        sync_optimizer: The SyncReplicasOptimizer that `train_op` was made by, or a list of them.
        session_config: Configuration of the session.
        session_wrapper: Function of the session that gives the one to train with.
        trace_every_n_steps: The chief writes a trace every so many steps.
        ignore_live_threads: Do not fail because of threads that outlive the end.

    Returns:
        The last loss; None if there was no step to make.

    Raises:
        ValueError: For arguments that mean nothing.
    """
    if train_op is None:
        raise ValueError("train_op cannot be None.")
    if logdir is None:
        options = {"summary_op": summary_op is not _USE_DEFAULT, "saver": saver is not None,
                 "trace_every_n_steps": trace_every_n_steps is not None}  # fmt: skip
        for name, is_given in options.items():
            if is_given:
                raise ValueError(f"Cannot provide {name} because logdir=None")
    if number_of_steps is not None and number_of_steps <= 0:
        raise ValueError("`number_of_steps` must be either None or a positive number.")
    replicas = [] if sync_optimizer is None else sync_optimizer
    replicas = list(replicas) if isinstance(replicas, list | tuple) else [replicas]
    if not all(isinstance(one, SyncReplicasOptimizer) and one.is_applied for one in replicas):
        raise ValueError(
            "`sync_optimizer` must be a tf.train.SyncReplicasOptimizer, or several, by which `train_op` was made; it "
            f"is {sync_optimizer!r}."
        )
    made_for = graph or get_default_graph()
    with made_for.as_default():
        step = get_or_create_global_step() if global_step is None else global_step
        saver = saver or Saver()
        with made_for.name_scope("init_ops"):
            if init_op is _USE_DEFAULT:
                init_op = global_variables_initializer()
            if ready_op is _USE_DEFAULT:
                ready_op = report_uninitialized_variables()
            if local_init_op is _USE_DEFAULT:
                local_init_op = group(local_variables_initializer(), tables_initializer())
        if summary_op is _USE_DEFAULT:
            summary_op = merge_all()
        if train_step_kwargs is _USE_DEFAULT:
            every = (log_every_n_steps, trace_every_n_steps if is_chief else None)
            train_step_kwargs = _questions(step, number_of_steps, *every)
            if "should_trace" in train_step_kwargs:
                train_step_kwargs["logdir"] = logdir
    supervisor = Supervisor(
        graph=made_for, is_chief=is_chief, logdir=logdir, init_op=init_op, init_feed_dict=init_feed_dict,
        local_init_op=local_init_op, ready_for_local_init_op=None, ready_op=ready_op, summary_op=summary_op,
        summary_writer=Supervisor.USE_DEFAULT if summary_writer is _USE_DEFAULT else summary_writer,
        global_step=step, saver=saver, save_summaries_secs=save_summaries_secs, save_model_secs=save_interval_secs,
        init_fn=init_fn,
    )  # fmt: skip
    if supervisor.summary_writer is not None:
        train_step_kwargs["summary_writer"] = supervisor.summary_writer
    loop = _TrainingLoop(supervisor, lambda session: train_step_fn(session, train_op, step, train_step_kwargs))
    loop.ignores_live_threads, loop.wrapper = ignore_live_threads, session_wrapper
    loop.begins = [one.chief_init_op if is_chief else one.local_step_init_op for one in replicas]
    loop.starts_at = min(startup_delay_steps, number_of_steps or startup_delay_steps)
    while not loop.run(master, session_config, bool(logdir)):
        _log.info("Retrying training!")
    return loop.loss


def _questions(
    step: Any, number_of_steps: int | None, log_every_n_steps: int, trace_every_n_steps: int | None
) -> dict[str, Any]:
    """Give what `train_step` asks in each step."""
    with get_default_graph().name_scope("train_step"):
        asked = {"should_stop": math_ops.greater_equal(step, number_of_steps) if number_of_steps else constant(False)}
        if log_every_n_steps > 0:
            asked["should_log"] = math_ops.equal(math_ops.mod(step, log_every_n_steps), 0)
        if trace_every_n_steps is not None:
            asked["should_trace"] = math_ops.equal(math_ops.mod(step, trace_every_n_steps), 0)
    return asked


class _TrainingLoop:
    """The loop over steps, in one session after another."""

    def __init__(self, supervisor: Supervisor, make_step: Callable[[Any], tuple[Any, Any]]) -> None:
        self.loss: Any = None
        self.starts_at = 0
        self.ignores_live_threads = False
        self.wrapper: Callable[[Any], Any] | None = None
        self.begins: list[Node] = []
        self._supervisor = supervisor
        self._make_step = make_step

    def run(self, master: Any, config: Any, keeps: bool) -> bool:
        """Train in a session; give whether training has ended, which it has not when the cluster's state was lost."""
        supervisor = self._supervisor
        try:
            with supervisor.managed_session(master, start_standard_services=False, config=config) as session:
                _log.info("Starting Session.")
                session = session if self.wrapper is None else self.wrapper(session)
                session.run(self.begins)
                if supervisor.is_chief:
                    if keeps:
                        supervisor.start_standard_services(session)
                else:
                    self._wait(session)
                threads = supervisor.start_queue_runners(session)
                _log.info("Starting Queues.")
                self._steps(session)
                if keeps and supervisor.is_chief:
                    _log.info("Finished training! Saving model to disk.")
                    supervisor.saver.save(session, supervisor.save_path, global_step=supervisor.global_step)
                    supervisor.stop(threads, ignore_live_threads=self.ignores_live_threads)
        except AbortedError:
            # The state of a PS task was lost; a new session restores it.
            return False
        return True

    def _steps(self, session: Session) -> None:
        try:
            while not self._supervisor.should_stop():
                self.loss, should_stop = self._make_step(session)
                if should_stop:
                    _log.info("Stopping Training.")
                    self._supervisor.request_stop()
        except OutOfRangeError as error:
            _log.info("Caught OutOfRangeError. Stopping Training. %s", error)

    def _wait(self, session: Session) -> None:
        """Wait for the step at which this worker starts."""
        if self.starts_at <= 0:
            return
        step = self._supervisor.global_step
        _log.info("Waiting for global step %d before starting training.", self.starts_at)
        while not self._supervisor.should_stop() and int(session.run(step)) < self.starts_at:
            self._supervisor.coord.wait_for_stop(_POLL_SECS)

"""CheckpointSaver: saves checkpoints, and calls its listeners.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py, but that a checkpoint bears the step
of its own snapshot: `model.ckpt-N` holds exactly the pushes 1..N (invariant I3). And training goes on while one is
written: a run waits for the snapshot only.

Layer: chief. Threads: one for a save that is being written, which the hook joins; all else happens in the session's
thread, the listeners' calls too.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.checkpoints.cluster_saver import BackgroundSave
from globalstep.chief.events.events import WRITERS
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import GlobalStep, RunSession, step_now
from globalstep.errors import OpError
from globalstep.files.storage import is_full
from globalstep.files.tensorboard_protos import SessionLog
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator


_log = logging.getLogger("globalstep")


class CheckpointSaverListener:
    """Base of those who act around a CheckpointSaverHook's saves. Every method here does nothing."""

    def begin(self) -> None:
        """Prepare before the session exists."""

    def before_save(self, session: RunSession, global_step_value: int) -> None:
        """Act before a save.

        Args:
            session: The session below the hooks.
            global_step_value: The global step just before the save.
        """

    def after_save(self, session: RunSession, global_step_value: int) -> bool | None:
        """Act when a checkpoint is durable: within a run or at the end, perhaps some steps after its own.

        Args:
            session: The session below the hooks.
            global_step_value: The step of the checkpoint.

        Returns:
            True to ask for training to stop.
        """
        return None

    def end(self, session: RunSession, global_step_value: int) -> None:
        """Act at the end of the session, after the last save.

        Args:
            session: The session below the hooks.
            global_step_value: The last global step.
        """


class CheckpointSaver(SessionRunHook):
    """Saves a checkpoint at the start, every so many steps or seconds, and at the end.

    The first and the last are durable before training begins and when the session has ended. Those in
    between are written while training goes on, one at a time: a save that is due while another is being
    written waits for that, and the run with it. What goes wrong while writing is raised in the next run, or
    at the end; but a full disk ends no training: it is warned of, and the next save is tried when it is due. Only the
    last one raises. A saver that does not say `saves_in_background` saves within the run.

    Args:
        checkpoint_dir: Where checkpoints go.
        save_secs: Save every so many seconds.
        save_steps: Or every so many global steps.
        saver: Has `save`, and `start_save` where it `saves_in_background`.
        checkpoint_basename: Name of the checkpoints before "-<step>".
        listeners: Called around each save.
        clock: Where time comes from.
        step: The global step.

    Raises:
        ValueError: If not exactly one of `save_secs` and `save_steps` is given.
    """

    #: Its work is that of the whole run: it goes on while the chief waits for the others to end.
    keeps_watch = True
    #: One task has it: the chief.
    saves_run = True

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        listeners: Sequence[CheckpointSaverListener] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        step: Any = None,
    ) -> None:
        _log.info("Create CheckpointSaverHook.")
        self._saver = saver
        self._checkpoint_dir = os.fspath(checkpoint_dir)
        self._save_path = os.path.join(self._checkpoint_dir, checkpoint_basename)
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps, clock=clock)
        self._save_steps = save_steps
        # The step from which on the next save is due, where saves are by steps; None before the first save.
        self._due_from: int | None = None
        self._listeners = list(listeners or ())
        self._writer: Any = None
        self._step = step
        self._coord: Any = None
        # The save that is being written, or whose result was not taken yet.
        self._pending: BackgroundSave | None = None
        self._clock = clock
        # Since when there is no room for a checkpoint; None while there is.
        self._full_since: float | None = None

    def add_listeners(self, listeners: Iterable[CheckpointSaverListener]) -> None:
        """Have more listeners called around each save, after those that there are; before `begin`."""
        self._listeners.extend(listeners)

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None:
            self._writer = WRITERS.get(self._checkpoint_dir)
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: writes a checkpoint of the state as it starts."""
        self._coord = coord
        self._settle_old(session)
        self._describe()
        self._save(session)

    def _describe(self) -> None:
        """Write what describes the model, beside its checkpoints."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        self._settle_done(run_context)
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: saves when it is time."""
        self._settle_done(run_context)
        if run_values.results is None:
            return
        if run_context.session.cluster.heartbeat.draining:
            self._save_before_a_drain(run_context)
            return
        if self._is_asked(run_context.session) and self._start_save(run_context.session):
            run_context.request_stop()
        if self._is_due(int(run_values.results) + 1):
            step = step_now(run_context.session, self._step)
            if self._is_due(step) and self._start_save(run_context.session):
                run_context.request_stop()

    def _is_asked(self, session: RunSession) -> bool:
        """Whether PS tasks ask for a checkpoint, because their write-ahead logs are long, and none is being written."""
        asked = session.cluster.heartbeat.take_save_asked()
        if not asked or self._pending is not None:
            return False
        labels = ", ".join(session.cluster.run.labels[shard] for shard in sorted(asked))
        _log.info("Saving an extra checkpoint now: the write-ahead log of %s is long.", labels)
        return True

    def _is_due(self, step: int) -> bool:
        """Whether to save at a step: at the marks that lie `save_steps` apart, however late the save before was."""
        if self._due_from is not None:
            return step >= self._due_from and step != self._timer.last_triggered_step()
        return self._timer.should_trigger_for_step(step)

    def _saved_at(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        if self._save_steps is None:
            return
        if self._due_from is None:
            self._due_from = step + self._save_steps
        elif step >= self._due_from:
            # A run that ended beyond the mark, since other workers push too, does not shift the marks to come.
            self._due_from += self._save_steps * (1 + (step - self._due_from) // self._save_steps)

    def save_last(self, session: RunSession) -> int:
        """Save the last step, unless it is saved; gives it. It is durable then.

        At the step limit the session calls this before its loop hears of the end, so that what a PS task loses in
        between can still be trained again.
        """
        try:
            self._finish_save(session)
        finally:
            # The last step is saved even where the save before it failed.
            last_step = _admitted_step(session, self._step)
            if last_step != self._timer.last_triggered_step() or self._full_since is not None:
                self._save(session, is_last=True)
        return last_step

    def end(self, session: RunSession) -> None:
        """See SessionRunHook: saves the last step, unless it is saved."""
        last_step = self.save_last(session)
        if session.cluster.heartbeat.draining:
            session.cluster.membership.let_end(session.cluster.heartbeat.draining)
        for listener in self._listeners:
            listener.end(session, last_step)

    def _save_before_a_drain(self, run_context: SessionRunContext) -> None:
        """Save for PS tasks that are about to end, and tell them that they may."""
        cluster = run_context.session.cluster
        shards = cluster.heartbeat.draining
        _log.info("Saving a checkpoint now: %s about to end.", ", ".join(cluster.run.labels[shard] for shard in shards))
        should_stop = self._finish_save(run_context.session)
        if self._save(run_context.session) or should_stop:
            run_context.request_stop()
        if self._full_since is None:
            cluster.membership.let_end(shards)

    def _save(self, session: RunSession, is_last: bool = False) -> bool:
        """Save, and wait until it is durable; say whether a listener wants training to stop."""
        step = self._before_save(session)
        try:
            # The step goes along as a node, so that the saver names the checkpoint by its own snapshot: other
            # workers push between our read and it.
            path = self._find_saver().save(session, self._save_path, global_step=self._step)
        except (OpError, OSError) as error:
            if is_last:
                raise
            self._bear(error)
            self._saved_at(step)
            return False
        step = _step_of(path, step)
        self._saved_at(step)
        return self._after_save(session, step)

    def _start_save(self, session: RunSession) -> bool:
        """Take the snapshot, and have it written; say whether a listener wants training to stop."""
        saver = self._find_saver()
        if not getattr(saver, "saves_in_background", False):
            return self._save(session)
        should_stop = self._finish_save(session)
        step = self._before_save(session)
        try:
            self._pending = saver.start_save(session, self._save_path, global_step=self._step)
        except (OpError, OSError) as error:
            self._bear(error)
            self._saved_at(step)
            return should_stop
        if self._coord is not None:
            # So a session that fails waits for the checkpoint before it takes the PS tasks away.
            self._coord.register_thread(self._pending.thread)
        self._saved_at(_step_of(self._pending.prefix, step))
        return should_stop

    def _settle_done(self, run_context: SessionRunContext) -> None:
        """Do what follows a save if it has ended; raises what it failed with."""
        if self._pending is not None and self._pending.done() and self._finish_save(run_context.session):
            run_context.request_stop()

    def _finish_save(self, session: RunSession) -> bool:
        """Wait for the save that is being written; say whether a listener wants training to stop."""
        if self._pending is None:
            return False
        save, self._pending = self._pending, None
        try:
            path = save.result()
        except (OpError, OSError) as error:
            self._bear(error)
            return False
        return self._after_save(session, _step_of(path, 0))

    def _bear(self, error: OpError | OSError) -> None:
        """Go on where the disk is full: the checkpoints from before are there, and somebody may make room.

        Raises:
            OpError: `error`, if it says something else.
            OSError: The same.
        """
        if not is_full(error):
            raise error
        now = self._clock.monotonic()
        if self._full_since is None:
            self._full_since = now
        _log.warning(
            "There is no room for a checkpoint in %s (for %.0f s now): %s Training goes on, and the next save is tried "
            "when it is due; a PS task that dies meanwhile takes all back to the checkpoint before.",
            self._checkpoint_dir,
            now - self._full_since,
            error,
        )

    def _settle_old(self, session: RunSession) -> None:
        """Do what follows a save of a session that was lost; that it was lost needs no saying again."""
        try:
            self._finish_save(session)
        except OpError as error:
            _log.info("The checkpoint that was being written when the session was lost is not there: %s", error)

    def _before_save(self, session: RunSession) -> int:
        """Tell log and listeners of a save; gives the step."""
        step = step_now(session, self._step)
        _log.info("Saving checkpoints for %d into %s.", step, self._save_path)
        for listener in self._listeners:
            listener.before_save(session, step)
        return step

    def _after_save(self, session: RunSession, step: int) -> bool:
        """Tell events and listeners of a checkpoint; say whether one of them wants training to stop."""
        if self._full_since is not None:
            secs, self._full_since = self._clock.monotonic() - self._full_since, None
            _log.warning(
                "There is room in %s again, after %.0f s without: a checkpoint is there for step %d.",
                self._checkpoint_dir,
                secs,
                step,
            )
        self._writer.add_session_log(SessionLog(status=SessionLog.CHECKPOINT, checkpoint_path=self._save_path), step)
        should_stop = False
        for listener in self._listeners:
            if listener.after_save(session, step):
                _log.info("A CheckpointSaverListener requested that training be stopped. listener: %s", listener)
                should_stop = True
        return should_stop

    def _find_saver(self) -> Any:
        return self._saver


def _admitted_step(session: RunSession, step: GlobalStep) -> int:
    """Read a step with the pushes that are decided but not yet applied everywhere: a save would hold them."""
    steps = [status.steps[step.op_name] for status in session.cluster.refresh() if step.op_name in status.steps]
    return max(steps) if steps else step_now(session, step)


def _step_of(path: Any, default: int) -> int:
    match = re.search(r"-(\d+)$", path) if isinstance(path, str) else None
    return int(match.group(1)) if match else default

"""The threads of a Supervisor: summaries, steps per second, checkpoints, each at its interval.

Follows TensorFlow 1.15, python/training/supervisor.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.run_model import step_now
from globalstep.files.tensorboard_protos import SessionLog, Summary
from globalstep.tf1.sessions.looper_thread import LooperThread

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session
    from globalstep.tf1.sessions.supervisor import Supervisor


_log = logging.getLogger("globalstep")


class _Service(LooperThread):
    """One of the threads.

    Args:
        sv: The Supervisor.
        sess: The session.
    """

    NAME, INTERVAL = "", "save_summaries_secs"

    def __init__(self, sv: Supervisor, sess: Session) -> None:
        super().__init__(sv.coord, getattr(sv, self.INTERVAL), name=f"supervisor-{self.NAME}", clock=sv.clock)
        self._sv, self._sess = sv, sess


class SVSummaryThread(_Service):
    """Evaluates and writes a Supervisor's summaries every `save_summaries_secs`."""

    NAME = "summaries"

    def run_loop(self) -> None:
        """See LooperThread."""
        sv = self._sv
        summary = self._sess.run(sv.summary_op)
        step = None if sv.global_step is None else step_now(self._sess, sv.global_step)
        _log.info("Recording summary at step %s.", step)
        sv.summary_writer.add_summary(summary, step)


class SVStepCounterThread(_Service):
    """Reports a Supervisor's global steps per second every `save_summaries_secs`."""

    NAME = "step-counter"

    def __init__(self, sv: Supervisor, sess: Session) -> None:
        super().__init__(sv, sess)
        self._step: Any = sv.global_step  # made by `start_standard_services` only where there is one
        self._tag = f"{self._step.op.name}/sec"
        self._last_time = 0.0
        self._last_step = 0

    def start_loop(self) -> None:
        """See LooperThread: steps are counted from here."""
        self._last_time = self._sv.clock.monotonic()
        self._last_step = step_now(self._sess, self._step)

    def run_loop(self) -> None:
        """See LooperThread."""
        sv, now = self._sv, self._sv.clock.monotonic()
        step = step_now(self._sess, self._step)
        elapsed_secs = now - self._last_time
        rate = (step - self._last_step) / elapsed_secs if elapsed_secs > 0 else float("inf")
        self._last_time, self._last_step = now, step
        sv.summary_writer.add_summary(Summary(value=[Summary.Value(tag=self._tag, simple_value=rate)]), step)
        _log.info("%s: %g", self._tag, rate)


class SVTimerCheckpointThread(_Service):
    """Saves a Supervisor's checkpoints every `save_model_secs`."""

    NAME, INTERVAL = "checkpoints", "save_model_secs"

    def run_loop(self) -> None:
        """See LooperThread."""
        sv = self._sv
        _log.info("Saving checkpoint to path %s", sv.save_path)
        sv.saver.save(self._sess, sv.save_path, global_step=sv.global_step)
        if sv.summary_writer is not None and sv.global_step is not None:
            sv.summary_writer.add_session_log(
                SessionLog(status=SessionLog.CHECKPOINT, checkpoint_path=sv.save_path),
                step_now(self._sess, sv.global_step),
            )

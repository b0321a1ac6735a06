"""ProgressHook: one live line on a terminal, plain log lines elsewhere.

Layer: tf1.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from globalstep.chief.hooks.progress import PROGRESS_PREFIX, progress_line
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.sessions.run_model import step_now
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import is_terminal, write_line
from globalstep.tf1.hooks.step import global_step_for

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator
    from globalstep.tf1.sessions.session import Session


__all__ = ["ProgressHook"]

_log = logging.getLogger("globalstep")

_LAUNCHER_VARIABLE = "GLOBALSTEP_LAUNCH"
_PLAIN_EVERY_SECS = 5.0
# Erases what is left of a longer line before.
_ERASE_REST = "\x1b[K"


class ProgressHook(SessionRunHook):
    """Shows the global step, its speed, the loss, and the estimated time left.

    Under `globalstep launch` (GLOBALSTEP_LAUNCH=1) the launcher renders the line; on a terminal it is
    one line that changes; elsewhere a log line every 5 s.

    Args:
        last_step: The step that training will stop at, where it is known.
        loss: Node of the loss, or None.
        every_secs: Seconds between changes of the live line.
        stream: Where the line goes; default sys.stdout.
        clock: Where time comes from.
    """

    #: The run's report leaves it to this one.
    shows_progress = True

    def __init__(
        self,
        last_step: int | None = None,
        loss: Any = None,
        every_secs: float = 1.0,
        stream: TextIO | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._last_step = last_step
        self._loss = loss
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._launched = os.environ.get(_LAUNCHER_VARIABLE) == "1"
        self._live = not self._launched and is_terminal(self._stream)
        plain = not (self._launched or self._live)
        self._every_secs = max(every_secs, _PLAIN_EVERY_SECS) if plain else every_secs
        self._step: Any = None
        self._shown_at: float | None = None
        # Where the speed is counted from: the last line shown, or the end of the first run. What comes before,
        # compiling and connecting, is no measure of it.
        self._counted_from: tuple[float, int] | None = None
        self._last_loss: Any = None
        self._line_open = False

    def begin(self) -> None:
        """See SessionRunHook."""
        self._step = global_step_for("ProgressHook")

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """See SessionRunHook: the speed is counted from the end of the first run."""
        self._shown_at = self._clock.monotonic()
        self._counted_from = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        fetches = {"step": self._step}
        if self._loss is not None:
            fetches["loss"] = self._loss
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook."""
        results = run_values.results or {}
        if results.get("loss") is not None:
            self._last_loss = results["loss"]
        if results.get("step") is None:
            return
        now, step = self._clock.monotonic(), int(results["step"]) + 1
        if self._shown_at is None or now - self._shown_at >= self._every_secs:
            self._show(step)
        elif self._counted_from is None:
            self._counted_from = now, step

    def end(self, session: Session) -> None:
        """See SessionRunHook: shows the last step."""
        self._show(step_now(session, self._step))
        if self._line_open:
            write_line(self._stream, "")
            self._line_open = False

    def _show(self, step: int) -> None:
        now = self._clock.monotonic()
        began, first = self._counted_from or (now, step)
        rate = (step - first) / (now - began) if now > began else 0.0
        self._shown_at, self._counted_from = now, (now, step)
        line = progress_line(step, rate, self._last_step, self._last_loss)
        if self._launched:
            write_line(self._stream, f"{PROGRESS_PREFIX}{line}")
        elif self._live:
            write_line(self._stream, f"\r{line}{_ERASE_REST}", end="")
            self._line_open = True
        else:
            _log.info("%s", line)

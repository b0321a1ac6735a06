"""MonitoredSession of the chief, which reports at its end how the run went.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.chief.journal.run_report import RunReport
from globalstep.runtime.clock import Clock
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.session_run_hook import SessionRunHook

__all__ = ["ReportedSession"]


class ReportedSession(MonitoredSession):
    """A MonitoredSession that ends with a word about the run.

    Args:
        session_creator: As of MonitoredSession.
        hooks: As of MonitoredSession.
        stop_grace_period_secs: As of MonitoredSession.
        clock: As of MonitoredSession.
        report: Is among the hooks, of this task or of the chief that it may become.
    """

    def __init__(
        self,
        session_creator: Any,
        hooks: Sequence[SessionRunHook],
        stop_grace_period_secs: float,
        clock: Clock,
        report: RunReport,
    ) -> None:
        self._report = report
        super().__init__(session_creator, hooks, stop_grace_period_secs, clock)

    def _close(self, failed: type[BaseException] | None) -> None:
        try:
            super()._close(failed)
        except SystemExit:
            self._report.conclude(stopped=True)
            raise
        except BaseException as error:
            self._report.conclude(failed=failed or type(error))
            raise
        self._report.conclude(failed=failed)

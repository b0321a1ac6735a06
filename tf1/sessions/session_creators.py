"""Session creators of a MonitoredSession: the chief's, and the other workers'.

Follows TensorFlow 1.15, python/training/monitored_session.py.
"""

from __future__ import annotations

from typing import Any

from globalstep.chief.sessions.chief_role import TaskPlace
from globalstep.chief.sessions.session_creators import (
    CHIEF_MAX_WAIT_SECS,
    WORKER_MAX_WAIT_SECS,
    SessionCreator,
    TaskCreator,
    saved_term,
)
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.sessions.graph_model import GraphModel
from globalstep.tf1.sessions.scaffold import Scaffold

__all__ = ["ChiefSessionCreator", "SessionCreator", "WorkerSessionCreator", "saved_term"]


class ChiefSessionCreator(TaskCreator):
    """Initializes or restores the model, or takes over a running one.

    Args:
        scaffold: What makes the model ready.
        master: Target of the session: "" for a PS within the process, "grpc://host:port", or a
            ClusterSpec.
        config: Configuration of the session.
        checkpoint_dir: Where to restore from.
        checkpoint_filename_with_path: A checkpoint to restore instead.
        max_wait_secs: How long to wait for PS tasks that do not answer, in seconds.
        clock: Where time comes from.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: Any = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        max_wait_secs: float = CHIEF_MAX_WAIT_SECS,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(
            GraphModel(scaffold or Scaffold(), config),
            TaskPlace(master, is_chief=True),
            max_wait_secs,
            checkpoint_dir=checkpoint_dir,
            checkpoint=checkpoint_filename_with_path,
            clock=clock,
        )


class WorkerSessionCreator(TaskCreator):
    """Waits until the chief has made the model ready.

    Args:
        scaffold: What tells whether the model is ready.
        master: Target of the session.
        config: Configuration of the session.
        max_wait_secs: When to give up, in seconds.
        clock: Where time comes from.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: Any = "",
        config: Any = None,
        max_wait_secs: float = WORKER_MAX_WAIT_SECS,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        model, place = GraphModel(scaffold or Scaffold(), config), TaskPlace(master, is_chief=False)
        super().__init__(model, place, max_wait_secs, clock=clock)

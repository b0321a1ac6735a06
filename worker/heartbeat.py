"""Keeps a client's lease: a thread that tells every PS task that the client is alive.

Floor: worker. Threads: one, named "globalstep-heartbeat", owned by the Heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from globalstep.clock import Clock
from globalstep.errors import OpError
from globalstep.lanes import Lane
from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.retry import POLICIES

__all__ = ["Heartbeat"]

_log = logging.getLogger(__name__)

#: Seconds of silence after which a PS takes a client for gone.
LEASE_SECS = 15.0
_PERIOD_SECS = 2.0


class Heartbeat:
    """A client's sign of life.

    Args:
        lanes: To every PS task.
        client: The client's id.
        task: "/job:worker/task:1"; "" where not known.
        clock: Paces it.
    """

    def __init__(self, lanes: Sequence[Lane], client: str, task: str, clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._message = pb.HeartbeatRequest(client=client, task=task, lease_secs=LEASE_SECS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="globalstep-heartbeat", daemon=True)
        self._job_done = threading.Event()

    @property
    def job_done(self) -> bool:
        """Whether a PS task has said that the job is done."""
        return self._job_done.is_set()

    def start(self) -> None:
        """Give the first sign of life, then start the thread."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def beat(self) -> None:
        """Tell every PS task once; one that cannot be reached is left to those who need it."""
        secs = POLICIES["Heartbeat"].deadline_secs
        calls = [(lane, lane.unary("Heartbeat", self._message, secs)) for lane in self._lanes]
        for lane, call in calls:
            try:
                if call.result().state == pb.STATE_DONE:
                    self._job_done.set()
            except OpError as error:
                _log.debug("No heartbeat to %s: %s", lane.label, error)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, _PERIOD_SECS):
            self.beat()
            for lane in self._lanes:
                lane.expire()

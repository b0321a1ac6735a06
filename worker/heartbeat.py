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
#: So many signs of life in a row that nobody answers, and PS tasks that may have ended have ended.
_SILENT_BEATS = 3


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
        # The process stood still for longer than its lease, and no PS task has answered since.
        self._overslept = threading.Event()
        # Signs of life in a row that nobody answered; written by the thread.
        self._silent_beats = 0

    @property
    def job_done(self) -> bool:
        """Whether a PS task has said that the job is done."""
        return self._job_done.is_set()

    def gone(self) -> bool:
        """Whether the PS tasks seem to have ended.

        They have not answered a few times, and had said that the job is done, or need not have waited for this
        client, which slept past its lease.
        """
        return self._silent_beats >= _SILENT_BEATS and (self._job_done.is_set() or self._overslept.is_set())

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
        self._silent_beats += 1
        for lane, call in calls:
            try:
                if call.result().state == pb.STATE_DONE:
                    self._job_done.set()
                self._silent_beats = 0
                self._overslept.clear()
            except OpError as error:
                _log.debug("No heartbeat to %s: %s", lane.label, error)

    def _run(self) -> None:
        last = self._clock.monotonic()
        while not self._clock.wait(self._stop, _PERIOD_SECS):
            if self._clock.monotonic() - last > LEASE_SECS:
                self._overslept.set()
            self.beat()
            for lane in self._lanes:
                lane.expire()
            last = self._clock.monotonic()

"""Keeps a client's lease: a thread that tells every PS task that the client is alive, and hears what is new.

Layer: worker. Threads: one, named "globalstep-heartbeat", owned by the Heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from globalstep.cluster.process_place import this_process
from globalstep.cluster.run_identity import NO_RUN
from globalstep.errors import OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.known_progress import KnownProgress
from globalstep.wire.progress_messages import progress_messages
from globalstep.wire.transports import Transport, ask_all, ask_each
from globalstep.worker.client.calls import POLICIES
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.joined_run import SHUTDOWN_SECS, Shutdown
from globalstep.worker.client.leaving import leave_at_exit

_log = logging.getLogger("globalstep")

#: Seconds of silence after which a PS takes a client for gone.
LEASE_SECS = 15.0
_PERIOD_SECS = 1.0
#: After this many unanswered heartbeats in a row, a PS task that may have finished counts as finished.
_SILENT_BEATS = 6
#: After this many, a process that has been asked to end no longer waits for the task's answers.
_SHUTDOWN_BEATS = 2


class Heartbeat:
    """A client's sign of life.

    Args:
        transports: To every PS task.
        client: The client's id.
        task: "/job:worker/task:1"; "" where not known.
        clock: Paces it.

    Attributes:
        candidate: Set where this client's process may act as chief: it hears of the chief's lease, and keeps it so.
        sequencer: Index of the PS task that knows what clients have pushed.
        draining: Indices of PS tasks that are about to end and wait for a checkpoint, as last heard.
        save_asked: Indices of PS tasks that have asked this chief for a checkpoint since it was last cleared.
        processes: The process of each task that was heard to be about to end.
        shutdown: Whether the process has been asked to end.
        known_progress: What it has heard of the run's decisions; a PS task that lost its state hears it so.
        run: The run that the client takes part in, as far as it knows.
        takes_task: Whether it trains as its task, which no other process does.
        job_done: Whether a PS task has said that the job is done.
    """

    def __init__(self, transports: Sequence[Transport], client: str, task: str, clock: Clock) -> None:
        self._transports = transports
        self._clock = clock
        self._client = client
        self._task = task
        self.candidate: Candidate | None = None
        self.sequencer = 0
        self.draining: frozenset[int] = frozenset()
        self.save_asked: frozenset[int] = frozenset()
        self.shutdown = Shutdown()
        self.known_progress = KnownProgress()
        self.run = NO_RUN
        self.takes_task = False
        self._process = this_process()
        # PS tasks that have answered, and so know the client by its task. Only grows.
        self._known_to: set[int] = set()
        self.processes: dict[int, str] = {}
        # The greatest chief's term that PS task 0 has reported.
        self._known_term = 0
        # By task, as _silent_beats.
        self._unanswered = [0] * len(transports)
        # Guards the next; a leaf.
        self._lock = threading.Lock()
        # Further transports to all tasks.
        self._beside: list[Sequence[Transport]] = []
        self._left = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="globalstep-heartbeat", daemon=True)
        self.job_done = False
        # The process stood still for longer than its lease, and no PS task has answered since.
        self._overslept = False
        # Unanswered heartbeats in a row; written by the thread.
        self._silent_beats = 0

    def take_save_asked(self) -> frozenset[int]:
        """Give the indices of PS tasks that have asked for a checkpoint, once: their write-ahead logs are long."""
        asked, self.save_asked = self.save_asked, frozenset()
        return asked

    def gone(self, shard: int | None = None) -> bool:
        """Whether the PS tasks seem to have ended, or one of them.

        They have not answered a few times, and had said that the job is done, or need not have waited for this
        client, which slept past its lease.
        """
        silent_beats = self._silent_beats if shard is None else self._unanswered[shard]
        return silent_beats >= _SILENT_BEATS and (self.job_done or self._overslept)

    def start(self) -> None:
        """Give the first sign of life, then start the thread."""
        self.beat()
        self._thread.start()
        leave_at_exit(self)

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def watch(self, transports: Sequence[Transport]) -> None:
        """Break off what takes too long over further transports to the tasks as well, until `unwatch`. Thread-safe."""
        with self._lock:
            self._beside.append(transports)

    def unwatch(self, transports: Sequence[Transport]) -> None:
        """Undo `watch`. Thread-safe."""
        with self._lock:
            self._beside.remove(transports)

    def goodbye(self, unfinished: bool, leaves_lease: bool) -> None:
        """Tell every PS task that the client leaves; those that are gone are skipped.

        Args:
            unfinished: Its task may be started again: the process has failed, or was asked to end.
            leaves_lease: The process gives up the chief's lease as well.
        """
        self._left = True
        request = pb.LeaveRequest(client=self._client, task=self._task, unfinished=unfinished)
        if self.candidate is not None and leaves_lease:
            request.candidate, request.chief_term = self.candidate.id, self.candidate.term
        for _ in ask_all(self._transports, "Leave", request, POLICIES["Leave"].deadline_secs):
            pass  # its lease ends it

    def leave_with_process(self, unfinished: bool) -> None:
        """Leave, since the interpreter ends and the program has not closed the client."""
        if not self._left:
            self.stop()
            self.goodbye(unfinished or self.shutdown.asked, leaves_lease=True)

    def introduce(self) -> None:
        """Give a sign of life to the PS tasks that have not answered one, before anything else is asked of them.

        They know by it whose pushes they take, and which clients the end of the job is to wait for.
        """
        if self._thread.ident is None:
            return  # it keeps no lease
        secs = POLICIES["Heartbeat"].deadline_secs
        messages = {index: self._message() for index in range(len(self._transports)) if index not in self._known_to}
        for index, reply in ask_each(self._transports, "Heartbeat", messages, secs):
            if isinstance(reply, OpError):
                _log.debug("Not introduced to %s: %s", self._transports[index].label, reply)
            else:
                self._heard(index, reply)

    def _message(self) -> pb.HeartbeatRequest:
        known_term = max(self._known_term, self.candidate.known_term if self.candidate is not None else 0)
        return pb.HeartbeatRequest(
            client=self._client,
            task=self._task,
            lease_secs=LEASE_SECS,
            told=progress_messages(self.known_progress),
            known_term=known_term,
            process=self._process.encode(),
            takes_task=self.takes_task,
            run=self.run.encode(),
        )

    def _heard(self, index: int, reply: pb.HeartbeatReply) -> None:
        """Take note that a PS task has answered."""
        self._known_to.add(index)
        if index == 0:
            self._known_term = max(self._known_term, reply.chief.term)
        if reply.state == pb.STATE_DONE:
            self.job_done = True

    def beat(self) -> None:
        """Tell every PS task once; those that cannot be reached are skipped."""
        secs, candidate = POLICIES["Heartbeat"].deadline_secs, self.candidate
        if self.shutdown.asked:
            secs = min(secs, SHUTDOWN_SECS)
        messages = {}
        for index in range(len(self._transports)):
            message = messages[index] = self._message()
            if candidate is not None and candidate.term:
                message.candidate, message.chief_term = candidate.id, candidate.term
        self._silent_beats += 1
        draining = set()
        for index, reply in ask_each(self._transports, "Heartbeat", messages, secs):
            if isinstance(reply, OpError):
                _log.debug("No heartbeat to %s: %s", self._transports[index].label, reply)
                self._unanswered[index] += 1
                continue
            self._silent_beats = self._unanswered[index] = 0
            self._overslept = False
            self._heard(index, reply)
            if reply.draining:
                self.processes[index] = reply.process
                draining.add(index)
            if reply.save_asked:
                self.save_asked |= {index}
            if candidate is not None and index == 0:
                candidate.heard(reply.chief)
        self.draining = frozenset(draining)

    def _run(self) -> None:
        last = self._clock.monotonic()
        while not self._clock.wait(self._stop, _PERIOD_SECS):
            if self._clock.monotonic() - last > LEASE_SECS:
                self._overslept = True
            self.beat()
            with self._lock:
                ways = [self._transports, *self._beside]
            for transports in ways:
                self._break_off(transports)
            last = self._clock.monotonic()

    def _break_off(self, transports: Sequence[Transport]) -> None:
        """Break off what has taken too long; give up silent tasks where this process is to end."""
        for transport, unanswered in zip(transports, self._unanswered, strict=True):
            transport.expire()
            if self.shutdown.asked:
                text = f"{transport.label} is silent, and this process has been asked to end."
                transport.give_up(UnavailableError(text) if unanswered >= _SHUTDOWN_BEATS else None)

"""Storage of a run's journal: the chief fetches the sequencer's records and keeps them in the run's directory.

Every few seconds, before each checkpoint comes into being, and when the session ends. What is fetched is durable
before the sequencer forgets it, and a chief that was started again goes on where the files end. A journal
that cannot be stored now does not hold up training: it waits in the sequencer's memory, with a line in the log.

Layer: chief. Threads: one, named "globalstep-journal", owned by the JournalKeeper.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from globalstep.chief.journal.journal_files import (
    SEGMENT_RECORDS,
    Batch,
    Header,
    SegmentName,
    encode_batch,
    journal_directory,
    read_segment,
    segment_names,
    write_segment,
)
from globalstep.errors import AbortedError, FailedPreconditionError, LostStateError, OpError
from globalstep.files.journal_records import last_entry
from globalstep.files.storage import path_error, storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.progress_messages import read_progress

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


_log = logging.getLogger("globalstep")

PERIOD_SECS = 5.0
_DEADLINE_SECS = 10.0
#: At the end the chief does not wait long for a sequencer that is gone.
_LAST_DEADLINE_SECS = 2.0
_SEGMENT_BYTES = 1 << 20


class JournalKeeper:
    """Stores the journal of one incarnation. Thread-safe."""

    def __init__(self, cluster: ClusterClient, directory: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster = cluster
        self._directory = directory
        self._clock = clock
        self._incarnation = cluster.incarnation
        # Makes those who catch up take turns, and guards the attributes below: calls and writes are made under it,
        # since what was fetched must be stored before the next is asked for. Nothing else is taken under it but what
        # a call takes.
        self._lock = threading.Lock()
        self._over = False
        self._failing = False
        self._life = ""
        self._position = 0
        self._last_index = 0
        self._known_clients = 0
        self._header: Header | None = None
        self._segment: SegmentName | None = None
        self._batches: list[bytes] = []
        self._records = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="globalstep-journal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and store what there is now. Safe to call twice, or without a start."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.catch_up(_LAST_DEADLINE_SECS)

    @property
    def stored_index(self) -> int:
        """The last entry that is stored; it and all before it will not be lost with the sequencer."""
        # A number that only grows: who catches up now, perhaps for long, is not waited for.
        return self._last_index

    def catch_up(self, deadline_secs: float = _DEADLINE_SECS) -> bool:
        """Fetch and store all that the sequencer has written down; gives whether all of it is stored now."""
        with self._lock:
            try:
                while not self._over and self._fetch(deadline_secs):
                    pass
            except LostStateError as error:
                # It may come back from its log, and the incarnation go on; if not, the next keeper finds a new one.
                _log.debug("The journal of incarnation %d waits for its sequencer: %s", self._incarnation, error)
                return False
            except (AbortedError, FailedPreconditionError) as error:
                # The incarnation has ended, or has no journal.
                self._over = True
                _log.debug("No more is to be stored of the journal of incarnation %d: %s", self._incarnation, error)
            except (OpError, OSError) as error:
                if not self._failing:
                    _log.warning("The journal in %s cannot be written now; trying on: %s", self._directory, error)
                self._failing = True
                return False
            self._failing = False
            return not self._over

    def _run(self) -> None:
        while not self._clock.wait(self._stop, PERIOD_SECS):
            self.catch_up()

    # ---- Under the lock -----------------------------------------------------------------------

    def _fetch(self, deadline_secs: float) -> bool:
        """Fetch and store some records; gives whether there are more."""
        if self._segment is None:
            self._take_up()
        reply: pb.ReadJournalReply = self._cluster.run.read_journal(
            pb.ReadJournalRequest(
                incarnation=self._incarnation,
                life=self._life,
                position=self._position,
                known_clients=self._known_clients,
                after_index=self._last_index,
            ),
            deadline_secs,
        )
        batch = Batch(
            reply.life,
            reply.first,
            reply.records,
            {number: (item.client, item.task) for number, item in enumerate(reply.clients, reply.first_client)},
            list(reply.steps),
        )
        more = batch.end < reply.end
        self._hear(reply)
        policy = {field.name: value for field, value in reply.policy.ListFields()}
        begin = reply.begin_index, dict(reply.begin_steps), reply.parent, reply.shards, policy
        header = replace(
            # A sequencer that came back from its log began later than the incarnation did.
            self._header or Header(self._incarnation, *begin),
            told=dict(self._cluster.run.known_progress.before(self._incarnation)),
            complete=self._stop.is_set() and reply.alone and not more,
            run=self._cluster.run.identity.id,
        )
        if batch.records or (header != self._header and (header.told or self._header is not None)):
            self._store(header, batch)
        return more

    def _hear(self, reply: pb.ReadJournalReply) -> None:
        """Take note of what others know of earlier incarnations; say what the announcement of the restore did not."""
        progress = self._cluster.run.known_progress
        before = progress.before(self._incarnation)
        if not read_progress(progress, reply.told, trusted=True):
            return
        for number, known in progress.before(self._incarnation).items():
            steps = dict(known.steps)
            if steps and number in before and steps != before[number].steps:
                _log.warning(
                    "Incarnation %d had come further than was known when the run was restored: at least to %s, as a "
                    "client has heard, not only to %s.",
                    number,
                    steps,
                    dict(before[number].steps),
                )

    def _store(self, header: Header, batch: Batch) -> None:
        assert self._segment is not None
        segment, batches = self._segment, [*self._batches, *([encode_batch(batch)] if batch.records else [])]
        records = self._records + len(batch.rows)
        write_segment(self._directory, segment, header, batches)
        self._header = header
        if sum(map(len, batches)) >= _SEGMENT_BYTES or records >= SEGMENT_RECORDS:
            segment, batches, records = SegmentName(segment.incarnation, segment.number + 1, segment.writer), [], 0
        self._segment, self._batches, self._records = segment, batches, records
        if batch.records:
            self._learn(batch)

    def _learn(self, batch: Batch) -> None:
        """Take note of a batch that is stored."""
        if batch.life != self._life:
            self._known_clients = 0
        self._life, self._position = batch.life, batch.end
        self._known_clients = max([self._known_clients, *(number + 1 for number in batch.clients)])
        self._last_index = max(self._last_index, last_entry(batch.rows))

    def _take_up(self) -> None:
        """Find out where the files of this incarnation end, and begin a segment of our own after them."""
        storage, directory = storage_for(self._directory), journal_directory(self._directory)
        try:
            storage.make_directories(directory)
        except OSError as error:
            raise path_error(error, directory, "make") from error
        names = [name for name in segment_names(self._directory) if name.incarnation == self._incarnation]
        for name in reversed(names):
            try:
                segment = read_segment(self._directory, name)
                self._header = segment.header
                for batch in segment.batches:
                    self._learn(batch)
                break
            except OpError as error:
                _log.warning("The journal goes on after a file that cannot be read: %s", error)
        number = names[-1].number + 1 if names else 0
        self._segment = SegmentName(self._incarnation, number, re.sub(r"\W", "_", self._cluster.client_id)[:8])

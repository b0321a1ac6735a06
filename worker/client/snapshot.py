"""A consistent snapshot of all shards, as a client sees it: the raw material of a checkpoint.

Layer: worker. Threads: one at a time uses a Snapshot; it need not be the one that took it, and the client that
it comes from may push and pull meanwhile. Releases is thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy.typing as npt

from globalstep.errors import NotFoundError, UnavailableError
from globalstep.files.shard_file import SavedTensor, ShardWritten
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.declarations import PushId
from globalstep.wire.transports import Transport, ask_all, transports_to
from globalstep.worker.client.calls import POLICIES, ControlCalls
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.protocol.push_protocol import PushProtocol

Array = npt.NDArray[Any]


class Releases:
    """Has the shards free a client's snapshots, later where one of them is not reached. Thread-safe.

    A shard holds few snapshots at a time, and for as long as the client is there, those that it has not released.
    """

    def __init__(self) -> None:
        # Guards what is left; a leaf.
        self._lock = threading.Lock()
        self._left: list[pb.ReleaseSnapshotRequest] = []

    def release(self, transports: Sequence[Transport], message: pb.ReleaseSnapshotRequest) -> None:
        """Have all shards free one."""
        secs = POLICIES["ReleaseSnapshot"].deadline_secs
        # ValueError is gRPC's: the client was closed, and is gone soon; the next snapshot frees what it leaves behind.
        with contextlib.suppress(ValueError):
            answers = [answer for _, answer in ask_all(transports, "ReleaseSnapshot", message, secs)]
            if any(isinstance(answer, UnavailableError) for answer in answers):
                with self._lock:
                    self._left.append(message)

    def again(self, transports: Sequence[Transport], incarnation: int) -> None:
        """Have those freed that a shard may still hold."""
        with self._lock:
            left, self._left = self._left, []
        for message in left:
            if message.incarnation == incarnation:
                self.release(transports, message)


class Snapshot:
    """Values as of one place of the mutation sequence, held by the shards until it is closed.

    Use it in a `with` block. Made by `ClusterClient.snapshot`.

    Args:
        protocol: Of the client; it is used to take the snapshot, and not afterwards.
        calls: Of the client.
        releases: The client's.
        heartbeat: The client's; it breaks off what takes too long.
        journal_index: Gives the last entry that the client has stored of the journal; None where it stores none.

    Attributes:
        index: Its place in the mutation sequence.
        steps: Value of every step there.
    """

    def __init__(
        self,
        protocol: PushProtocol,
        calls: ControlCalls,
        releases: Releases,
        heartbeat: Heartbeat,
        journal_index: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._calls = calls
        self._releases = releases
        self._heartbeat = heartbeat
        self._journal_index = journal_index
        # Of the run as it is now: the client may be in another incarnation when this is written.
        self._protocol = protocol.beside()
        self._run = self._protocol.run
        self._id: PushId = protocol.next_id()
        # Values come over transports of their own: behind hundreds of megabytes the client's pushes would wait.
        self._reading: PushProtocol | None = None
        releases.again(self._run.transports, self._run.incarnation)
        try:
            outcome = protocol.snapshot(self._id)
        except BaseException:
            self.close()
            raise
        self.index = outcome.index
        self.steps = dict(outcome.steps)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ledger(self) -> bytes:
        """The sequencer's ledger as of the snapshot, opaque."""
        sequencer = self._run.sequencer
        reply = self._protocol.call({sequencer: (self._request(), ())})[sequencer]
        assert reply.reply is not None
        return reply.reply.pull.ledger

    def read(self, names: Sequence[str]) -> list[Array]:
        """Give values of the snapshot.

        Returns:
            Their values, in order.

        Raises:
            NotFoundError: If a Variable is not declared.
            InvalidArgumentError: If one had no value at the snapshot.
        """
        by_shard: dict[int, list[str]] = {}
        for name in names:
            if name not in self._run.where:
                raise NotFoundError(f"Variable {name!r} is not declared in this run.")
            by_shard.setdefault(self._run.where[name], []).append(name)
        requests = {}
        for shard, wanted in by_shard.items():
            request = self._request()
            for name in wanted:
                request.pull.reads.add(variable=name)
            requests[shard] = (request, ())
        found: dict[str, Array] = {}
        if self._reading is None:
            self._reading = self._protocol.beside(_transports_beside(self._run.transports))
            self._heartbeat.watch(self._reading.run.transports)
        for shard, reply in self._reading.call(requests).items():
            assert reply.reply is not None
            found |= zip(by_shard[shard], codec.decode_values(reply.reply.pull.values, reply.data), strict=True)
        return [found[name] for name in names]

    def write(
        self, directory: str, files: Mapping[int, str], names: Mapping[str, str], probe: tuple[str, str]
    ) -> dict[int, ShardWritten | None]:
        """Have the PS tasks write their parts themselves, all at once.

        Args:
            directory: Where, as a path or URL.
            files: Shard -> file name, for the shards that are to write.
            names: Name in the file -> Variable.
            probe: Name and text of a file that lies in the directory, so that a task notices whether its
                directory of that path is the same one.

        Returns:
            Shard -> what was written; None where the task does not see that directory and wrote nothing.
        """
        requests = {}
        for shard, file in files.items():
            mine = {key: name for key, name in names.items() if self._run.where.get(name) == shard}
            message = pb.WriteSnapshotRequest(
                incarnation=self._run.incarnation,
                snapshot=codec.encode_push_id(self._id),
                directory=directory,
                file=file,
                probe_file=probe[0],
                probe_text=probe[1],
                names=mine,
            )
            requests[shard] = message
        replies = self._calls.each("WriteSnapshot", requests)
        return {shard: _written(reply) for shard, reply in replies.items()}

    def _request(self) -> pb.Request:
        request = pb.Request()
        request.pull.incarnation = self._run.incarnation
        request.pull.snapshot.CopyFrom(codec.encode_push_id(self._id))
        return request

    def close(self) -> None:
        """Let the shards free it; one that cannot be reached hears it when the client takes its next snapshot."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._heartbeat.unwatch(reading.run.transports)
            for mine, clients in zip(reading.run.transports, self._run.transports, strict=True):
                if mine is not clients:
                    mine.close()
        message = pb.ReleaseSnapshotRequest(
            incarnation=self._run.incarnation,
            snapshot=codec.encode_push_id(self._id),
            journal_index=self._journal_index(),
        )
        self._releases.release(self._run.transports, message)


def _transports_beside(transports: Sequence[Transport]) -> Sequence[Transport]:
    """Make further transports to the same tasks; to those in this process, where no call waits, the same."""
    addresses = [transport.address for transport in transports]
    return transports_to("grpc://" + ",".join(addresses)) if all(addresses) else transports


def _written(reply: pb.WriteSnapshotReply) -> ShardWritten | None:
    if not reply.shared:
        return None
    tensors = tuple(SavedTensor(t.name, t.dtype, tuple(t.shape), t.crc32, t.nbytes, t.has_nan) for t in reply.tensors)
    return ShardWritten(tensors, reply.file_bytes)

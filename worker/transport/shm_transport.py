"""The shared-memory transport: tensors lie in memory that both sides share, a unix socket carries the rest.

docs/design/transports.md has the whole story.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.declarations import padded
from globalstep.wire.incoming_messages import Incoming
from globalstep.wire.shared_memory import SHARED_FROM_BYTES, SLACK_BYTES, attach, block_bytes
from globalstep.wire.socket_messages import Outgoing, Place, SocketMessage
from globalstep.worker.transport.block_pool import BlockPool, PushKey, data_area
from globalstep.worker.transport.socket_transport import SocketConnection
from globalstep.worker.transport.tickets import REPLY_LIMIT_BYTES, ConnectionTicket

__all__ = ["SharedConnection"]

_log = logging.getLogger(__name__)

Array = npt.NDArray[np.uint8]

_NBYTES = attrgetter("nbytes")
#: Requests whose replies bring values.
_READING = ("pull", "push", "admit", "commit", "read_snapshot")


@dataclass(slots=True)
class _Load:
    """The tensors of a request: to be sent, or where they lie."""

    pieces: Sequence[memoryview]
    place: Place | None = None
    nbytes: int = 0
    #: Blocks that are not free before the reply is there.
    held: list[Array] = field(default_factory=list[Array])
    #: The push that the request stages, and the one that has been applied, or refused, once it is answered.
    stages: PushKey | None = None
    ends: PushKey | None = None


class SharedConnection(SocketConnection):
    """A connection that shares memory with the PS task. Thread-safe.

    Args:
        label: What messages call the task.
        connection: The socket, past its welcome.
    """

    def __init__(self, label: str, connection: socket.socket) -> None:
        super().__init__(label, connection)
        self.kind, self.shares_memory = "shm", True
        self._incoming = Incoming(connection, REPLY_LIMIT_BYTES, shares=True, takes_descriptors=True)
        self._pool = BlockPool()
        # Whether the PS task makes blocks; it stops doing so when the machine gives it no memory.
        self._grows = True

    def buffer(self, nbytes: int, overdue_at: float) -> Array | None:
        """Give memory of the next request, so that its tensors can be written where they are read.

        Args:
            nbytes: How much.
            overdue_at: See Connection.send.

        Returns:
            uint8 [nbytes], from a multiple of 8 bytes; None where so many are better sent.
        """
        if nbytes < SHARED_FROM_BYTES:
            return None
        taken = self._take(nbytes, overdue_at)
        return None if taken is None else data_area(taken[1], nbytes)

    def _take(self, nbytes: int, overdue_at: float) -> tuple[int, Array] | None:
        """Give a free block; have one made if there is none."""
        taken = self._pool.take(nbytes)
        if taken is not None or not self._grows or self._pool.is_full:
            return taken
        wish = _Load((), Place(dropped=self._pool.dropped(), new_bytes=block_bytes(nbytes)))
        try:
            self._call(pb.Request(), wish, overdue_at).result()
        except UnavailableError:
            return None  # the connection is broken; the request will say so
        except OpError as error:
            self._grows = False
            if not len(self._pool):
                self.kind, self.shares_memory = "unix", False
            _log.info("No more shared memory with %s, its data goes over the unix socket: %s", self._label, error)
            return None
        return self._pool.take(nbytes)

    def _prepare(self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float) -> _Load:
        """See Connection: have the tensors in shared memory, if there are many bytes of them."""
        pool = self._pool
        nbytes = sum(map(_NBYTES, pieces))
        if nbytes < SHARED_FROM_BYTES and not len(pool):
            return _Load(pieces)
        kind, load = request.WhichOneof("kind"), _Load(pieces)
        number = offset = 0
        if nbytes >= SHARED_FROM_BYTES:
            number, offset = self._put(load, overdue_at)
        if kind == "stage" and number:
            push = request.stage.id
            load.stages = push.client, push.sequence
            pool.stage(load.stages, number, load.held[0])
        elif kind in ("admit", "commit") and pool.has_staged:
            push = getattr(request, kind).id
            load.ends = push.client, push.sequence
        offered = pool.offer() if kind in _READING else {}
        load.held.extend(offered.values())
        dropped = pool.dropped()
        if number or offered or dropped:
            load.place = Place(number, offset, tuple(offered), dropped)
        return load

    def _put(self, load: _Load, overdue_at: float) -> tuple[int, int]:
        """Have a request's tensors lie in a block; gives its number, and where they begin. 0 where they are sent."""
        pieces = [piece for piece in load.pieces if piece.nbytes]
        sizes = list(map(padded, map(_NBYTES, pieces)))
        load.nbytes = sum(sizes)
        found = self._pool.locate(pieces)
        if found is not None:
            number, block, offset = found
            at = offset
            for piece, size in zip(pieces, sizes, strict=True):
                if size > piece.nbytes:
                    block[at + piece.nbytes : at + size] = 0
                at += size
                # Used up: the values that come back may take its place, and are not to be written to.
                owner: Any = piece.obj
                if isinstance(owner, np.ndarray):
                    owner.flags.writeable = False
        else:
            taken = self._take(load.nbytes, overdue_at)
            if taken is None:
                return 0, 0
            number, block = taken
            area = data_area(block, load.nbytes)
            at = 0
            for piece, size in zip(pieces, sizes, strict=True):
                area[at : at + piece.nbytes] = np.frombuffer(piece, np.uint8)
                if size > piece.nbytes:
                    area[at + piece.nbytes : at + size] = 0
                at += size
            offset = SLACK_BYTES
        load.held.append(block)
        load.pieces = ()
        return number, offset

    def _outgoing(self, call: int, request: pb.Request, load: _Load) -> Outgoing:
        """See SocketConnection."""
        return Outgoing(call, request.SerializeToString(), load.pieces, load.place, load.nbytes)

    def _answered(self, ticket: ConnectionTicket, reply: pb.Reply | None) -> None:
        """See Connection: let go of what the request held."""
        load, ticket.load = ticket.load, None
        if load is None:
            return
        if load.stages is not None and (reply is None or reply.HasField("commit")):
            self._pool.release(load.stages)
        if load.ends is not None and reply is not None:
            self._pool.release(load.ends)

    def _data_of(self, message: SocketMessage) -> memoryview:
        """See SocketConnection: give the bytes of a reply's tensors, which are not to be written to."""
        place = message.place
        if place is None:
            return message.data.toreadonly()
        if place.new_bytes:
            descriptor = self._incoming.descriptor()
            try:
                self._pool.add(place.block, attach(descriptor, place.new_bytes))
            finally:
                os.close(descriptor)
        if not place.block:
            return message.data.toreadonly()
        block = self._pool.get(place.block)
        if block is None or place.offset % 8 or place.offset + message.nbytes > block.nbytes:
            raise InvalidArgumentError(
                f"the reply's {message.nbytes} bytes at {place.offset} of block {place.block} are not shared memory"
            )
        return block.data[place.offset : place.offset + message.nbytes].toreadonly()

    def _end(self) -> None:
        """See Connection. The PS task may still work on what lies in the blocks: none is used again."""
        self._pool.close()
        super()._end()

    def close(self, error: OpError) -> None:
        """See Connection."""
        super().close(error)
        self._incoming.close()

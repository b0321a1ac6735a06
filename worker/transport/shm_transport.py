"""The shared-memory transport: tensors lie in memory that both sides share, a unix socket carries the rest.

docs/design/transports.md has the whole story.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import address_of, are_unused
from globalstep.wire.declarations import padded
from globalstep.wire.message import REPLY_LIMIT_BYTES
from globalstep.wire.shared_memory import MOST_BLOCKS, SHARED_FROM_BYTES, SLACK_BYTES, attach, block_bytes
from globalstep.wire.socket_messages import Incoming, Place, SocketMessage
from globalstep.worker.transport.connection import ConnectionTicket, Load, SocketConnection

_log = logging.getLogger(__name__)

Array = npt.NDArray[np.uint8]

_NBYTES = attrgetter("nbytes")
#: Requests whose replies bring values.
_READING = ("pull", "push", "commit")

#: Client and number of a push.
_PushKey = tuple[str, int]

#: Blocks that wait for a use: two for each of a program's train ops, whose sizes differ, within reason.
_MOST_IDLE = 4
#: Pushes whose end is not known, before the oldest one's memory is given up.
_MOST_STAGED = 4


class SharedConnection(SocketConnection):
    """A connection that shares memory with the PS task. Thread-safe.

    Args:
        label: What messages call the task.
        connection: The socket, past its welcome.
    """

    def __init__(self, label: str, connection: socket.socket) -> None:
        super().__init__(label, connection)
        self.kind = "shm"
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
        wish = Load((), Place(dropped=self._pool.dropped(), new_bytes=block_bytes(nbytes)))
        try:
            self.send(pb.Request(), (), overdue_at, wish).result()
        except UnavailableError:
            return None  # the connection is broken; the request will say so
        except OpError as error:
            self._grows = False
            if not self._pool.blocks:
                self.kind = "unix"
            _log.info("No more shared memory with %s, its data goes over the unix socket: %s", self._label, error)
            return None
        return self._pool.take(nbytes)

    def _prepare(self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float) -> Load:
        """See Connection: have the tensors in shared memory, if there are many bytes of them."""
        pool = self._pool
        nbytes = sum(map(_NBYTES, pieces))
        if nbytes < SHARED_FROM_BYTES and not pool.blocks:
            return Load(pieces)
        kind, load = request.WhichOneof("kind"), Load(pieces)
        number = offset = 0
        if nbytes >= SHARED_FROM_BYTES:
            number, offset = self._put(load, overdue_at)
        if kind == "stage" and number:
            push = request.stage.id
            load.stages = push.client, push.sequence
            pool.stage(load.stages, number, load.held[0])
        elif kind == "commit" and pool.has_staged:
            push = request.commit.id
            load.ends = push.client, push.sequence
        offered = pool.offer() if kind in _READING else {}
        load.held.extend(offered.values())
        dropped = pool.dropped()
        if number or offered or dropped:
            load.place = Place(number, offset, tuple(offered), dropped)
        return load

    def _put(self, load: Load, overdue_at: float) -> tuple[int, int]:
        """Have a request's tensors lie in a block; gives its number, and where they begin. 0 where they are sent."""
        pieces = [piece for piece in load.pieces if piece.nbytes]
        sizes = list(map(padded, map(_NBYTES, pieces)))
        load.nbytes = sum(sizes)
        found = self._pool.locate(pieces[0]) if len(pieces) == 1 else None
        if found is not None:
            number, block, offset = found
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

    def _answered(self, ticket: ConnectionTicket, reply: pb.Reply | None) -> None:
        """See Connection: let go of what the request held."""
        load, ticket.load = ticket.load, None
        if load is None:
            return
        if load.stages is not None and (reply is None or reply.HasField("commit")):
            self._pool.release(load.stages)
        if load.ends is not None and reply is not None:
            self._pool.release(load.ends)

    def _placed(self, message: SocketMessage, place: Place) -> memoryview:
        """See SocketConnection."""
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


class BlockPool:
    """The blocks that a client shares with one PS task: free, read by the program, or staged. Thread-safe.

    A block is free when nothing in this process refers to it: no gradient that is being written, no request in flight,
    no value that the program keeps. Arrays and views count by their references, as in `globalstep.runtime.memory`.
    """

    def __init__(self) -> None:
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        #: Number -> the block; longest unused first.
        self.blocks: dict[int, Array] = {}
        #: Where each begins and ends in this process.
        self._spans: dict[int, tuple[int, int]] = {}
        self._dropped: list[int] = []
        #: Pushes that are staged and not known to be applied -> the block that holds their bytes.
        self._staged: dict[_PushKey, tuple[int, Array]] = {}
        self._closed = False

    def add(self, number: int, block: Array) -> None:
        """Take in a block that the PS task has made."""
        with self._lock:
            if not self._closed:
                self.blocks[number] = block
                begin = address_of(block)
                self._spans[number] = begin, begin + block.nbytes

    def get(self, number: int) -> Array | None:
        """Give a block; None where there is none of that number."""
        with self._lock:
            return self.blocks.get(number)

    def take(self, nbytes: int) -> tuple[int, Array] | None:
        """Give a free block of at least so many bytes; a reference to the array holds the block.

        Returns:
            Its number and bytes; None where there is none.
        """
        need = block_bytes(nbytes)
        with self._lock:
            idle = list(compress(self.blocks, are_unused(self.blocks.values())))
            # A much larger block is left alone: a small value that is kept must not hold a large one.
            fitting = [number for number in idle if need <= self.blocks[number].nbytes <= 2 * need]
            if not fitting:
                if len(idle) >= _MOST_IDLE or (idle and len(self.blocks) >= MOST_BLOCKS):
                    self._drop(idle[0])
                return None
            number = fitting[-1]
            block = self.blocks[number] = self.blocks.pop(number)
            return number, block

    @property
    def is_full(self) -> bool:
        """Whether no block may be added: the program keeps values that lie in all of them."""
        return self._closed or len(self.blocks) >= MOST_BLOCKS

    def locate(self, piece: memoryview) -> tuple[int, Array, int] | None:
        """Find out whether the tensors of a message lie in a block already, in memory that `buffer` gave.

        What may not be written to does not count: that are values, which others look at.

        Returns:
            Number and bytes of the block, and where in it they begin; None where they must be copied.
        """
        if piece.readonly:
            return None
        address = address_of(np.frombuffer(piece, np.uint8))
        with self._lock:
            for number, (begin, end) in self._spans.items():
                if begin <= address < end:
                    return number, self.blocks[number], address - begin
        return None

    def offer(self, most: int = 2) -> dict[int, Array]:
        """Give free blocks by number, those used last first, that a reply may be put into."""
        with self._lock:
            idle = list(compress(self.blocks, are_unused(self.blocks.values())))
            return {number: self.blocks[number] for number in reversed(idle[-most:])}

    def dropped(self) -> tuple[int, ...]:
        """Give the numbers of blocks that have been given up since the last time."""
        if not self._dropped:
            return ()
        with self._lock:
            out, self._dropped = tuple(self._dropped), []
        return out

    # ---- Staged pushes ------------------------------------------------------------------------

    @property
    def has_staged(self) -> bool:
        """Whether a push is staged in one of the blocks."""
        return bool(self._staged)

    def stage(self, push: _PushKey, number: int, block: Array) -> None:
        """Hold a block from now until `release`: the PS task will apply the push from these bytes.

        A push whose end is never heard of may yet be applied: the block of an old one is not used again.
        """
        with self._lock:
            self._staged[push] = number, block
            while len(self._staged) > _MOST_STAGED:
                lost, _ = self._staged.pop(next(iter(self._staged)))
                self._drop(lost)

    def release(self, push: _PushKey) -> None:
        """Let go of a push's block, if it has one: it is applied, or was never staged."""
        with self._lock:
            self._staged.pop(push, None)

    def _drop(self, number: int) -> None:
        """Give a block up. Caller holds the lock."""
        if self.blocks.pop(number, None) is not None:
            del self._spans[number]
            self._dropped.append(number)

    def close(self) -> None:
        """Give all blocks up; what refers to one keeps it."""
        with self._lock:
            self._closed = True
            self.blocks.clear()
            self._spans.clear()
            self._staged.clear()


def data_area(block: Array, nbytes: int) -> Array:
    """Give the part of a block where a request's tensors are put, uint8 [nbytes]."""
    return block[SLACK_BYTES : SLACK_BYTES + nbytes]

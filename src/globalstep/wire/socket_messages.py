"""Messages on a plain socket: the requests and replies of the data plane without gRPC.

A message is a header, the serialized protobuf message, and the bytes of its tensors, one behind the other:

    4 bytes "gsm1" | 4 bytes length of the protobuf message | 8 bytes call | 8 bytes length of the data

all little-endian. docs/design/transports.md has the whole story. Tensor bytes go from the arrays to the socket
and from the socket into one block of memory; nothing in between copies them. Where both sides share memory
(`globalstep.wire.shared_memory`), a message that begins with "gsm2" has a Place behind its header, and its tensors
need not follow: the place says where they lie.

Layer: shared. Threads: an Outgoing, and an Incoming, belong to one thread at a time.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.runtime.memory import COUNTED_HEAD_BYTES, PARSED_BYTES, MemoryPool, Pool
from globalstep.wire.declarations import ALIGNMENT

#: What a task says to a connection that it lets in.
WELCOME = b"gsm1 ok\n"

HEADER = struct.Struct("<4sIQQ")
MAGIC = b"gsm1"
PLACED_MAGIC = b"gsm2"
#: A Place: block, how many are offered, how many dropped, offset, bytes of a new block; the numbers follow.
PLACE = struct.Struct("<IHHQQ")
MOST_NUMBERS = 64
_PADDING = memoryview(bytes(ALIGNMENT))
#: Of a socket within one host: what is on its way stays in the processor's cache, and neither side waits for the other
#: too often. TCP's own choice grows to many MB there, and takes three times as long for a large message.
_LOCAL_BUFFER_BYTES = 1 << 18
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
#: Tensors of fewer bytes are copied behind the head: one piece costs the kernel less than several.
_JOINED_BYTES = 1 << 13
#: Protobuf messages are short: names and numbers.
_HEAD_LIMIT_BYTES = 64 << 20
#: A small message is read at once; of a larger one so much is copied from here to its place.
_BUFFER_BYTES = 1 << 15
#: Space for the descriptors that one read may bring.
_RIGHTS_BYTES = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_NOTHING = memoryview(b"")
_HEADER_BYTES, _PLACE_BYTES = HEADER.size, PLACE.size
# Plain numbers: Python's flags take a microsecond to be joined.
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_WAIT_FOR_ALL = int(socket.MSG_WAITALL)
#: So many bytes are received in one go at most: others see how far a message has come.
MOST_AT_ONCE = 4 << 20


@dataclass(slots=True)
class Place:
    """Where the tensors of a message lie in memory that both sides share.

    Attributes:
        block: Number of the block that they lie in; 0 where they follow the message, as ever.
        offset: Where they begin in it.
        offered: In a request: blocks that the reply's tensors may be written to.
        dropped: In a request: blocks that the client has given up.
        new_bytes: In a request: size of a block that is wanted. In a reply: size of `block`, which is new; its
            descriptor comes with the message. 0 otherwise.
    """

    block: int = 0
    offset: int = 0
    offered: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    new_bytes: int = 0

    def packed(self) -> bytes:
        """Write it as it goes over the wire."""
        numbers = self.offered + self.dropped
        fixed = PLACE.pack(self.block, len(self.offered), len(self.dropped), self.offset, self.new_bytes)
        return fixed + struct.pack(f"<{len(numbers)}I", *numbers) if numbers else fixed


@dataclass(slots=True)
class SocketMessage:
    """A message as it came.

    Attributes:
        call: Number of the call on its connection; a reply bears its request's.
        head: The serialized globalstep.v1.Request or Reply.
        data: Bytes of its tensors, where they came with it.
        nbytes: How many bytes its tensors have.
        place: Where they lie otherwise, and more of that kind; None for a message without.
        refused: Why its tensors were not taken in; None for a message that is whole.
        claim: What stands for the memory that the parsed head takes; None where that is not counted.
    """

    call: int
    head: bytes
    data: memoryview
    nbytes: int
    place: Place | None = None
    refused: ResourceExhaustedError | None = None
    claim: object = None


def prepare(connection: socket.socket) -> None:
    """Set the options that a connection of messages wants."""
    connection.settimeout(None)
    # Between hosts its buffers are left to the kernel, which fits them to the link.
    if connection.family == socket.AF_UNIX or connection.getpeername()[0] == connection.getsockname()[0]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOCAL_BUFFER_BYTES)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A cut link is noticed as soon as gRPC notices it (`globalstep.security.rpc`), even while nothing is said.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 15_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Outgoing:
    """A message on its way out.

    Args:
        call: Number of the call.
        head: The serialized protobuf message.
        pieces: Its tensors in order, contiguous, of any shape; each is padded to the alignment here.
        place: What to say of shared memory; where it names a block, the pieces lie there and are not sent.
        nbytes: How many bytes they are there.
        descriptor: Sent along; stays the caller's.

    Attributes:
        nbytes: Bytes of its tensors, padding included, wherever they lie.
    """

    def __init__(
        self,
        call: int,
        head: bytes,
        pieces: Sequence[memoryview],
        place: Place | None = None,
        nbytes: int = 0,
        descriptor: int | None = None,
    ) -> None:
        self._rights: list[tuple[int, int, array.array[int]]] = []
        if descriptor is not None:
            self._rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])))
        following: list[memoryview] = []
        if place is None or not place.block:
            nbytes = 0
            for piece in pieces:
                following.append(piece)
                if beyond := -piece.nbytes % ALIGNMENT:
                    following.append(_PADDING[:beyond])
                nbytes += piece.nbytes + beyond
        self.nbytes = nbytes
        if place is None:
            first = HEADER.pack(MAGIC, len(head), call, nbytes) + head
        else:
            first = HEADER.pack(PLACED_MAGIC, len(head), call, nbytes) + place.packed() + head
        if following and nbytes < _JOINED_BYTES:
            first, following = b"".join((first, *following)), []
        self._left: list[memoryview | bytes] = [first, *following]
        self._left_bytes = len(first) + (nbytes if following else 0)

    def send(self, connection: socket.socket, flags: int = 0) -> None:
        """Send all that is left of it.

        Raises:
            BlockingIOError: With MSG_DONTWAIT, when the socket takes no more now; send it again later.
            OSError: If the connection is broken.
        """
        left = self._left
        while left:
            if len(left) == 1 and not self._rights:
                sent = connection.send(left[0], flags)
            else:
                sent = connection.sendmsg(left[:_MOST_PIECES], self._rights, flags)
                self._rights = []  # it went with the first byte
            if sent == self._left_bytes:
                left.clear()
            else:
                self._drop(sent)

    def _drop(self, sent: int) -> None:
        """Forget what has been sent."""
        self._left_bytes -= sent
        done = 0
        for piece in self._left:
            nbytes = len(piece) if isinstance(piece, bytes) else piece.nbytes
            if sent < nbytes:
                break
            sent -= nbytes
            done += 1
        del self._left[:done]
        if sent:
            self._left[0] = memoryview(self._left[0]).cast("B")[sent:]


class Incoming:
    """Takes the messages out of a connection.

    Args:
        connection: A blocking stream socket.
        limit_bytes: Messages with more data than this are refused before memory is taken.
        shares: Whether messages may speak of shared memory.
        takes_descriptors: Whether descriptors that come with messages are kept, for `descriptor`.
        pool: Memory for the tensors; of its own by default.
    """

    def __init__(
        self,
        connection: socket.socket,
        limit_bytes: int,
        *,
        shares: bool = False,
        takes_descriptors: bool = False,
        pool: Pool | None = None,
    ) -> None:
        self._shares = shares
        self._takes_descriptors = takes_descriptors
        self._descriptors: deque[int] = deque()
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._pool = MemoryPool() if pool is None else pool
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        # What has been received and not been given out.
        self._begin = self._end = 0
        #: The message whose header has come; how long its head is, and whether that is still to come; of its tensors,
        #: how many bytes follow it.
        self._begun: SocketMessage | None = None
        self._head_bytes = self._data_bytes = 0
        self._wants_head = False
        #: What is being filled by what comes next, instead of the buffer, and how far it is.
        self._target: memoryview | None = None
        self._at = 0
        #: New with every target.
        self._mark: object = None

    @property
    def under_way(self) -> tuple[object, int] | None:
        """What is being filled, and how far it is, seen from MOST_AT_ONCE to MOST_AT_ONCE; any thread may ask."""
        return None if self._target is None else (self._mark, self._at)

    @property
    def coming_bytes(self) -> int:
        """How many bytes of tensors follow the message that has begun to come; 0 where none is known to."""
        return 0 if self._begun is None else self._data_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a message has come that was not given out."""
        return self._begun is None and self._begin == self._end

    @property
    def is_filling(self) -> bool:
        """Whether what comes next goes to where it is to be."""
        return self._target is not None

    @property
    def lacks_memory(self) -> bool:
        """Whether the next message waits for memory; nothing is to be received meanwhile."""
        begun = self._begun
        return begun is not None and not self._wants_head and self._target is None and begun.refused is None

    def receive(self) -> SocketMessage | None:
        """Wait for the next message.

        Returns:
            The message, its data in memory that is not used again while a reference to it is left; None where
            the connection has come to its end.

        Raises:
            InvalidArgumentError: If what comes is no message.
            ResourceExhaustedError: If the message is larger than the limit.
            OSError: If the connection is broken, or ends within a message.
        """
        while True:
            if self._begun is not None or self._begin != self._end:
                message = self.take()
                if message is not None:
                    return message
            if not self.fill(_WAIT_FOR_ALL if self._target is not None else 0):
                if self.is_idle:
                    return None
                raise ConnectionResetError("the connection ended within a message")

    def take(self, patient: bool = True) -> SocketMessage | None:
        """Give the next message, if all of it has been received.

        Args:
            patient: Wait where there is no memory for its tensors now; else it is as if they had not come.

        Raises:
            InvalidArgumentError, ResourceExhaustedError: See `receive`.
        """
        begun = self._begun
        if begun is None:
            # A header, a place, and the head if it is there, out of the buffer.
            buffer, begin = self._buffer, self._begin
            held = self._end - begin
            if held < _HEADER_BYTES:
                return None
            magic, head_bytes, call, nbytes = HEADER.unpack_from(buffer, begin)
            place: Place | None = None
            size, follows = _HEADER_BYTES, nbytes
            if magic != MAGIC:
                if not (self._shares and magic == PLACED_MAGIC):
                    raise InvalidArgumentError("What comes on this connection is not a message of globalstep.")
                size += _PLACE_BYTES
                if held < size:
                    return None
                block, offered, dropped, offset, new_bytes = PLACE.unpack_from(buffer, begin + _HEADER_BYTES)
                count = offered + dropped
                if count > MOST_NUMBERS:
                    raise InvalidArgumentError(f"A message names {count} blocks; {MOST_NUMBERS} are the most.")
                numbers: tuple[int, ...] = ()
                if count:
                    if held < size + 4 * count:
                        return None
                    numbers = struct.unpack_from(f"<{count}I", buffer, begin + size)
                    size += 4 * count
                place = Place(block, offset, numbers[:offered], numbers[offered:], new_bytes)
                if block:
                    follows = 0
            if nbytes > self._limit_bytes or head_bytes > _HEAD_LIMIT_BYTES:
                raise ResourceExhaustedError(
                    f"A message with {nbytes} bytes of tensors and {head_bytes} bytes of names is over the limits of "
                    f"{self._limit_bytes} and {_HEAD_LIMIT_BYTES}; raise --max-message-bytes or split the Variable."
                )
            begin += size
            self._head_bytes, self._data_bytes = head_bytes, follows
            claim = self._pool.claim(head_bytes * PARSED_BYTES) if head_bytes >= COUNTED_HEAD_BYTES else None
            end, head = begin + head_bytes, b""
            self._wants_head = end > self._end
            if not self._wants_head:
                head, begin = bytes(buffer[begin:end]), end
            self._begin = begin
            begun = self._begun = SocketMessage(call, head, _NOTHING, nbytes, place, None, claim)
        if self._wants_head:
            head_of_it = self._head(self._head_bytes)
            if head_of_it is None:
                return None
            begun.head, self._wants_head = head_of_it, False
        if self._data_bytes and not self._has_data(begun, patient):
            return None
        self._begun = None
        return begun

    def fill(self, flags: int = 0) -> bool:
        """Receive what is there, or wait until something is; gives False at the end of the connection.

        Args:
            flags: Of recv.

        Raises:
            OSError: If the connection is broken; BlockingIOError if nothing is there and the call may not wait.
        """
        if self._target is not None:
            got = self._connection.recv_into(self._target[self._at : self._at + MOST_AT_ONCE], 0, flags)
            self._at += got
            return got > 0
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._buffer):
            self._move_to_front()
        if self._takes_descriptors:
            got, rights, _, _ = self._connection.recvmsg_into(
                [self._buffer[self._end :]], _RIGHTS_BYTES, flags | _CLOSED_ON_EXEC
            )
            for level, kind, raw in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    # A descriptor that was cut off is no descriptor.
                    self._descriptors.extend(array.array("i", raw[: len(raw) - len(raw) % 4]))
        else:
            got = self._connection.recv_into(self._buffer[self._end :], 0, flags)
        self._end += got
        return got > 0

    def descriptor(self) -> int:
        """Give the next descriptor that came with a message; it is the caller's now.

        Raises:
            InvalidArgumentError: If none has come.
        """
        if not self._descriptors:
            raise InvalidArgumentError("A message speaks of new memory, and came without it.")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Forget what has come of the next message, and close descriptors that were not asked for."""
        self._begun = self._target = None
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _head(self, nbytes: int) -> bytes | None:
        """Take so many bytes, if they have come."""
        if nbytes > len(self._buffer):
            if self._target is None:
                self._aim_at(memoryview(bytearray(nbytes)))
            filled = self._filled()
            return None if filled is None else bytes(filled)
        if self._end - self._begin < nbytes:
            if self._begin + nbytes > len(self._buffer):
                self._move_to_front()
            return None
        self._begin += nbytes
        return bytes(self._buffer[self._begin - nbytes : self._begin])

    def _has_data(self, begun: SocketMessage, patient: bool) -> bool:
        """Have the tensors of a message, as far as they have come; gives whether that is all."""
        if begun.refused is None and self._target is None:
            try:
                # Where memory is waited for, nothing is read, and the other side comes to a stop.
                buffer = self._pool.take(self._data_bytes) if patient else self._pool.take_at_once(self._data_bytes)
            except ResourceExhaustedError as error:
                begun.refused = error
            else:
                if buffer is None:
                    return False
                begin, end = self._begin, self._begin + self._data_bytes
                if end <= self._end:  # all of it is there
                    begun.data = buffer.data
                    begun.data[:] = self._buffer[begin:end]
                    self._begin = end
                    return True
                self._aim_at(buffer.data)
        if begun.refused is not None:
            # Read, and forgotten.
            passed = min(self._data_bytes, self._end - self._begin)
            self._begin += passed
            self._data_bytes -= passed
            return not self._data_bytes
        data = self._filled()
        if data is None:
            return False
        begun.data = data
        return True

    def _aim_at(self, target: memoryview) -> None:
        """Have memory filled, first by what is in the buffer."""
        self._at = min(target.nbytes, self._end - self._begin)
        target[: self._at] = self._buffer[self._begin : self._begin + self._at]
        self._begin += self._at
        self._target, self._mark = target, object()

    def _filled(self) -> memoryview | None:
        """Give what was to be filled, and keep nothing of it; None where it is not filled yet."""
        target = self._target
        assert target is not None
        if self._at < target.nbytes:
            return None
        self._target = None
        return target

    def _move_to_front(self) -> None:
        rest = bytes(self._buffer[self._begin : self._end])
        self._buffer[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

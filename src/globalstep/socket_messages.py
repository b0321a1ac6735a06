"""Messages on a plain socket: the requests and replies of the data plane without gRPC.

A message is a header, the serialized protobuf message, and the bytes of its tensors, one behind the other:

    4 bytes "gsm1" | 4 bytes length of the protobuf message | 8 bytes call | 8 bytes length of the data

all little-endian. docs/design/lanes.md has the whole story. Tensor bytes go from the arrays to the socket
and from the socket into one block of memory; nothing in between copies them. Where both sides share memory
(`globalstep.shared_memory`), a message that begins with "gsm2" has a Place behind its header, and its tensors
need not follow: the place says where they lie.

Floor: shared. Threads: an Outgoing and an Incoming belong to one thread at a time.
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
from globalstep.frames import padded
from globalstep.memory import MemoryPool, Pool
from globalstep.tls_socket import TlsSocket

__all__ = ["TOKEN_BYTES", "WELCOME", "Incoming", "Outgoing", "Place", "SocketMessage", "prepare"]

#: What a connection begins with: so many bytes of a token there, this answer back.
TOKEN_BYTES = 32
WELCOME = b"gsm1 ok\n"

_HEADER = struct.Struct("<4sIQQ")
_MAGIC = b"gsm1"
_PLACED_MAGIC = b"gsm2"
#: A Place: block, how many are offered, how many dropped, offset, bytes of a new block; the numbers follow.
_PLACE = struct.Struct("<IHHQQ")
_MOST_NUMBERS = 64
_PADDING = memoryview(bytes(padded(1)))
#: Protobuf messages are short: names and numbers.
_HEAD_LIMIT_BYTES = 64 << 20
#: A small message is read at once; of a larger one so much is copied from here to its place.
_BUFFER_BYTES = 1 << 15
#: Of a socket within one host: what is on its way stays in the processor's cache, and neither side waits for the other
#: too often. TCP's own choice grows to many MB there, and takes three times as long for a large message.
_LOCAL_BUFFER_BYTES = 1 << 18
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
#: Room for the descriptors that one read may bring.
_RIGHTS_BYTES = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_NOTHING = memoryview(b"")
#: Tensors of fewer bytes are copied behind the head: one piece costs the kernel less than several.
_JOINED_BYTES = 1 << 13


@dataclass(frozen=True, slots=True)
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
        fixed = _PLACE.pack(self.block, len(self.offered), len(self.dropped), self.offset, self.new_bytes)
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
    """

    call: int
    head: bytes
    data: memoryview
    nbytes: int
    place: Place | None = None
    refused: ResourceExhaustedError | None = None


def prepare(connection: socket.socket | TlsSocket) -> None:
    """Set the options that a connection of messages wants."""
    connection.settimeout(None)
    # Between hosts its buffers are left to the kernel, which fits them to the link.
    if connection.family == socket.AF_UNIX or connection.getpeername()[0] == connection.getsockname()[0]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOCAL_BUFFER_BYTES)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A cut link is noticed within half a minute even while nothing is said.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
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
                size = piece.nbytes
                full = padded(size)
                nbytes += full
                following.append(piece)
                if full > size:
                    following.append(_PADDING[size - full :])
        if place is None:
            first = _HEADER.pack(_MAGIC, len(head), call, nbytes) + head
        else:
            first = _HEADER.pack(_PLACED_MAGIC, len(head), call, nbytes) + place.packed() + head
        if following and nbytes < _JOINED_BYTES:
            first, following = b"".join((first, *following)), []
        self._left: list[memoryview | bytes] = [first, *following]

    def send(self, connection: socket.socket | TlsSocket, flags: int = 0) -> None:
        """Send all that is left of it.

        Args:
            connection: A blocking stream socket.
            flags: Of sendmsg.

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
            self._drop(sent)

    def _drop(self, sent: int) -> None:
        """Forget what has been sent."""
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
        connection: socket.socket | TlsSocket,
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

    def fill(self) -> bool:
        """Receive what is there, or wait until something is; gives False at the end of the connection.

        Raises:
            OSError: If the connection is broken.
        """
        if self._end == len(self._buffer):
            self._move_to_front()
        return self._receive_more()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been received that has not been given out."""
        return self._begin == self._end

    def holds_whole(self) -> bool:
        """Whether `receive` would wait for nothing, neither for the next message nor for memory of a pool."""
        held = self._end - self._begin
        if held < _HEADER.size:
            return False
        magic, head_bytes, _, data_bytes = _HEADER.unpack_from(self._buffer, self._begin)
        wanted = _HEADER.size + head_bytes
        if magic != _MAGIC:
            if held < _HEADER.size + _PLACE.size:
                return False
            block, offered, dropped, _, _ = _PLACE.unpack_from(self._buffer, self._begin + _HEADER.size)
            wanted += _PLACE.size + 4 * (offered + dropped)
            data_bytes = 0 if block else data_bytes
        return bool(held >= wanted + data_bytes)

    def receive(self) -> SocketMessage | None:
        """Wait for the next message.

        Returns:
            The message, its data in memory that is not used again while anybody refers to it; None where
            the connection has come to its end.

        Raises:
            InvalidArgumentError: If what comes is no message.
            ResourceExhaustedError: If the message is larger than the limit.
            OSError: If the connection is broken, or ends within a message.
        """
        if self._begin == self._end and not self._receive_more():
            return None
        if self._end - self._begin < _HEADER.size:
            self._wait_for(_HEADER.size)
        magic, head_bytes, call, data_bytes = _HEADER.unpack_from(self._buffer, self._begin)
        self._begin += _HEADER.size
        place: Place | None = None
        if magic != _MAGIC:
            if not (self._shares and magic == _PLACED_MAGIC):
                raise InvalidArgumentError("What comes on this connection is not a message of globalstep.")
            place = self._place()
        if data_bytes > self._limit_bytes or head_bytes > _HEAD_LIMIT_BYTES:
            raise ResourceExhaustedError(
                f"A message with {data_bytes} bytes of tensors and {head_bytes} bytes of names is over the limits of "
                f"{self._limit_bytes} and {_HEAD_LIMIT_BYTES}; raise --max-message-bytes or split the Variable."
            )
        head = self._head(head_bytes)
        if not data_bytes or (place is not None and place.block):
            return SocketMessage(call, head, _NOTHING, data_bytes, place)
        try:
            # Where memory is waited for, nothing is read, and the other side comes to a stop.
            room = self._pool.take(data_bytes).data
        except ResourceExhaustedError as error:
            self._pass_over(data_bytes)
            return SocketMessage(call, head, _NOTHING, data_bytes, place, error)
        return SocketMessage(call, head, self._data(room), data_bytes, place)

    def descriptor(self) -> int:
        """Give the next descriptor that came with a message; it is the caller's now.

        Raises:
            InvalidArgumentError: If none has come.
        """
        if not self._descriptors:
            raise InvalidArgumentError("A message speaks of new memory, and came without it.")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close descriptors that nobody has asked for."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _place(self) -> Place:
        self._wait_for(_PLACE.size)
        block, offered, dropped, offset, new_bytes = _PLACE.unpack_from(self._buffer, self._begin)
        self._begin += _PLACE.size
        if offered + dropped > _MOST_NUMBERS:
            raise InvalidArgumentError(f"A message names {offered + dropped} blocks; {_MOST_NUMBERS} are the most.")
        numbers: tuple[int, ...] = ()
        if offered + dropped:
            size = 4 * (offered + dropped)
            self._wait_for(size)
            numbers = struct.unpack_from(f"<{offered + dropped}I", self._buffer, self._begin)
            self._begin += size
        return Place(block, offset, numbers[:offered], numbers[offered:], new_bytes)

    def _head(self, nbytes: int) -> bytes:
        if nbytes > len(self._buffer):
            return bytes(self._data(memoryview(bytearray(nbytes))))
        if self._end - self._begin < nbytes:
            self._wait_for(nbytes)
        self._begin += nbytes
        return bytes(self._buffer[self._begin - nbytes : self._begin])

    def _pass_over(self, nbytes: int) -> None:
        """Read data and forget it."""
        while nbytes:
            if self._begin == self._end and not self._receive_more():
                raise ConnectionResetError("the connection ended within a message")
            passed = min(nbytes, self._end - self._begin)
            self._begin += passed
            nbytes -= passed

    def _data(self, data: memoryview) -> memoryview:
        """Fill memory with what comes next; gives it."""
        nbytes = data.nbytes
        at = min(nbytes, self._end - self._begin)
        data[:at] = self._buffer[self._begin : self._begin + at]
        self._begin += at
        while at < nbytes:
            got = self._connection.recv_into(data[at:], 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionResetError("the connection ended within a message")
            at += got
        return data

    def _wait_for(self, nbytes: int) -> None:
        """Have at least so many bytes in the buffer, which is larger."""
        if self._begin + nbytes > len(self._buffer):
            self._move_to_front()
        while self._end - self._begin < nbytes:
            if not self._receive_more():
                raise ConnectionResetError("the connection ended within a message")

    def _move_to_front(self) -> None:
        rest = bytes(self._buffer[self._begin : self._end])
        self._buffer[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def _receive_more(self) -> bool:
        """Receive what is there; gives False at the end of the connection."""
        if self._begin == self._end:
            self._begin = self._end = 0
        if self._takes_descriptors and isinstance(self._connection, socket.socket):
            got, rights, _, _ = self._connection.recvmsg_into(
                [self._buffer[self._end :]], _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, raw in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    # A descriptor that was cut off is no descriptor.
                    self._descriptors.extend(array.array("i", raw[: len(raw) - len(raw) % 4]))
        else:
            got = self._connection.recv_into(self._buffer[self._end :])
        self._end += got
        return got > 0

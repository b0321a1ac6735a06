"""Messages on a plain socket: the requests and replies of the data plane without gRPC.

A message is a header, the serialized protobuf message, and the bytes of its tensors, one behind the other:

    4 bytes "gsm1" | 4 bytes length of the protobuf message | 8 bytes call | 8 bytes length of the data

all little-endian. docs/design/transports.md has the whole story. Tensor bytes go from the arrays to the socket
and from the socket into one block of memory; nothing in between copies them. Where both sides share memory
(`globalstep.wire.shared_memory`), a message that begins with "gsm2" has a Place behind its header, and its tensors
need not follow: the place says where they lie.

They are read by `globalstep.wire.incoming_messages`.

Layer: shared. Threads: an Outgoing belongs to one thread at a time.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from globalstep.errors import ResourceExhaustedError
from globalstep.security.tls_socket import TlsSocket
from globalstep.wire.declarations import padded

__all__ = [
    "HEADER",
    "MAGIC",
    "MOST_NUMBERS",
    "PLACE",
    "PLACED_MAGIC",
    "TOKEN_BYTES",
    "WELCOME",
    "Outgoing",
    "Place",
    "SocketMessage",
    "prepare",
]

#: What a connection begins with: so many bytes of a token there, this answer back.
TOKEN_BYTES = 32
WELCOME = b"gsm1 ok\n"

HEADER = struct.Struct("<4sIQQ")
MAGIC = b"gsm1"
PLACED_MAGIC = b"gsm2"
#: A Place: block, how many are offered, how many dropped, offset, bytes of a new block; the numbers follow.
PLACE = struct.Struct("<IHHQQ")
MOST_NUMBERS = 64
_PADDING = memoryview(bytes(padded(1)))
#: Of a socket within one host: what is on its way stays in the processor's cache, and neither side waits for the other
#: too often. TCP's own choice grows to many MB there, and takes three times as long for a large message.
_LOCAL_BUFFER_BYTES = 1 << 18
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
#: Tensors of fewer bytes are copied behind the head: one piece costs the kernel less than several.
_JOINED_BYTES = 1 << 13


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
            first = HEADER.pack(MAGIC, len(head), call, nbytes) + head
        else:
            first = HEADER.pack(PLACED_MAGIC, len(head), call, nbytes) + place.packed() + head
        if following and nbytes < _JOINED_BYTES:
            first, following = b"".join((first, *following)), []
        self._left: list[memoryview | bytes] = [first, *following]
        self._left_bytes = len(first) + (nbytes if following else 0)

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

"""Frames: how a message with tensor bytes crosses a stream without being copied through protobuf.

On the wire a frame is an ordinary `globalstep.v1.Frame`. Here its bytes are assembled around memoryviews
of the tensors, and taken apart into memoryviews, so that a tensor byte is copied once on its way out
(into the frame, which grpc wants as one `bytes`) and at most once on its way in.

Layer: shared. Threads: functions are pure; an Assembler belongs to one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import COUNTED_HEAD_BYTES, PARSED_BYTES, MemoryPool, Pool
from globalstep.wire.declarations import ALIGNMENT, padded
from globalstep.wire.message import Message

#: Tensor bytes in one frame. 1 to 4 MiB measured best over grpcio (benchmarks/figures.md).
CHUNK_BYTES = 1 << 22
#: Up to this size a frame is parsed by protobuf as it is; a copy of so little costs less than scanning.
_SMALL = 1 << 13
# Tag byte of Frame.data: field 15, length-delimited.
_DATA_TAG = b"\x7a"
_PADDING = bytes(ALIGNMENT)


def frames_of(
    call: int,
    *,
    request: pb.Request | None = None,
    reply: pb.Reply | None = None,
    pieces: Sequence[memoryview] = (),
) -> Iterator[bytes]:
    """Give the frames of a message, as bytes ready for the stream.

    Args:
        call: Number of the call on its stream.
        request: The message, if it is a request.
        reply: The message, if it is a reply.
        pieces: Bytes of its tensors in order; each is padded to the alignment here.

    Yields:
        Serialized `Frame`s; at least one.
    """
    total = sum(padded(piece.nbytes) for piece in pieces)
    first = pb.Frame(call=call, request=request, reply=reply, data_bytes=total, last=total <= CHUNK_BYTES)
    if not first.last:
        # The receiver waits for memory at the head of a long message: none of the data is in its hands then.
        yield first.SerializeToString()
    sent = 0
    for chunk in _chunks(pieces):
        size = sum(piece.nbytes for piece in chunk)
        sent += size
        if first.last:
            head = first.SerializeToString()
        else:
            head = pb.Frame(call=call, last=sent == total).SerializeToString()
        yield b"".join([head, _DATA_TAG, varint(size), *chunk])
    if total == 0:
        yield first.SerializeToString()


def _chunks(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Divide the padded pieces into lists of CHUNK_BYTES in all (the last may be shorter)."""
    chunk: list[memoryview] = []
    space = CHUNK_BYTES
    for piece in pieces:
        rest = piece.cast("B") if piece.nbytes else memoryview(b"")
        padding = padded(rest.nbytes) - rest.nbytes
        while rest.nbytes > space:
            yield [*chunk, rest[:space]]
            rest, chunk, space = rest[space:], [], CHUNK_BYTES
        if rest.nbytes:
            chunk.append(rest)
        if padding:
            chunk.append(memoryview(_PADDING)[:padding])
        # CHUNK_BYTES is a multiple of the alignment, so the padding always fits.
        space -= rest.nbytes + padding
        if space <= 0:
            yield chunk
            chunk, space = [], CHUNK_BYTES
    if chunk:
        yield chunk


def varint(value: int) -> bytes:
    """Write a number as protobuf does: seven bits a byte, the least first."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise InvalidArgumentError("A frame ends within a number; it is not a globalstep.v1.Frame.")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def parse_frame(raw: bytes, claim: Callable[[int], None] = lambda nbytes: None) -> tuple[pb.Frame, memoryview]:
    """Take a frame apart.

    Args:
        raw: A serialized `Frame`.
        claim: Called with how many bytes of it are about to be parsed, where those are many.

    Returns:
        The frame without its data, and the data as a view into `raw`.

    Raises:
        InvalidArgumentError: If `raw` is not a `Frame`.
    """
    try:
        if len(raw) <= _SMALL:
            frame = pb.Frame.FromString(raw)
            return frame, memoryview(frame.data)
        at, view, rest = 0, memoryview(raw), []
        data = memoryview(b"")
        while at < len(raw):
            start = at
            tag, at = _read_varint(raw, at)
            if tag & 7 == 2:
                size, at = _read_varint(raw, at)
                if at + size > len(raw):
                    raise InvalidArgumentError("A frame is cut off; it is not a globalstep.v1.Frame.")
                at += size
                if tag >> 3 == 15:
                    data = view[at - size : at]
                    continue
            else:
                _, at = _read_varint(raw, at)
            rest.append(view[start:at])
        head_bytes = sum(piece.nbytes for piece in rest)
        if head_bytes >= COUNTED_HEAD_BYTES:
            claim(head_bytes)
        return pb.Frame.FromString(b"".join(rest)), data
    except (InvalidArgumentError, ResourceExhaustedError):
        raise
    except Exception as error:  # protobuf's DecodeError has no public base
        raise InvalidArgumentError(f"Not a globalstep.v1.Frame: {error}") from None


class Assembler:
    """Puts the frames of one stream together into messages. Single thread: the stream's reader.

    Args:
        limit_bytes: Messages with more data than this are refused before memory is taken.
        pool: Memory for the data of messages of several frames; of its own by default.
    """

    def __init__(self, limit_bytes: int, pool: Pool | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._head: pb.Frame | None = None
        self._pool = MemoryPool() if pool is None else pool
        self._refused: ResourceExhaustedError | None = None
        self._buffer = np.empty(0, np.uint8)
        self._size = 0
        self._claim: object = None

    @property
    def under_way(self) -> tuple[object, int] | None:
        """What has begun to come and has memory, with how much of its data is there; any thread may ask."""
        head, buffer = self._head, self._buffer
        return (head, self._size) if head is not None and buffer.nbytes else None

    def add(self, raw: bytes) -> Message | None:
        """Take a frame; give the message when this was its last one.

        The data of a message of one frame is a view into `raw`. That of a longer one lies in a buffer of
        its own, which is used again when no reference to it is left: a staged push keeps it. Where there is no
        memory for it, the message comes without data, `refused`.

        Raises:
            InvalidArgumentError: If the frames do not make a message.
            ResourceExhaustedError: If the message is larger than the limit.
        """
        if self._head is None:
            self._claim = None
        frame, data = parse_frame(raw, self._take_note)
        if self._head is None:
            if frame.data_bytes > self._limit_bytes:
                raise ResourceExhaustedError(
                    f"A message with {frame.data_bytes} bytes of tensors is over this task's limit of "
                    f"{self._limit_bytes}; raise --max-message-bytes or split the Variable."
                )
            if frame.last:
                return self._message(frame, data)
            self._head, self._size = frame, 0
            try:
                self._buffer = self._pool.take(frame.data_bytes)
            except ResourceExhaustedError as error:
                self._refused = error
        elif frame.call != self._head.call:
            raise InvalidArgumentError("Frames of two calls are mixed on one stream.")
        end = self._size + data.nbytes
        if self._refused is not None:
            self._size = end
            return self._refusal() if frame.last else None
        if end > self._buffer.nbytes:
            raise InvalidArgumentError("A message has more data than its first frame said.")
        self._buffer[self._size : end] = np.frombuffer(data, np.uint8)
        self._size = end
        if not frame.last:
            return None
        head, self._head = self._head, None
        return self._message(head, self._buffer.data)

    def close(self) -> None:
        """Let go of what has come of a message; nothing is added any more."""
        self._head = self._claim = None
        self._buffer = np.empty(0, np.uint8)

    def _take_note(self, head_bytes: int) -> None:
        self._claim = self._pool.claim(head_bytes * PARSED_BYTES)

    def _refusal(self) -> Message:
        head, refused = self._head, self._refused
        assert head is not None
        self._head, self._refused, self._size = None, None, 0
        return Message(head.call, head.request, None, memoryview(b""), refused)

    def _message(self, head: pb.Frame, data: memoryview) -> Message:
        if data.nbytes != head.data_bytes or (self._size and self._size != head.data_bytes):
            raise InvalidArgumentError(
                f"A message has {max(self._size, data.nbytes)} bytes of data; its first frame said {head.data_bytes}."
            )
        self._size = 0
        self._buffer = np.empty(0, np.uint8)
        return Message(
            head.call,
            head.request if head.HasField("request") else None,
            head.reply if head.HasField("reply") else None,
            data,
            None,
            self._claim,
        )

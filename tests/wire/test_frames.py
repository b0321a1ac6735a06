"""Frames: what goes in comes out, in pieces of bounded size, and garbage is an error (rung 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import frames
from globalstep.wire.declarations import padded
from globalstep.wire.frames import Assembler, frames_of, parse_frame

LIMIT = 1 << 30


def assemble(raw_frames, limit=LIMIT):
    assembler = Assembler(limit)
    messages = [assembler.add(raw) for raw in raw_frames]
    assert all(message is None for message in messages[:-1])
    return messages[-1]


def joined(pieces):
    return b"".join(bytes(piece) + bytes(padded(len(piece)) - len(piece)) for piece in pieces)


@given(st.lists(st.binary(max_size=200), max_size=6), st.integers(1, 2**40))
@example([], 1)
@example([b""], 1)
@example([bytes(64), b"", bytes(64)], 1)
def test_a_message_comes_back_whole_whatever_its_pieces(pieces, call):
    request = pb.Request(pull=pb.PullRequest(incarnation=3, client="c"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHUNK_BYTES", 64)  # so that small messages need several frames
        raw = list(frames_of(call, request=request, pieces=[memoryview(piece) for piece in pieces]))
    message = assemble(raw)
    assert (message.call, message.request, message.reply) == (call, request, None)
    assert bytes(message.data) == joined(pieces)
    assert all(len(frame) < 64 + 200 for frame in raw)


def test_no_data_comes_with_the_head_of_a_long_message():
    """The receiver waits for memory when it has the head: what came with it would lie there meanwhile, uncounted."""
    data = memoryview(bytes(frames.CHUNK_BYTES + 64))
    first, *rest = frames_of(1, request=pb.Request(pull=pb.PullRequest()), pieces=[data])
    assert len(first) < 100
    assert pb.Frame.FromString(first).data_bytes == data.nbytes
    assert len(rest) == 2


def test_a_frame_is_ordinary_protobuf():
    data = np.arange(5000, dtype=np.float64)
    (raw,) = frames_of(7, reply=pb.Reply(stage=pb.StageReply()), pieces=[data.data.cast("B")])
    frame = pb.Frame.FromString(raw)
    assert (frame.call, frame.last, frame.data_bytes) == (7, True, data.nbytes)
    assert frame.reply.WhichOneof("kind") == "stage"
    assert np.frombuffer(frame.data, np.float64).tolist() == data.tolist()


def test_a_frame_of_another_writer_is_understood():
    """Fields may come in any order, and ones that are not known here are skipped."""
    head = pb.Frame(call=9, last=True, data_bytes=20_000).SerializeToString()
    data = bytes(range(256)) * 79
    data = data[:20_000]
    unknown = b"\xf8\x07\x01"  # field 127, a number
    raw = b"\x7a" + frames.varint(len(data)) + data + unknown + head
    frame, view = parse_frame(raw)
    assert (frame.call, frame.last, bytes(view)) == (9, True, data)


def test_large_data_is_a_view_and_not_a_copy():
    data = bytes(100_000)
    (raw,) = frames_of(1, request=pb.Request(), pieces=[memoryview(data)])
    _, view = parse_frame(raw)
    assert view.obj is raw


@given(st.binary(max_size=300))
def test_garbage_is_an_error_of_ours(raw):
    for whole in (raw, raw + bytes(10_000)):
        try:
            frame, view = parse_frame(whole)
        except InvalidArgumentError:
            continue
        assert isinstance(frame, pb.Frame)
        assert view.nbytes <= len(whole)


def test_a_message_over_the_limit_is_refused_before_memory_is_taken():
    first = pb.Frame(call=1, request=pb.Request(), data_bytes=1 << 50)
    with pytest.raises(ResourceExhaustedError, match="limit of 1000"):
        Assembler(1000).add(first.SerializeToString())


@pytest.mark.parametrize(
    "wrong",
    [
        [pb.Frame(call=1, data_bytes=8, data=bytes(4)), pb.Frame(call=2, data=bytes(4), last=True)],
        [pb.Frame(call=1, data_bytes=8, data=bytes(4)), pb.Frame(call=1, data=bytes(8), last=True)],
        [pb.Frame(call=1, data_bytes=8, data=bytes(4)), pb.Frame(call=1, data=bytes(2), last=True)],
        [pb.Frame(call=1, data_bytes=8, data=bytes(4), last=True)],
    ],
    ids=["two calls mixed", "too much", "too little", "too little at once"],
)
def test_frames_that_do_not_make_a_message(wrong):
    with pytest.raises(InvalidArgumentError):
        assemble([frame.SerializeToString() for frame in wrong])


def test_large_messages_are_received_into_the_same_memory_unless_somebody_holds_it():
    sent = np.arange(3 * frames.CHUNK_BYTES // 8, dtype=np.float64)
    assembler = Assembler(1 << 30)

    def received():
        message = None
        for frame in frames_of(1, request=pb.Request(), pieces=[sent.data]):
            message = assembler.add(frame)
        return np.frombuffer(message.data, np.float64)

    first = received()
    address = first.ctypes.data
    second = received()
    assert second.ctypes.data != address
    assert np.array_equal(first, sent)
    del first
    assert received().ctypes.data == address

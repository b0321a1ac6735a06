"""Arrays that lie in one piece of memory, however alike they are, and are sent so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import Op, OpKind, Push, padded
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_messages import Places, PushMessages, joined_bytes

#: A dtype, a shape, how many arrays of these follow each other, and bytes before each.
ALIKE = st.tuples(
    st.sampled_from([np.dtype(name) for name in ("float32", "float64", "int8", "bool")]),
    st.sampled_from([(), (1,), (3,), (2, 3), (0, 2), (2, 2, 2)]),
    st.integers(1, 6) | st.integers(20, 40),
    st.sampled_from([0, 0, 8]),
)


def laid_out(groups):
    dtypes, shapes, offsets, end = [], [], [], 0
    for dtype, shape, count, gap in groups:
        for _ in range(count):
            dtypes.append(dtype)
            shapes.append(shape)
            offsets.append(end + gap)
            end = padded(end + gap + dtype.itemsize * math.prod(shape))
    return dtypes, shapes, offsets, end


@given(st.lists(ALIKE, max_size=6))
def test_each_array_lies_where_it_is_said_to(groups):
    dtypes, shapes, offsets, end = laid_out(groups)
    memory = np.arange(end, dtype=np.uint16).astype(np.uint8) % 2
    found = Places(dtypes, shapes, offsets).arrays(memory)
    assert len(found) == len(offsets)
    for array, dtype, shape, offset in zip(found, dtypes, shapes, offsets, strict=True):
        one = np.ndarray(shape, dtype, memory, offset)
        assert (type(array), array.dtype, array.shape, array.strides) == (np.ndarray, dtype, shape, one.strides)
        assert array.__array_interface__["data"] == one.__array_interface__["data"]
        assert array.tobytes() == one.tobytes()
    sealed = Places(dtypes, shapes, offsets).arrays(memory.data.toreadonly())
    assert not any(array.flags.writeable for array in sealed)


def test_one_of_them_holds_the_memory():
    pool = MemoryPool()
    places = Places([np.dtype("float32")] * 10, [(40_000,)] * 10, [160_000 * at for at in range(10)])
    arrays = places.arrays(pool.take(1_600_000).data)
    (last,) = arrays[9:]
    last.fill(3.0)
    del arrays
    again = pool.take(1_600_000)
    assert not np.shares_memory(again, last)
    address = last.__array_interface__["data"][0]
    del last
    assert pool.take(1_600_000).__array_interface__["data"][0] == address - 1_440_000


def test_operands_are_joined_whatever_their_order_in_memory():
    contiguous = [np.arange(3, dtype=np.float32), np.array(1, np.int8), np.zeros((0, 2))]
    turned = np.arange(6.0).reshape(2, 3).T
    for values in (contiguous, [*contiguous, turned], [turned]):
        assert joined_bytes(values) == b"".join(value.tobytes() for value in values)


class Sharing:
    """A transport that shares memory."""

    memory = np.empty(0, np.uint8)

    def buffer(self, nbytes):
        self.memory = np.full(nbytes + 24, 255, np.uint8)
        return self.memory[:nbytes]


class NotSharing:
    def buffer(self, nbytes):
        return None


class Broken:
    def buffer(self, nbytes):
        raise UnavailableError("no connection")


def sent(transport, values):
    """The pieces as which gradients are sent to a shard that knows their layout."""
    names = [f"v{at}" for at in range(len(values))]
    messages = PushMessages(JoinedRun("me", [transport], where=dict.fromkeys(names, 0)), WireOptions())
    ops = [Op(OpKind.APPLY, name, value, optimizer="o") for name, value in zip(names, values, strict=True)]
    push = Push(ops, layout="step")
    (part,) = messages.split(push).values()
    messages.encode(pb.PushRequest(), push, 0, part, False)
    messages.values(push, 0, pb.PushReply(), memoryview(b""))
    message = pb.PushRequest()
    pieces = messages.encode(message, push, 0, part, False)
    assert message.known_layout
    return pieces


@pytest.mark.parametrize("dtypes", ["d", "e", "fd", "dbe"])
def test_small_gradients_are_copied_as_one_piece_to_where_memory_is_shared(dtypes):
    transport = Sharing()
    kinds = [np.dtype(dtypes[at % len(dtypes)]) for at in range(6)]
    values = [np.arange(8192 // dtype.itemsize).astype(dtype).reshape(2, -1).T for dtype in kinds]
    values[1] = np.ones((2, 0), kinds[1])
    (whole,) = sent(transport, values)
    assert bytes(whole) == b"".join(value.tobytes() for value in values)
    assert transport.memory.tobytes() == bytes(whole) + bytes([255]) * 24
    assert all(value.flags.writeable for value in values)


@pytest.mark.parametrize(
    ("transport", "count"),
    [(NotSharing(), 4096), pytest.param(Broken(), 4096, id="left to the request"), (Sharing(), 4095)],
)
def test_they_are_sent_from_where_they_are_without_it_and_where_they_need_padding(transport, count):
    values = [np.ones(count, np.float32) for _ in range(2)]
    assert all(piece.obj is value for piece, value in zip(sent(transport, values), values, strict=True))

"""Arrays that lie as they are sent: given out, pushed as one piece, used up."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.errors import UnavailableError
from globalstep.wire.declarations import VariableDecl
from globalstep.worker.protocol.gradient_buffers import GradientBuffers

WHERE = {"a": 0, "b": 0, "c": 1}
VARIABLES = {"a": VariableDecl("a", "float32", (3,), 0), "b": VariableDecl("b", "float32", (2, 2), 0),
             "c": VariableDecl("c", "float64", (2,), 1)}  # fmt: skip


class SharedTransport:
    """A transport that shares memory."""

    def __init__(self):
        self.memory = np.full(64, 255, np.uint8)

    def buffer(self, nbytes):
        return self.memory[:nbytes]


class OtherTransport:
    """One that does not."""

    def buffer(self, nbytes):
        return None


@pytest.fixture
def buffers():
    return GradientBuffers([SharedTransport(), OtherTransport()])


def arrays_of(buffers, names=("a", "b", "c")):
    found = buffers.arrays(names, 1, VARIABLES, WHERE)
    for array in found:
        array.fill(1.0)
    return found


def test_the_arrays_given_out_are_one_piece_with_zeros_between(buffers):
    a, b, c = arrays_of(buffers)
    whole = buffers.whole(0, [a, b])
    assert np.frombuffer(whole, np.float32).tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    assert np.frombuffer(buffers.whole(1, [c]), np.float64).tolist() == [1, 1]


def test_only_what_the_ps_task_reads_in_place_is_used_up(buffers):
    a, b, c = arrays_of(buffers)
    buffers.whole(0, [a, b])
    buffers.whole(1, [c])
    assert (a.flags.writeable, b.flags.writeable, c.flags.writeable) == (False, False, True)


def test_it_knows_what_was_asked_for_last_of_the_same_incarnation(buffers):
    assert not buffers.knows(("a", "b"), 1, WHERE)
    arrays_of(buffers, ("a", "b"))
    assert buffers.knows(["a", "b"], 1, WHERE)
    assert not buffers.knows(("b", "a"), 1, WHERE)
    assert not buffers.knows(("a", "b"), 2, WHERE)
    assert not buffers.knows(("a", "b"), 1, WHERE | {"d": 0})


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")])
def test_they_come_in_the_order_asked_for(buffers, names):
    assert [array.shape for array in arrays_of(buffers, names)] == [VARIABLES[name].shape for name in names]


def test_they_serve_once(buffers):
    a, b, _ = arrays_of(buffers)
    assert buffers.whole(0, [a, b]) is not None
    assert buffers.given.keys() == {1}


@pytest.mark.parametrize("pushed", [("b", "a"), ("a",), ("a", "other")])
def test_other_arrays_are_looked_at_one_by_one(buffers, pushed):
    given = dict(zip("abc", arrays_of(buffers), strict=True), other=np.ones((2, 2), np.float32))
    assert buffers.whole(0, [given[name] for name in pushed]) is None
    assert given["a"].flags.writeable


def test_those_of_an_earlier_time_do_not_count(buffers):
    first = arrays_of(buffers)
    arrays_of(buffers)
    assert buffers.whole(0, first[:2]) is None


def test_gradients_that_lie_elsewhere_are_copied_as_one_piece():
    shared = SharedTransport()
    values = [np.arange(4, dtype=np.float32), np.zeros((0, 2)), np.arange(6.0).reshape(2, 3).T]
    whole = GradientBuffers([shared]).copied(0, values, [16, 0, 48])
    assert np.frombuffer(whole[:16], np.float32).tolist() == [0, 1, 2, 3]
    assert np.frombuffer(whole[16:], np.float64).tolist() == [0, 3, 1, 4, 2, 5]
    assert np.shares_memory(np.frombuffer(whole, np.uint8), shared.memory)
    assert all(value.flags.writeable for value in values)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.complex64])
def test_those_of_one_dtype_are_copied_as_one_piece_too(dtype):
    shared = SharedTransport()
    values = [np.ones((2, 0), dtype), np.arange(8 // np.dtype(dtype).itemsize).astype(dtype),
              np.arange(32 // np.dtype(dtype).itemsize).astype(dtype).reshape(2, -1).T]  # fmt: skip
    whole = GradientBuffers([shared]).copied(0, values, [0, 8, 32])
    assert bytes(whole) == b"".join(value.tobytes() for value in values)
    assert shared.memory.tobytes() == bytes(whole) + bytes([255]) * 24
    assert all(value.flags.writeable for value in values)


def test_they_are_sent_from_where_they_are_without_shared_memory(buffers):
    assert buffers.copied(1, [np.ones(2)], [16]) is None


def test_a_broken_connection_is_left_to_the_request(buffers, monkeypatch):
    def broken(self, nbytes):
        raise UnavailableError("no connection")

    monkeypatch.setattr(OtherTransport, "buffer", broken)
    assert buffers.copied(1, [np.ones(2)], [16]) is None
    buffers.close()
    assert buffers.copied(0, [np.ones(2)], [16]) is None

"""What a PS task takes for a request's bytes, and where it puts a reply's. Whatever a client says is checked first."""

import os

import numpy as np
import pytest

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.ps.service.shared_blocks import SharedBlocks
from globalstep.wire.shared_memory import MOST_BLOCKS, SHARED_FROM_BYTES, SLACK_BYTES, block_bytes
from globalstep.wire.socket_messages import Place, SocketMessage

NBYTES = 4 * SHARED_FROM_BYTES
SIZE = block_bytes(NBYTES)


@pytest.fixture
def blocks():
    return SharedBlocks(1 << 24)


def made(blocks, nbytes=SIZE):
    number, placed = blocks.create(nbytes)
    os.close(placed.descriptor)
    return number


def asked(nbytes=0, **place):
    return SocketMessage(1, b"", memoryview(b""), nbytes, Place(**place))


def filled(array, value):
    np.frombuffer(array, np.uint8)[:] = value
    return array


def at(blocks, placed, nbytes):
    block = blocks._blocks[placed.place.block]
    return block[placed.place.offset : placed.place.offset + nbytes]


@pytest.mark.parametrize(
    ("nbytes", "place"),
    [
        (8, {"block": 2}),
        (SIZE + 8, {"block": 1}),
        (8, {"block": 1, "offset": SIZE}),
        (8, {"block": 1, "offset": 4}),
        (8, {"block": 1, "offset": (1 << 64) - 8}),
        ((1 << 64) - 8, {"block": 1, "offset": 16}),
        (0, {"offered": (1, 2)}),
        (8, {"block": 1, "offered": (7,)}),
    ],
)
def test_what_is_not_within_the_connections_memory_is_refused(blocks, nbytes, place):
    made(blocks)
    with pytest.raises(InvalidArgumentError, match="block|Block"):
        blocks.data_of(asked(nbytes, **place))


def test_a_dropped_block_is_known_no_more_and_what_lies_in_it_stays(blocks):
    number = made(blocks)
    staged = filled(blocks.data_of(asked(16, block=number)), 3)
    blocks.data_of(asked(dropped=(number, 99)))
    assert bytes(staged) == bytes([3]) * 16
    with pytest.raises(InvalidArgumentError):
        blocks.data_of(asked(16, block=number))
    assert blocks.data_of(asked(8, block=made(blocks), dropped=())).nbytes == 8


def test_blocks_are_limited_in_number_and_size(blocks):
    for nbytes in (0, 1, SLACK_BYTES + 1, 1 << 62):
        with pytest.raises(ResourceExhaustedError):
            blocks.create(nbytes)
    for _ in range(MOST_BLOCKS):
        made(blocks, SLACK_BYTES)
    with pytest.raises(ResourceExhaustedError, match=f"{MOST_BLOCKS} blocks"):
        blocks.create(SLACK_BYTES)


def test_small_values_join_large_ones_that_lie_there(blocks):
    number = made(blocks)
    data = filled(blocks.data_of(asked(NBYTES, block=number, offset=SLACK_BYTES)), 7)
    before, behind = np.full(3, 1, np.uint8), np.full(16, 2, np.uint8)
    placed = blocks.put([before.data, data, behind.data])
    assert placed.place == Place(number, SLACK_BYTES - 8)
    got = at(blocks, placed, NBYTES + 24)
    assert got[:3].tolist() == [1] * 3
    assert np.all(got[8:-16] == 7)
    assert got[-16:].tolist() == [2] * 16


def test_values_that_lie_there_in_another_order_are_put_in_order(blocks):
    number = made(blocks)
    data = blocks.data_of(asked(NBYTES, block=number, offset=SLACK_BYTES))
    small, large = filled(data[:4096], 1), filled(data[4096:], 2)
    for pieces in ([large, small], [small, large], [small, small, large]):
        copies = [bytes(piece) for piece in pieces]
        placed = blocks.put(pieces)
        assert at(blocks, placed, sum(map(len, copies))).tobytes() == b"".join(copies)
        filled(small, 1)
        filled(large, 2)


def test_values_that_lie_elsewhere_go_into_a_block_that_is_offered_and_fits(blocks):
    small, large, right = made(blocks, SLACK_BYTES), made(blocks, 8 * SIZE), made(blocks)
    values = np.arange(NBYTES // 4, dtype=np.int32)
    blocks.data_of(asked(offered=(small, large, right)))
    placed = blocks.put([values.data.cast("B")])
    assert placed.place.block == right
    np.testing.assert_array_equal(at(blocks, placed, NBYTES).view(np.int32), values)


def test_a_block_whose_reply_is_never_sent_is_given_up(blocks):
    open_before = len(os.listdir("/proc/self/fd"))
    blocks.prepare(lambda: NBYTES)
    assert blocks.take(NBYTES) is not None
    blocks.data_of(asked())
    assert (len(blocks), len(os.listdir("/proc/self/fd"))) == (0, open_before)


def test_nothing_is_made_ready_where_something_fits_or_little_is_read(blocks):
    number = made(blocks)
    blocks.data_of(asked(offered=(number,)))
    blocks.prepare(lambda: NBYTES)
    blocks.take(NBYTES)
    blocks.data_of(asked(offered=(number,)))
    blocks.prepare(pytest.fail)  # as much as before fits
    blocks.data_of(asked())
    blocks.prepare(lambda: SHARED_FROM_BYTES - 8)
    assert len(blocks) == 1


def test_a_place_is_given_to_one_reader(blocks):
    number = made(blocks)
    blocks.data_of(asked(offered=(number,)))
    assert blocks.take(SHARED_FROM_BYTES - 1) is None, "so few bytes are sent"
    room = blocks.take(NBYTES)
    assert blocks.take(NBYTES) is None
    placed = blocks.put([room[: NBYTES // 2].data, room[NBYTES // 2 :].data])
    assert (placed.place.block, placed.place.offset) == (number, SLACK_BYTES)
    blocks.data_of(asked())
    blocks.prepare(lambda: NBYTES)
    blocks.take(NBYTES)
    assert len(blocks) == 2, "an offer is good for one reply"


def test_a_place_that_is_given_up_with_its_block_holds_no_later_values(blocks):
    """The reply went another way; one that had waited is sent after it."""
    blocks.data_of(asked())
    blocks.prepare(lambda: NBYTES)
    assert blocks.take(NBYTES) is not None
    larger = np.ones(2 * NBYTES, np.uint8)
    for _ in range(2):
        placed = blocks.put([larger.data])
        assert placed is not None
        os.close(placed.descriptor)
        np.testing.assert_array_equal(at(blocks, placed, larger.nbytes), larger)

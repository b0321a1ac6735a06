"""Messages on a socket: whole, in order, whatever the pieces in which they come."""

import os
import socket
import struct
import threading

import numpy as np
import pytest

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.ps.budget import Account, Budget
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import padded
from globalstep.wire.socket_messages import Incoming, Outgoing

LIMIT = 1 << 30


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def views(*arrays):
    return [memoryview(array.reshape(-1)).cast("B") if array.size else memoryview(b"") for array in arrays]


def in_thread(work):
    thread = threading.Thread(target=work, name="sender")
    thread.start()
    return thread


def tensors(sizes):
    rng = np.random.default_rng(sum(sizes))
    return [rng.integers(0, 256, size, np.uint8) for size in sizes]


def laid_out(arrays):
    return b"".join(array.tobytes() + bytes(padded(array.nbytes) - array.nbytes) for array in arrays)


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (8,), (3, 0, 17), (40_000,), (100_000, 7, 100_001), (5_000_003,), (5,) * 3000],
    ids=lambda sizes: f"{len(sizes)} of {sum(sizes)}",
)
def test_what_is_sent_arrives(pair, sizes):
    arrays = tensors(sizes)
    sender = in_thread(lambda: Outgoing(7, b"the message", views(*arrays)).send(pair[0]))
    message = Incoming(pair[1], LIMIT).receive()
    sender.join()
    assert (message.call, message.head, bytes(message.data)) == (7, b"the message", laid_out(arrays))


def test_messages_follow_each_other(pair):
    heads = [os.urandom(size) for size in (0, 1, 30_000, 3, 40_000, 70_000, 12)]
    arrays = tensors([50_000, 0, 3, 40_000, 32_768, 1_000_000, 9])

    def send():
        for call, (head, array) in enumerate(zip(heads, arrays, strict=True)):
            Outgoing(call, head, views(array)).send(pair[0])
        pair[0].shutdown(socket.SHUT_WR)

    sender = in_thread(send)
    incoming = Incoming(pair[1], LIMIT)
    got = [incoming.receive() for _ in heads]
    assert incoming.receive() is None
    sender.join()
    assert [message.head for message in got] == heads
    assert [bytes(message.data) for message in got] == [laid_out([array]) for array in arrays]


def wire(call, head, array):
    """The bytes of a message, by the letter of what socket_messages.py begins with."""
    data = laid_out([array])
    return b"gsm1" + struct.pack("<IQQ", len(head), call, len(data)) + head + data


def test_the_wire_is_as_documented_and_may_come_in_any_pieces(pair):
    raw = wire(5, b"head", tensors([21])[0]) + wire(6, b"", tensors([0])[0])

    def send():
        for at in range(len(raw)):
            pair[0].sendall(raw[at : at + 1])

    sender = in_thread(send)
    incoming = Incoming(pair[1], LIMIT)
    got = [incoming.receive(), incoming.receive()]
    sender.join()
    assert [(m.call, m.head, bytes(m.data)) for m in got] == [(5, b"head", laid_out(tensors([21]))), (6, b"", b"")]
    Outgoing(5, b"head", views(*tensors([21]))).send(pair[1])
    assert pair[0].recv(1000) == wire(5, b"head", tensors([21])[0])


@pytest.mark.parametrize("seed", range(5))
def test_what_has_come_is_taken_without_waiting(pair, seed):
    rng = np.random.default_rng(seed)
    sizes = [0, 5, 40_000, 100_000, 3]
    heads = [bytes(int(size)) for size in rng.permutation([0, 3, 30_000, 33_000, 100])]
    raw = b"".join(
        wire(call, head, tensors([size])[0]) for call, (head, size) in enumerate(zip(heads, sizes, strict=True))
    )
    incoming, got = Incoming(pair[1], LIMIT), []
    at = 0
    while at < len(raw):
        step = int(rng.choice([1, 7, 5_000, 60_000]))
        pair[0].sendall(raw[at : at + step])
        at += step
        while True:
            message = incoming.take(patient=False)
            if message is not None:
                got.append(message)
                continue
            try:
                incoming.fill(socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
    assert [message.head for message in got] == heads
    assert [bytes(message.data) for message in got] == [laid_out(tensors([size])) for size in sizes]


def test_where_memory_is_short_a_message_waits_unless_somebody_is_patient(pair):
    memory = Account(Budget(100_000, SYSTEM_CLOCK, patience_secs=0.01))
    held = memory.take(100_000)
    Outgoing(1, b"a", views(tensors([70_000])[0])).send(pair[0])
    incoming = Incoming(pair[1], LIMIT, pool=memory)
    incoming.fill()
    assert incoming.take(patient=False) is None
    assert (incoming.lacks_memory, incoming.coming_bytes) == (True, 70_000)
    assert held.nbytes == 100_000
    del held
    assert incoming.take(patient=False) is None
    assert not incoming.lacks_memory
    assert bytes(incoming.receive().data) == laid_out(tensors([70_000]))


def test_a_full_socket_takes_the_rest_later(pair):
    array = tensors([3_000_000])[0]
    outgoing = Outgoing(1, b"head", views(array))
    with pytest.raises(BlockingIOError):
        outgoing.send(pair[0], socket.MSG_DONTWAIT)
    got = []
    reader = in_thread(lambda: got.append(Incoming(pair[1], LIMIT).receive()))
    outgoing.send(pair[0])
    reader.join()
    assert bytes(got[0].data) == laid_out([array])


def test_a_size_over_the_limit_is_refused_before_memory_is_taken(pair):
    for header in (struct.pack("<IQQ", 0, 1, 1 << 60), struct.pack("<IQQ", 0xFFFFFFFF, 1, 0)):
        pair[0].sendall(b"gsm1" + header)
        with pytest.raises(ResourceExhaustedError, match="--max-message-bytes"):
            Incoming(pair[1], LIMIT).receive()


def test_what_is_no_message_is_refused(pair):
    pair[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(InvalidArgumentError, match="not a message"):
        Incoming(pair[1], LIMIT).receive()


@pytest.mark.parametrize("cut", [1, 23, 24, 26, 28, 100, 50_000])
def test_an_end_within_a_message_is_an_error(pair, cut):
    raw = wire(5, b"head", tensors([60_000])[0])
    sender = in_thread(lambda: (pair[0].sendall(raw[:cut]), pair[0].shutdown(socket.SHUT_WR)))
    with pytest.raises(ConnectionResetError, match="within a message"):
        Incoming(pair[1], LIMIT).receive()
    sender.join()


def test_memory_is_used_again_but_not_while_somebody_has_it(pair):
    incoming = Incoming(pair[1], LIMIT)

    def receive(value):
        sender = in_thread(lambda: Outgoing(1, b"", views(np.full(200_000, value, np.uint8))).send(pair[0]))
        data = np.frombuffer(incoming.receive().data, np.uint8)
        sender.join()
        return data

    kept = receive(1)
    seen = {receive(value).__array_interface__["data"][0] for value in range(2, 12)}
    assert len(seen) == 1
    assert np.all(kept == 1)

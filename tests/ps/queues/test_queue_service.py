"""What a PS task makes of messages for queues: those that are wrong, those that wait, and those of other runs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from globalstep.errors import AbortedError, InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Budget
from globalstep.ps.queues import queue_service
from globalstep.ps.queues.queue_service import QueueService
from globalstep.ps.queues.queue_store import _QUEUE_BYTES
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.queue_elements import decode_element, encode_element

ELEMENT = encode_element([np.array([1.0, 2.0], np.float32), b"text"])


@pytest.fixture
def service():
    return QueueService("this", set, SYSTEM_CLOCK, Budget(2 * (10_000 + _QUEUE_BYTES)))


def request(what=pb.QUEUE_ENQUEUE, number=1, client="c", elements=(ELEMENT,), **attributes):
    made = {"name": "q", "kind": "FIFOQueue", "capacity": 2, "dtypes": ["float32", "string"], "shapes": ["?", "?"]}
    queue = pb.QueueAttributes(**{**made, **attributes})
    asked = pb.QueueRequest(queue=queue, what=what, client=client, number=number, taken=number - 1, count=1)
    if what == pb.QUEUE_ENQUEUE:
        asked.elements.extend(elements)
        asked.total = len(elements)
    return asked


def test_what_comes_out_is_what_was_put_in(service):
    assert not service.call(request()).waiting
    reply = service.call(request(pb.QUEUE_DEQUEUE, 2))
    numbers, text = decode_element(reply.elements[0], ["float32", "string"])
    assert numbers.tolist() == [1.0, 2.0]
    assert text.item() == b"text"
    numbers[0] = 3.0  # it is the caller's
    assert reply.process == "this"


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"name": ""}, "cannot name a queue"),
        ({"name": "x" * 257}, "cannot name a queue"),
        ({"name": "a\x1b[2J"}, "cannot name a queue"),
        ({"kind": "PriorityQueue"}, "no kind of queue"),
        ({"dtypes": ["float32"]}, "1 dtypes and 2 shapes"),
        ({"dtypes": [], "shapes": []}, "0 dtypes"),
        ({"dtypes": ["float32", "O"]}, "'O' is no dtype"),
        ({"dtypes": ["float32"] * 65, "shapes": ["?"] * 65}, "65 dtypes.*up to 64"),
        ({"shapes": ["?", "x" * 300]}, "more than 256 characters"),
        ({"kind": "RandomShuffleQueue", "min_after_dequeue": -1}, "must be >= 0"),
    ],
)
def test_queues_that_cannot_be_are_refused(service, attributes, text):
    with pytest.raises(InvalidArgumentError, match=text):
        service.call(request(**attributes))
    assert service.infos() == []


def component(shape, data):
    return pb.QueueComponent(shape=shape, data=data)


@pytest.mark.parametrize(
    "components",
    [
        [],
        [component([2], bytes(8))],
        [component([3], bytes(8)), component([], bytes(8))],
        [component([-1], bytes(8)), component([], bytes(8))],
        [component([1 << 60, 1 << 60], bytes(8)), component([], bytes(8))],
        [component([2], bytes(8)), component([], b"")],
        [component([2], bytes(8)), component([1 << 40], bytes(8))],
        [component([2], bytes(8)), component([], (5).to_bytes(8, "little"))],
        [component([2], bytes(8)), component([2], b"\xff" * 16)],
        [component([1] * 33, bytes(4)), component([], bytes(8))],
    ],
)
def test_elements_whose_bytes_do_not_fit_are_refused(service, components):
    raw = pb.QueueElement(components=components).SerializeToString()
    with pytest.raises(InvalidArgumentError, match="not one of its elements"):
        service.call(request(elements=[raw]))
    with pytest.raises(InvalidArgumentError, match="not one of its elements"):
        service.call(request(elements=[b"\xff\xff"]))
    assert service.infos() == []


def test_a_call_that_waits_goes_on_when_it_can(service):
    replies = []
    asked = request(pb.QUEUE_DEQUEUE, client="other")
    asked.wait_millis = 500

    def wait():
        reply = service.call(asked)
        while reply.waiting:
            reply = service.call(asked)
        replies.append(reply)

    waiting = threading.Thread(target=wait, name="consumer")
    waiting.start()
    service.call(request())
    waiting.join(30.0)
    assert [len(reply.elements) for reply in replies] == [1]


def test_only_so_many_calls_wait_within_the_task(service, monkeypatch):
    monkeypatch.setattr(queue_service, "MOST_PARKED", 0)
    asked = request(pb.QUEUE_DEQUEUE)
    asked.wait_millis = 60_000
    assert service.call(asked).waiting


def test_a_client_of_another_process_hears_that_its_queues_are_lost(service):
    asked = request()
    asked.process = "another"
    with pytest.raises(AbortedError, match="was started again: what was in its queues is lost"):
        service.call(asked)


def test_queues_outlive_a_restore_but_not_their_run(service):
    service.call(request())
    service.begin("run")
    service.begin("run")
    assert [info.size for info in service.infos()] == [1]
    service.begin("other")
    assert service.infos() == []


def test_an_element_counts_with_what_it_takes_besides_its_bytes():
    service = QueueService("this", set, SYSTEM_CLOCK, Budget(2 * (10_000 + _QUEUE_BYTES)))
    small = encode_element([np.zeros((), np.float32), b""])
    reply = service.call(request(elements=[small] * 1000, capacity=-1))
    assert (reply.waiting, reply.entered) == (True, 10_000 // (len(small) + 256))
    assert service.infos()[0].bytes == reply.entered * (len(small) + 256)


def test_a_look_makes_no_queue(service):
    reply = service.call(request(pb.QUEUE_LOOK))
    assert (reply.size, reply.closed, service.infos()) == (0, False, [])

"""Waits without a limit say what they are for."""

from __future__ import annotations

import logging
import threading

import pytest

from globalstep.chief.checkpoints.cluster_saver import BackgroundSave
from globalstep.runtime import waiting
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.runtime.waiting import Reminder, join_announced, wait_announced
from globalstep.tf1.inputs.queue_state import QueueState
from globalstep.worker.waits.polling_wait import PollingWait


@pytest.fixture
def said(monkeypatch, caplog):
    """Lines come after 10 ms; gives a function that waits for one."""
    monkeypatch.setattr(waiting, "SAY_SECS", 0.01)
    caplog.set_level(logging.INFO, "globalstep")
    pause = threading.Event()

    def until(text):
        deadline = SYSTEM_CLOCK.monotonic() + 30
        while text not in caplog.text:
            assert SYSTEM_CLOCK.monotonic() < deadline, caplog.text
            pause.wait(0.005)
        return caplog.records

    return until


def test_a_wait_under_a_condition_says_what_it_is_for(said):
    changed = threading.Condition()
    reached = False

    def wait():
        reminder = Reminder(lambda: "the other one", logging.INFO)
        with changed:
            while not reached:
                reminder.wait(changed)

    thread = threading.Thread(target=wait, name="waiter")
    thread.start()
    records = said("s now for the other one")
    assert records[0].levelno == logging.INFO
    with changed:
        reached = True
        changed.notify_all()
    thread.join(30)
    assert not thread.is_alive()


def test_a_wait_is_announced_until_it_is_over(said, caplog):
    turned = threading.Event()
    thread = threading.Thread(target=wait_announced, args=(turned.wait, "the tide"), name="sailor")
    thread.start()
    said("s now for the tide")
    turned.set()
    join_announced(thread, "the sailor")
    assert not thread.is_alive()
    caplog.clear()
    wait_announced(turned.wait, "nothing")
    join_announced(thread, "nothing")
    assert "nothing" not in caplog.text


def test_a_dequeue_that_nobody_feeds_names_the_queue_and_what_to_do(said):
    state = QueueState("FIFOQueue", "input", 10)
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(state.dequeue(3)), name="consumer")
    thread.start()
    state.enqueue([(1,), (2,)])
    said("s now for 3 elements of FIFOQueue 'input', which holds 2: none is enqueued; the last element came 0 s ago")
    state.enqueue([(3,)])
    thread.join(30)
    assert taken == [(1,), (2,), (3,)]


def test_an_enqueue_into_a_full_queue_says_so_quietly(said):
    state = QueueState("FIFOQueue", "input", 1)
    thread = threading.Thread(target=lambda: state.enqueue([(1,), (2,)]), name="producer")
    thread.start()
    records = said("s now for space in FIFOQueue 'input', which holds 1")
    assert {record.levelno for record in records} == {logging.INFO}
    assert state.dequeue(2) == [(1,), (2,)]
    thread.join(30)


def test_a_checkpoint_that_takes_its_time_is_named(said):
    go_on = threading.Event()

    def save(cut_taken):
        cut_taken("run/model.ckpt-7")
        go_on.wait(30)
        return "run/model.ckpt-7"

    save_under_way = BackgroundSave(save, lambda: "the disk is slow")
    results = []
    thread = threading.Thread(target=lambda: results.append(save_under_way.result()), name="owner")
    thread.start()
    said("s now for the checkpoint run/model.ckpt-7 to be written. Most likely the disk is slow.")
    go_on.set()
    thread.join(30)
    assert results == ["run/model.ckpt-7"]


def test_a_dequeue_from_a_queue_that_nobody_ever_fed_says_so(said):
    state = QueueState("FIFOQueue", "input", 10)
    thread = threading.Thread(target=lambda: state.dequeue(1), name="consumer")
    thread.start()
    said("which holds 0: no thread enqueues them. Most likely its queue runners were not started")
    state.enqueue([(1,)])
    thread.join(30)


def test_a_dequeue_that_may_not_take_what_there_is_says_what_is_kept_back(said):
    state = QueueState("RandomShuffleQueue", "input", 10, min_after_dequeue=2)
    thread = threading.Thread(target=lambda: state.dequeue(1), name="consumer")
    thread.start()
    state.enqueue([(1,), (2,)])
    said("which holds 2 and keeps 2 back (min_after_dequeue)")
    state.enqueue([(3,)])
    thread.join(30)


def test_a_wait_says_the_likeliest_reasons_each_time_anew(said):
    turned = threading.Event()
    asked = []
    thread = threading.Thread(
        target=wait_announced,
        args=(turned.wait, "the tide"),
        kwargs={"why": lambda: asked.append(1) or f"the moon is at {len(asked)}"},
        name="sailor",
    )
    thread.start()
    said("s now for the tide. Most likely the moon is at 2.")
    turned.set()
    thread.join(30)


def test_a_reason_that_cannot_be_found_does_not_end_the_wait(said):
    turned = threading.Event()
    asked = threading.Event()

    def why():
        asked.set()
        raise OSError("the storage hangs")

    thread = threading.Thread(target=wait_announced, args=(turned.wait, "the tide", SYSTEM_CLOCK, why), name="sailor")
    thread.start()
    said("s now for the tide")
    assert asked.wait(30)
    assert thread.is_alive()
    turned.set()
    thread.join(30)
    wait = PollingWait(ManualClock(), 100.0)
    assert all(wait.pause("waiting for the ebb", why) for _ in range(20))

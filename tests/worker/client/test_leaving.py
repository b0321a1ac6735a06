"""Clients that nobody closes, and how a client leaves that is closed while something fails."""

import contextlib

import pytest
from counting_run import initialize
from stand_ins import StandingStill

from globalstep.errors import JobDoneError
from globalstep.ps.local import LocalPS
from globalstep.worker.client import leaving
from globalstep.worker.client.client import ClusterClient

WORKER = "/job:worker/task:1"


@pytest.fixture
def ps():
    return LocalPS(2)


def joined(ps):
    client = ClusterClient(ps.transports(), task=WORKER, clock=StandingStill())
    initialize(client)
    return client


def attendance(ps):
    """Who is here, and who left without a good end, as each PS task has it."""
    found = []
    for control in ps.controls:
        _, clients, absence = control.handler.shard.attendance()
        found.append(([view.task for view in clients], list(absence.failed)))
    return found


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_client_that_nobody_closes_leaves_with_the_interpreter(ps, unfinished):
    client = joined(ps)
    assert attendance(ps) == [([WORKER], [])] * 2
    client.heartbeat.leave_with_process(unfinished)
    assert attendance(ps) == [([], [WORKER] if unfinished else [])] * 2
    client.close()


def test_all_open_clients_leave_and_one_that_cannot_keeps_nobody_here(ps, monkeypatch):
    monkeypatch.setattr(leaving, "_open", leaving.weakref.WeakSet())
    clients = [joined(ps), joined(ps)]
    monkeypatch.setattr(clients[0].heartbeat, "goodbye", None)
    leaving._leave_all(leaving.os.getpid())
    assert clients[1].heartbeat._left
    monkeypatch.undo()
    for client in clients:
        client.close()


def test_a_forked_child_takes_nobody_away(ps):
    with contextlib.closing(joined(ps)):
        leaving._leave_all(leaving.os.getpid() + 1)
        assert attendance(ps) == [([WORKER], [])] * 2


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (SystemExit(0), []),
        (SystemExit(None), []),
        (JobDoneError("the last step"), []),
        (StopIteration(), []),
        (SystemExit(3), [WORKER]),
        (KeyboardInterrupt(), [WORKER]),
        (ValueError("a bug"), [WORKER]),
    ],
)
def test_what_ends_a_block_says_whether_the_task_may_come_back(ps, error, failed):
    with contextlib.suppress(BaseException), contextlib.closing(joined(ps)):
        raise error
    assert attendance(ps) == [([], failed)] * 2


def test_a_process_that_was_asked_to_end_may_come_back(ps):
    client = joined(ps)
    client.shutdown.ask()
    client.close()
    assert attendance(ps) == [([], [WORKER])] * 2

"""A process that has been asked to end: no call is tried again, and no task that is silent is waited for."""

import random

import pytest
from counting_run import initialize, step_push

from globalstep.errors import LostStateError, ResourceExhaustedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Push, Read
from globalstep.worker.client.calls import ControlCalls, Retrying
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.joined_run import JoinedRun


class Fails:
    """A call that fails, each time it is made."""

    def __init__(self, error):
        self.error = error
        self.calls = 0

    def __call__(self, *_, **__):
        self.calls += 1
        return self

    def result(self):
        raise self.error


@pytest.fixture
def run():
    clock = ManualClock()
    client = ClusterClient(LocalPS(2).transports(), clock=clock, rng=random.Random(1), member=False)
    client.begin(open=True, sequencer=1)
    initialize(client)
    yield client, clock
    client.close()


@pytest.mark.parametrize(
    "error", [UnavailableError("away"), ResourceExhaustedError("busy", retry_secs=0.1), LostStateError("empty")]
)
@pytest.mark.parametrize("logged", [False, True])
def test_no_call_is_tried_again(run, monkeypatch, error, logged):
    client, clock = run
    client._joined.logged = logged
    before, cut = clock.monotonic(), client.snapshot()
    send = Fails(error)
    for transport in client.run.transports:
        monkeypatch.setattr(transport, "send", send)
    client.shutdown.ask()
    assert client.shutdown.asked
    for call in (
        lambda: client.push(step_push()),
        lambda: client.push(Push(reads=[Read("global_step")])),  # a cut over several shards
        lambda: client.pull([Read("global_step")]),
        # It has a Run of its own, and transports of its own for values.
        lambda: cut.ledger,
        lambda: cut.read(["global_step"]),
    ):
        with pytest.raises(type(error)):
            call()
    assert clock.monotonic() == before


class Transport:
    label = "/job:ps/task:1"

    def __init__(self, answers):
        self._answers = answers
        self.deadlines = []
        self.broken = []
        self.given_up = False
        self.expired = 0

    def unary(self, method, request, timeout_secs):
        self.deadlines.append(timeout_secs)
        return Fails(UnavailableError("silent")) if not self._answers else self

    def result(self):
        return pb.HeartbeatReply()

    def expire(self):
        self.expired += 1

    def give_up(self, error):
        if error is not None:
            self.broken.append(error)
        self.given_up = error is not None


class Beats:
    """A clock that ends the heartbeat's loop after so many beats."""

    def __init__(self, beats):
        self._left = beats

    def monotonic(self):
        return 0.0

    def wait(self, event, timeout_secs):
        self._left -= 1
        return self._left < 0


@pytest.mark.parametrize("asked", [False, True])
def test_calls_to_a_task_that_is_silent_are_broken_off(asked):
    transports = [Transport(answers=True), Transport(answers=False)]
    heartbeat = Heartbeat(transports, "c", "", Beats(1))
    heartbeat.shutdown.asked = asked
    heartbeat._run()
    assert [len(transport.broken) for transport in transports] == [0, 0]
    heartbeat._clock = Beats(1)
    heartbeat._run()
    assert [len(transport.broken) for transport in transports] == [0, int(asked)]
    if asked:
        assert "is silent, and this process has been asked to end" in str(transports[1].broken[0])
        transports[1]._answers = True
        heartbeat._clock = Beats(1)
        heartbeat._run()
        assert not transports[1].given_up
        # A process that is about to end waits for a shorter time.
        assert transports[1].deadlines == [3.0] * 3


def test_what_reads_a_snapshot_is_broken_off_too():
    """The values of a checkpoint come over transports of their own, which no other thread watches."""
    own, beside = [Transport(answers=False)], [Transport(answers=False)]
    heartbeat = Heartbeat(own, "c", "", Beats(2))
    heartbeat.shutdown.asked = True
    heartbeat.watch(beside)
    heartbeat._run()
    assert beside[0].given_up
    assert beside[0].expired == 2
    heartbeat.unwatch(beside)
    heartbeat._clock = Beats(1)
    heartbeat._run()
    assert len(beside[0].broken) == 1
    assert len(own[0].broken) == 2


def test_short_calls_wait_for_a_shorter_time():
    transport = Transport(answers=True)
    run = JoinedRun("c", [transport])
    calls = ControlCalls(run, Retrying(30.0, ManualClock(), random.Random(1)))
    for method in ("Status", "WriteSnapshot"):
        calls.one(method, 0, None)
    run.shutdown.asked = True
    for method in ("Status", "WriteSnapshot"):
        calls.one(method, 0, None)
    assert transport.deadlines == [10.0, 3600.0, 3.0, 3600.0]

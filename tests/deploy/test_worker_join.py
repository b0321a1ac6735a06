"""What `Server.join` waits for, within one process."""

from __future__ import annotations

import contextlib
import threading
import uuid

import pytest

from globalstep.deploy.server import Server, wait_for_the_end
from globalstep.ps import local
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient, connect


class CountingClock:
    """Time passes only by waiting; `at` is called before each wait."""

    def __init__(self, at=lambda secs: None):
        self.secs = 0.0
        self.at = at

    def monotonic(self):
        return self.secs

    def wait(self, event, secs):
        self.sleep(secs)
        return False

    def sleep(self, secs):
        self.at(self.secs)
        self.secs += secs


@pytest.fixture
def target():
    name = f"join-{uuid.uuid4().hex}"
    yield f"local://{name}"
    local.drop(name)


def test_a_ps_that_serves_in_a_thread_ends_the_thread_only():
    server = Server.create_local_server()
    after = []

    def serve():
        # Python says nothing of a thread that ends by SystemExit; pytest would.
        with contextlib.suppress(SystemExit):
            server.join()
            after.append("what stands after join")

    thread = threading.Thread(target=serve, name="serving")
    thread.start()
    client = connect(server.target)
    client.begin(open=True)
    client.finish()
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    assert after == []


def test_whoever_takes_the_end_of_join_for_an_error_meets_it_again():
    server = Server.create_local_server()
    with contextlib.closing(connect(server.target)) as client:
        client.begin(open=True)
        client.finish()
    with pytest.raises(SystemExit) as ended:
        server.join()
    assert ended.value.code == 0
    with pytest.raises(SystemExit):
        _ = server.target
    with pytest.raises(SystemExit):
        server.join()


def test_a_worker_waits_until_the_job_is_done_and_its_sessions_are_closed(target):
    session = connect(target)
    session.begin(open=True)

    def at(secs):
        if secs == 3.0:
            session.finish()
        if secs == 6.0:
            session.close()

    clock = CountingClock(at)
    wait_for_the_end(target, clock)
    assert clock.secs == 7.0


def test_a_session_that_nobody_closes_is_waited_for_ten_seconds(target, caplog):
    session = connect(target)
    session.begin(open=True)
    session.finish()
    clock = CountingClock()
    wait_for_the_end(target, clock)
    assert clock.secs == 10.0
    assert "does not wait for its session, which is still open" in caplog.text
    session.close()


def test_a_worker_whose_ps_tasks_are_gone_after_its_training_ends_soon():
    server = Server.create_local_server()
    target = server.target
    connect(target).close()
    server.stop()
    clock = CountingClock()
    wait_for_the_end(target, clock)
    assert clock.secs <= 6.0


def test_a_worker_that_came_first_waits_for_the_ps_tasks(caplog):
    before = Server.create_local_server()
    before.stop()
    target, started = before.target, []

    def at(secs):
        if secs > 10 and not started:
            assert "waiting for the job's parameter servers" in caplog.text
            started.append(Server({"ps": [target.removeprefix("grpc://")]}))
            with contextlib.closing(ClusterClient(transports_to(target), member=False)) as starter:
                starter.begin(open=True)
                starter.finish()

    clock = CountingClock(at)
    wait_for_the_end(target, clock)
    assert started
    assert clock.secs > 10
    started[0].stop()

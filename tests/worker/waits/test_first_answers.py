"""A session whose PS tasks are not there yet waits for them, as the processes of a job start in any order."""

import logging
import threading

import pytest
from served_tasks import starting

import globalstep as gs
from globalstep.errors import DeadlineExceededError
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.sessions.session import Session
from globalstep.wire.transports import forget_target, register_target


def free_address():
    """An address where nobody serves any more."""
    with starting() as start:
        return start()[0].address


class StartsLater(ManualClock):
    """A clock whose waits, in the thread that made it, have a PS task begin to serve once they have come to 20 s."""

    def __init__(self, address):
        super().__init__()
        self._thread = threading.get_ident()
        self._address = address
        self.server = None

    def wait(self, event, timeout_secs):
        waited = super().wait(event, timeout_secs)
        if self.server is None and threading.get_ident() == self._thread and self.monotonic() > 20.0:
            self.server = PSServer(PSOptions(bind=self._address, grace_secs=0.2))
            self.server.start()
        return waited


def test_a_session_waits_for_ps_tasks_that_start_after_it(caplog):
    address = free_address()
    clock = StartsLater(address)
    try:
        with gs.Graph().as_default():
            w = gs.Variable([1.0, 2.0])
            with caplog.at_level(logging.WARNING, "globalstep"), Session(f"grpc://{address}", clock=clock) as session:
                assert session.run(gs.report_uninitialized_variables()).tolist() == [b"Variable"]
                session.run(w.initializer)
                assert session.run(w).tolist() == [1.0, 2.0]
    finally:
        clock.server.close()
    assert any("waiting for the parameter servers: Status failed" in text for text in caplog.messages)
    assert any(address in text for text in caplog.messages)


def test_the_program_of_a_ps_task_does_not_wait_for_another_that_has_ended():
    """As programs do whose PS tasks end by a queue: one may be through before another has made its session."""
    gone = free_address()
    with starting() as start:
        own = start()[0].address
        register_target("grpc://the program's own", [own, gone], task="/job:ps/task:0", program=lambda: None)
        try:
            with gs.Graph().as_default(), Session("grpc://the program's own", clock=ManualClock()) as session:
                with gs.device("/job:ps/task:0"):
                    queue = gs.FIFOQueue(2, "int32", shared_name="done")
                session.run(queue.enqueue(7))
                assert session.run(queue.dequeue()) == 7
        finally:
            forget_target("grpc://the program's own")


@pytest.mark.long  # 5 s of the processor for the tries of two hours
def test_it_gives_up_after_two_hours():
    address = free_address()
    with gs.Graph().as_default(), Session(f"grpc://{address}", clock=ManualClock()) as session:
        w = gs.Variable(1.0)
        with pytest.raises(DeadlineExceededError, match=r"Session was not ready after waiting 7200 secs\. .*refused"):
            session.run(w)

"""Who waits for a chief, or for PS tasks, is told why that may be."""

import logging

import pytest
from small_model import LocalCluster, build

from globalstep.chief.causes import why_no_answer, why_no_chief
from globalstep.chief.session_manager import SessionManager
from globalstep.clock import ManualClock
from globalstep.errors import DeadlineExceededError, UnavailableError
from globalstep.graph import Graph
from globalstep.proto import globalstep_pb2 as pb
from globalstep.variable_collections import report_uninitialized_variables
from globalstep.worker.session import Session


@pytest.mark.parametrize(
    ("state", "office", "text"),
    [
        (pb.STATE_VACANT, pb.ChiefOffice(), "no chief has come to PS task 0: it was not started yet"),
        (pb.STATE_VACANT, pb.ChiefOffice(holder="x", task="/job:chief/task:0", silent_secs=40),
         "/job:chief/task:0 is the chief, and was last heard 40 s ago: it has died"),
        (pb.STATE_VACANT, pb.ChiefOffice(holder="x", silent_secs=1), "it waits for a PS task that it cannot reach"),
        (pb.STATE_INITIALIZING, pb.ChiefOffice(holder="x", silent_secs=1), "it is initializing or restoring the model"),
    ],
)  # fmt: skip
def test_why_no_chief_has_made_the_model_ready(state, office, text):
    assert text in why_no_chief([pb.StatusReply(state=state, chief=office)])


def test_the_first_silent_task_is_asked(monkeypatch):
    class Client:
        labels, addresses = ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:2"], ["a:1", "b:2", "c:3"]

        def statuses(self, timeout_secs, brief):
            return [pb.StatusReply(), UnavailableError("1"), UnavailableError("2")]

    monkeypatch.setattr("globalstep.chief.causes.why_unreached", lambda address: f"asked {address}")
    assert why_no_answer(Client()) == "/job:ps/task:1: asked b:2; 1 more of 3 do not answer either"


def test_a_worker_that_waits_says_why_and_what_is_its_own(caplog):
    caplog.set_level(logging.WARNING)
    cluster = LocalCluster(shards=1)
    graph = Graph()
    with graph.as_default():
        build()
        manager = SessionManager(ready_op=report_uninitialized_variables(), graph=graph, clock=ManualClock())
        with pytest.raises(DeadlineExceededError):
            manager.wait_for_session(cluster.target, max_wait_secs=20)
    assert "Most likely no chief has come to PS task 0" in caplog.text
    chief = Graph()
    with chief.as_default():
        model = build()
        with Session(cluster.target, chief) as session:
            session.run([variable.initializer for variable in [model.step]])
    with (
        graph.as_default(),
        pytest.raises(DeadlineExceededError, match="The run has no Variable '\\w+': its chief's") as e,
    ):
        manager.wait_for_session(cluster.target, max_wait_secs=20)
    assert "LOCAL_VARIABLES" in str(e.value)
    cluster.close()

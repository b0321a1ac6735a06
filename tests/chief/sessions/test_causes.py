"""Who waits for a chief, or for PS tasks, is told why that may be."""

import logging
from types import SimpleNamespace

import pytest
from small_model import LocalCluster, build

from globalstep.chief.sessions.causes import why_no_chief, why_not_ended, why_not_left, why_not_written
from globalstep.chief.sessions.run_files import RunFiles
from globalstep.errors import DeadlineExceededError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.sessions.session_manager import SessionManager
from globalstep.tf1.variables.variable_collections import report_uninitialized_variables
from globalstep.worker.client.causes import why_no_answer, why_pushes_wait


@pytest.mark.parametrize(
    ("state", "lease", "text"),
    [
        (pb.STATE_VACANT, pb.ChiefLease(), "no chief has come to PS task 0: it was not started yet"),
        (pb.STATE_VACANT, pb.ChiefLease(holder="x", task="/job:chief/task:0", silent_secs=40),
         "/job:chief/task:0 is the chief, and was last heard 40 s ago: it has died"),
        (pb.STATE_VACANT, pb.ChiefLease(holder="x", silent_secs=1), "it waits for a PS task that it cannot reach"),
        (pb.STATE_INITIALIZING, pb.ChiefLease(holder="x", silent_secs=1), "it is initializing or restoring the model"),
    ],
)  # fmt: skip
def test_why_no_chief_has_made_the_model_ready(state, lease, text):
    assert text in why_no_chief([pb.StatusReply(state=state, chief=lease)])


def test_the_first_silent_task_is_asked(monkeypatch):
    class Client:
        run = SimpleNamespace(
            labels=["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:2"], addresses=["a:1", "b:2", "c:3"]
        )

        def statuses(self, timeout_secs, brief):
            return [pb.StatusReply(), UnavailableError("1"), UnavailableError("2")]

    monkeypatch.setattr("globalstep.worker.client.causes.why_unreached", lambda address: f"asked {address}")
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


class Asked:
    """A client of which each PS task says one thing; "" for none that answers."""

    def __init__(self, *replies):
        self.replies = replies
        labels = [f"/job:ps/task:{index}" for index in range(len(replies))]
        self.run = SimpleNamespace(labels=labels, addresses=["127.0.0.1:1" for _ in replies])

    def statuses(self, timeout_secs, brief):
        return list(self.replies)


READY = pb.StatusReply(state=pb.STATE_READY, incarnation=1)
SILENT = UnavailableError("no answer")


def test_why_pushes_are_not_answered():
    assert "nothing listens on port 1" in why_pushes_wait(Asked(READY, SILENT))
    vacant = why_pushes_wait(Asked(READY, pb.StatusReply(state=pb.STATE_VACANT)))
    assert vacant.startswith("/job:ps/task:1 answers, but holds no model")
    assert "all PS tasks answer and hold the model" in why_pushes_wait(Asked(READY, READY))


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (None, "/job:worker/task:1 has not come yet"),
        (pb.ClientInfo(client="c", task="/job:worker/task:1", silent_secs=9), "last heard 9 s ago: it has died"),
        (pb.ClientInfo(client="c", task="/job:worker/task:1", silent_secs=1), "so it runs: its loop does not ask"),
    ],
)
def test_why_a_task_has_not_left(client, text):
    reply = pb.StatusReply(state=pb.STATE_DONE, clients=[client] if client else [])
    assert text in why_not_left(Asked(reply), ["/job:worker/task:1"])
    assert "nothing listens" in why_not_left(Asked(SILENT), ["/job:worker/task:1"])


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        (pb.ChiefLease(), "no task has the chief's lease"),
        (
            pb.ChiefLease(holder="x", task="/job:chief/task:0", silent_secs=9),
            "/job:chief/task:0 is the chief, and was last",
        ),
        (pb.ChiefLease(holder="x", silent_secs=1), "x is the chief, and was heard 1 s ago: it is in a long step"),
    ],
)
def test_why_the_chief_has_not_ended_the_job(lease, text):
    assert text in why_not_ended(Asked(pb.StatusReply(chief=lease)))
    assert "nothing listens" in why_not_ended(Asked(SILENT))


def test_why_there_is_no_checkpoint(tmp_path):
    files = RunFiles(str(tmp_path))
    assert "does not exist on this machine" in RunFiles(str(tmp_path / "x")).why_none()
    assert "has no file of a checkpoint" in files.why_none()
    (tmp_path / "model.ckpt-3.shard-00000-of-00002.safetensors").write_text("")
    assert "(model.ckpt-3.shard-00000-of-00002.safetensors), but none that is whole" in files.why_none()
    assert "nothing listens" in why_not_written(Asked(SILENT), str(tmp_path))
    assert str(tmp_path) in why_not_written(Asked(READY), str(tmp_path))


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (["/job:worker/task:1"], "when /job:worker/task:1 has left."),
        (["/job:worker/task:2", "/job:worker/task:1"], "when /job:worker/task:1, /job:worker/task:2 have left."),
    ],
)
def test_how_many_the_parameter_servers_still_wait_for_is_said_rightly(left, text, caplog):
    session = SimpleNamespace(cluster=SimpleNamespace(finish=lambda: left))
    creator = ChiefSessionCreator()
    creator.acts = True
    with caplog.at_level(logging.INFO, "globalstep"):
        creator.after_end(session)
    assert f"The job is done; the parameter servers end {text}" in caplog.text


def test_a_chief_that_waits_for_a_worker_to_leave_says_who_and_why(caplog):
    cluster = LocalCluster(shards=1)
    clock = ManualClock()
    with Graph().as_default():
        model = build()
        creator = ChiefSessionCreator(master=cluster.target, clock=clock)
        session = creator.create_session()
        with Graph().as_default():
            worker = Session(cluster.target, task="/job:worker/task:1")
            creator.end_for_all(session, 8.0)
        assert (
            "waiting for /job:worker/task:1 to leave. Most likely /job:worker/task:1 was heard 0 s ago" in caplog.text
        )
        worker.close()
        session.close()
    assert model.w is not None
    cluster.close()

"""End of a job: the chief secures the last step before its loop ends, and waits for the others' own ends."""

import threading
from types import SimpleNamespace

import pytest
from small_model import LocalCluster, build, wait_for_saves

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.other_tasks import TO_COME_SECS, others_that_train
from globalstep.errors import AbortedError, OutOfRangeError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.wire import transports
from globalstep.wire.transports import KnownTarget


@pytest.fixture
def cluster():
    made = LocalCluster(shards=2)
    yield made
    SummaryWriterCache.clear()
    made.close()


class LosesState(CheckpointSaverListener):
    """Has PS tasks lose their state just before the save of a step, once."""

    def __init__(self, cluster, at_step, shards):
        self.cluster, self.at_step, self.shards = cluster, at_step, list(shards)

    def before_save(self, session, global_step_value):
        if global_step_value == self.at_step:
            while self.shards:
                self.cluster.lose(self.shards.pop())


def open_session(cluster, graph, folder=None, is_chief=True, last_step=None, listeners=(), clock=None):
    with graph.as_default():
        model = build()
        saves = [] if folder is None else [CheckpointSaverHook(folder, save_steps=4, listeners=listeners)]
        session = MonitoredTrainingSession(
            cluster.target,
            is_chief=is_chief,
            checkpoint_dir=None if folder is None else str(folder),
            hooks=[StopAtStepHook(last_step=last_step)] if last_step else [],
            chief_only_hooks=saves,
            save_checkpoint_secs=None,
            clock=clock or ManualClock(),
        )
    return model, session


class Happens(ManualClock):
    """A clock by which something happens each time that the thread that made it waits."""

    def __init__(self):
        super().__init__()
        self.next, self._thread = [], threading.get_ident()

    def wait(self, event, timeout_secs):
        if self.next and threading.get_ident() == self._thread:
            self.next.pop(0)()
        return super().wait(event, timeout_secs)


@pytest.mark.parametrize("shards", [[0], [1], [0, 1]], ids=["PS 0", "PS 1", "both"])
def test_steps_that_a_ps_task_loses_before_the_last_save_are_trained_again(cluster, tmp_path, shards):
    graph = Graph()
    model, session = open_session(cluster, graph, tmp_path, last_step=10, listeners=[LosesState(cluster, 10, shards)])
    with graph.as_default():
        runs = 0
        while not session.should_stop():
            session.run(model.train, {model.by: 1.0})
            runs += 1
        assert runs > 10, "the steps since the last checkpoint were lost, and are made again"
        assert cluster.sequencer.steps == {"global_step": 10}
        assert cluster.view().state == pb.STATE_DONE
        session.close()
    assert (tmp_path / "model.ckpt-10.index.json").exists()


def test_a_worker_at_the_limit_stays_until_the_last_step_is_saved_and_trains_what_is_lost_before(cluster, tmp_path):
    graph, others, clock = Graph(), Graph(), Happens()
    model, session = open_session(cluster, graph, tmp_path, last_step=10)

    def train(times):
        with graph.as_default():
            for _ in range(times):
                session.run(model.train, {model.by: 1.0})

    def end():
        train(1)  # too late: it hears of the limit by that
        assert session.should_stop()

    its, worker = open_session(cluster, others, is_chief=False, last_step=10, clock=clock)
    train(9)
    wait_for_saves()
    with others.as_default():
        worker.run(its.train, {its.by: 1.0})
        clock.next = [lambda: cluster.lose(1), lambda: train(1)]
        assert not worker.should_stop()
        assert cluster.sequencer.steps == {"global_step": 9}
        worker.run(its.train, {its.by: 1.0})
        clock.next = [end]
        assert worker.should_stop()
        worker.close()
    assert (tmp_path / "model.ckpt-10.index.json").exists()
    with graph.as_default():
        session.close()


def test_a_loop_that_does_not_ask_should_stop_fails_where_it_cannot_train_again(cluster, tmp_path):
    graph = Graph()
    model, session = open_session(cluster, graph, tmp_path, last_step=10, listeners=[LosesState(cluster, 10, [1])])
    with graph.as_default():
        for _ in range(10):
            session.run(model.train, {model.by: 1.0})
        with pytest.raises(AbortedError, match="lost the last steps before they were saved"):
            session.close()
    assert cluster.view().state != pb.STATE_DONE


class Stops(CheckpointSaverListener):
    """Asks for training to stop once a checkpoint is there beside the first."""

    def after_save(self, session, global_step_value):
        return global_step_value > 1


@pytest.mark.parametrize(("how", "more"), [("end of data", 7), ("plain end", 7), ("a listener ends the job", 1)])
def test_a_chief_whose_own_data_end_waits_for_the_others_and_goes_on_to_save(cluster, tmp_path, how, more):
    graph, others, clock, saved, stopped = Graph(), Graph(), Happens(), [], []
    listeners = [Stops()] if "listener" in how else []
    model, session = open_session(cluster, graph, tmp_path, listeners=listeners, clock=clock)
    its, worker = open_session(cluster, others, is_chief=False)

    def train(times):
        with others.as_default():
            for _ in range(times):
                assert not worker.should_stop()
                worker.run(its.train, {its.by: 1.0})

    def look():
        assert cluster.view().state == pb.STATE_READY
        wait_for_saves()
        saved.append(latest_checkpoint(str(tmp_path)))

    def leave():
        with others.as_default():
            worker._tf_sess().cluster.heartbeat.beat()
            stopped.append(worker.should_stop())
            worker.close()

    train(1)
    with graph.as_default(), session:
        session.run(model.train, {model.by: 1.0})
        clock.next = [lambda: train(12), look, lambda: train(more), leave]
        if how == "end of data":
            raise OutOfRangeError("the data have ended")
    assert saved == [str(tmp_path / "model.ckpt-14")]
    assert stopped == ["listener" in how]
    assert cluster.sequencer.steps == {"global_step": 14 + more}
    assert cluster.view().state == pb.STATE_DONE
    assert (tmp_path / f"model.ckpt-{14 + more}.index.json").exists()


def test_a_chief_whose_program_says_so_ends_the_job_for_all(cluster, tmp_path):
    graph, others = Graph(), Graph()
    _, session = open_session(cluster, graph, tmp_path)
    its, worker = open_session(cluster, others, is_chief=False)
    with others.as_default():
        worker.run(its.train, {its.by: 1.0})
    with graph.as_default(), session:
        session.run_step_fn(lambda step_context: step_context.request_stop())
    assert cluster.view().state == pb.STATE_DONE
    worker._tf_sess().cluster.heartbeat.beat()
    assert worker.should_stop()
    worker.close()


def test_each_hook_ends_once_though_the_session_is_lost_meanwhile(cluster):
    ended = []

    class Ends(SessionRunHook):
        def end(self, session):
            ended.append(self)
            if len(ended) == 2:
                raise UnavailableError("a PS task is away")

    hooks = [Ends(), Ends()]
    with Graph().as_default():
        model = build()
        with MonitoredTrainingSession(cluster.target, hooks=hooks, clock=ManualClock()) as session:
            session.run(model.train, {model.by: 1.0})
    assert ended == [hooks[0], hooks[1], hooks[1]]


@pytest.mark.timeout(60)
def test_a_chief_does_not_wait_for_one_that_waits_itself(cluster, tmp_path, caplog):
    """For what nobody initializes, say: it has pushed nothing, and no step moves."""
    graph, others = Graph(), Graph()
    model, session = open_session(cluster, graph, tmp_path)
    _, worker = open_session(cluster, others, is_chief=False)
    heartbeat = worker._tf_sess().cluster.heartbeat
    heartbeat.takes_task = True  # as one that is a task by TF_CONFIG
    heartbeat.beat()
    with graph.as_default():
        session.run(model.train, {model.by: 1.0})
        session.close()
    assert "has pushed nothing so far, and no step has moved for 30 s" in caplog.text
    assert cluster.view().state == pb.STATE_DONE
    with others.as_default():
        heartbeat.beat()
        assert worker.should_stop()
        worker.close()


@pytest.mark.parametrize("came", [False, True])
def test_a_chief_says_for_whom_it_waits_in_vain_and_why(cluster, monkeypatch, caplog, came):
    tasks, target = ("/job:worker/task:0", "/job:worker/task:1"), cluster.target

    def session_of(index):
        monkeypatch.setitem(transports._registered, f"{target}{index}", KnownTarget(target, tasks[index], tasks))
        return MonitoredTrainingSession(f"{target}{index}", index == 0, clock=ManualClock())

    with Graph().as_default():
        model = build()
        session = session_of(0)
        if came:
            with Graph().as_default():
                build()
                with pytest.raises(ZeroDivisionError), session_of(1):
                    1 / 0  # noqa: B018
        session.run(model.train, {model.by: 1.0})
        session.close()
    assert (
        "Waited 5 s so far: the loop of the chief, this task, is over; waiting for /job:worker/task:1 to come, up "
        "to 30 s" in caplog.text
    )
    why = "left before the end of the job" if came else "has not come yet: it is being started, it was never started"
    assert f"Most likely /job:worker/task:1 {why}" in caplog.text
    assert ("Leave out of the ClusterSpec what is not to be started" in caplog.text) is not came
    assert "/job:worker/task:1 did not come within 30 s, so the chief ends the job" in caplog.text
    assert cluster.view().state == pb.STATE_DONE


@pytest.mark.parametrize(
    ("client", "awaited"),
    [
        (pb.ClientInfo(client="b", task="/job:worker/task:1", takes_task=True, joined_secs=90.0), True),
        # It is here, and has not said yet that it is here to train.
        (pb.ClientInfo(client="b", task="/job:worker/task:1", joined_secs=0.1), True),
        (pb.ClientInfo(client="b", task="/job:worker/task:1", joined_secs=TO_COME_SECS), False),
        (pb.ClientInfo(client="b", joined_secs=0.1), False),
        (pb.ClientInfo(client="a", task="/job:chief/task:0", takes_task=True), False),
    ],
)
def test_a_chief_waits_for_who_trains_or_has_just_come(client, awaited):
    chief = SimpleNamespace(client_id="a", task="/job:chief/task:0")
    names, here = others_that_train(chief, [pb.StatusReply(clients=[client])], 0.0)
    assert names == ([client.task] if awaited else [])
    assert here == (awaited and client.takes_task)

"""Two jobs on one address, two chiefs of one job, two processes of one task: each is told, and nothing is mixed."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_model import LocalCluster, Mortal, build, wait_for_saves

import globalstep.chief.sessions.run_joining as run_joining
import globalstep.worker.client.candidate as candidate
import globalstep.worker.client.heartbeat as heartbeat
from globalstep.chief.journal.run_directory import FILE_NAME, kept_identity
from globalstep.chief.sessions.run_joining import RunOfTask
from globalstep.cluster.process_place import Process, this_process
from globalstep.cluster.run_identity import RunIdentity, TaskRun
from globalstep.deploy.audit.audit import audit
from globalstep.errors import AbortedError, DataLossError, FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.sessions.supervisor import Supervisor
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.wire.transports import forget_target, register_target

pytestmark = pytest.mark.usefixtures("soon", "no_environment")


@pytest.fixture
def cluster():
    made = LocalCluster(shards=2)
    yield made
    made.close()


@pytest.fixture
def process(monkeypatch):
    """Gives a context in which what is made is of another process, on another machine."""
    current = [this_process()]
    for module in (run_joining, candidate, heartbeat):
        monkeypatch.setattr(module, "this_process", lambda: current[0])

    @contextlib.contextmanager
    def within(pid):
        before, current[0] = current[0], Process(f"host{pid}", pid, f"place{pid}", "1")
        try:
            yield
        finally:
            current[0] = before

    return within


class Task(Mortal):
    """One task's program, as a process of its own."""

    def __init__(self, cluster, process, pid, last_step=None, **arguments):
        self.graph = Graph()
        self._process, self._pid = process, pid
        with process(pid), self.graph.as_default():
            self.model = build()
            hooks = [StopAtStepHook(last_step=last_step)] if last_step is not None else []
            if "save_checkpoint_steps" not in arguments:
                arguments["save_checkpoint_secs"] = None
            self.session = MonitoredTrainingSession(
                cluster.target, hooks=hooks, stop_grace_period_secs=0.1, **arguments
            )

    def step(self, count=1):
        with self._process(self._pid), self.graph.as_default():
            for _ in range(count):
                self.session.run(self.model.train, {self.model.by: 1.0})

    def close(self):
        with self._process(self._pid), self.graph.as_default():
            if self.session._tf_sess().cluster.chief_lease.term:
                # Its close does not wait for tasks that have not come, or were killed.
                self.session.end_job()
            self.session.close()


def test_another_run_is_refused_by_name_and_the_first_ends_exactly(cluster, process, tmp_path):
    a, b = tmp_path / "ca", tmp_path / "cb"
    first = Task(cluster, process, 1, last_step=15, checkpoint_dir=str(a), save_checkpoint_steps=5)
    first.step(3)
    with pytest.raises(FailedPreconditionError) as refused:
        Task(cluster, process, 2, last_step=5, checkpoint_dir=str(b))
    for part in (
        str(a),
        str(b),
        "host1, pid 1",
        "global_step 3",
        "GLOBALSTEP_TAKE_OVER=1",
        "--take-over",
        "PS tasks of its own",
    ):
        assert part in str(refused.value)
    assert not kept_identity(str(b)).id
    assert not list(b.glob("*ckpt*"))
    first.step(12)
    assert first.session.should_stop()
    first.close()
    wait_for_saves()
    assert cluster.sequencer.steps == {"global_step": 15}
    assert audit(str(a)).proven


def test_a_run_that_is_told_to_take_over_begins_anew_and_the_other_is_told_so(cluster, process, tmp_path, monkeypatch):
    a, b = tmp_path / "ca", tmp_path / "cb"
    first = Task(cluster, process, 1, last_step=15, checkpoint_dir=str(a), save_checkpoint_steps=5)
    worker = Task(cluster, process, 3, is_chief=False)
    first.step(3)
    worker.step()
    monkeypatch.setenv("GLOBALSTEP_TAKE_OVER", "1")
    second = Task(cluster, process, 2, last_step=4, checkpoint_dir=str(b), save_checkpoint_steps=5)
    monkeypatch.delenv("GLOBALSTEP_TAKE_OVER")
    # Nothing of the first is in the second.
    assert cluster.sequencer.steps == {"global_step": 0}
    for task, its in ((first, str(a)), (worker, "")):
        with pytest.raises(FailedPreconditionError, match=f"Two runs on one address.*{b}.*this task is of .*{its}"):
            task.step()
    second.step(4)
    second.close()
    wait_for_saves()
    found = audit(str(b))
    assert found.proven
    assert sum(one.pushes for one in found.workers.values()) == 4
    assert not (b / "model.ckpt-3.index").exists()


def test_a_run_that_was_dropped_goes_on_once_the_other_is_done(cluster, process, tmp_path, monkeypatch):
    a, b = tmp_path / "ca", tmp_path / "cb"
    first = Task(cluster, process, 1, checkpoint_dir=str(a), save_checkpoint_steps=1)
    first.step(3)
    wait_for_saves()
    monkeypatch.setenv("GLOBALSTEP_TAKE_OVER", "1")
    second = Task(cluster, process, 2, last_step=2, checkpoint_dir=str(b))
    monkeypatch.delenv("GLOBALSTEP_TAKE_OVER")
    second.step(2)
    second.close()
    # It had been the chief, and is so again: nobody else will begin its run.
    first.step()
    assert cluster.view().run.directory == str(a)
    assert cluster.sequencer.steps == {"global_step": 4}
    first.close()


def test_a_worker_of_another_run_is_refused_and_one_that_knows_none_is_not(cluster, process, tmp_path, monkeypatch):
    first = Task(cluster, process, 1, checkpoint_dir=str(tmp_path / "ca"))
    other = tmp_path / "cb"
    other.mkdir()
    (other / FILE_NAME).write_text(json.dumps({"id": "b" * 32, "name": ""}))
    with pytest.raises(FailedPreconditionError, match="Two runs on one address"):
        Task(cluster, process, 2, is_chief=False, checkpoint_dir=str(other))
    monkeypatch.setenv("GLOBALSTEP_RUN", "b")
    unnamed = Task(cluster, process, 4, is_chief=False)
    unnamed.close()
    monkeypatch.delenv("GLOBALSTEP_RUN")
    Task(cluster, process, 3, is_chief=False).close()
    Task(cluster, process, 5, is_chief=False, checkpoint_dir=str(tmp_path / "not there")).close()
    first.close()


def test_a_worker_knows_its_run_by_its_launchers_name(cluster, process, monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_RUN", "a")
    first = Task(cluster, process, 1)
    Task(cluster, process, 2, is_chief=False).close()
    monkeypatch.setenv("GLOBALSTEP_RUN", "b")
    with pytest.raises(FailedPreconditionError, match=r"serve run 'a'.*this task is of run 'b'"):
        Task(cluster, process, 3, is_chief=False)
    first.close()


def test_a_chief_that_is_started_again_goes_on_with_its_run(cluster, process, tmp_path):
    for directory in (str(tmp_path / "ca"), None):
        before = Task(cluster, process, 1, checkpoint_dir=directory)
        before.step(2)
        run = cluster.view().run
        assert run.id
        assert run.directory == (directory or "")
        if directory:
            assert kept_identity(directory).id == run.id
        before.die()
        again = Task(cluster, process, 1, checkpoint_dir=directory)
        again.step()
        assert cluster.view().run == run
        assert cluster.sequencer.steps == {"global_step": 3}
        again.close()
        cluster.lose(0)
        cluster.lose(1)


def test_a_directory_that_names_no_run_gets_the_id_of_the_one_that_it_is_of(cluster, process, tmp_path):
    first = Task(cluster, process, 1, checkpoint_dir=str(tmp_path))
    run = kept_identity(str(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    first.die()
    again = Task(cluster, process, 1, checkpoint_dir=str(tmp_path))
    assert kept_identity(str(tmp_path)).id == run.id
    again.close()


def test_two_tasks_that_are_both_chief_are_named(cluster, process):
    register_target("grpc://one:1", ["unused"], task="/job:worker/task:0")
    first = Task(cluster, process, 1)
    first.step()
    with pytest.raises(FailedPreconditionError, match=r"Two tasks say that they are the chief.*host1, pid 1.*host2"):
        Task(cluster, process, 2)
    first.step()
    first.close()
    forget_target("grpc://one:1")


def test_two_supervisors_that_are_both_chief_are_named_and_the_first_trains_on(cluster, process, tmp_path):
    graphs = [Graph(), Graph()]
    with process(1), graphs[0].as_default():
        model = build()
        first = Supervisor(logdir=str(tmp_path), save_model_secs=0, save_summaries_secs=0)
        session = first.prepare_or_wait_for_session(cluster.target)
        session.run(model.train, {model.by: 1.0})
    with process(2), graphs[1].as_default():
        build()
        second = Supervisor(logdir=str(tmp_path), save_model_secs=0, save_summaries_secs=0)
        with pytest.raises(
            FailedPreconditionError, match=r"Two tasks say that they are the chief.*host1, pid 1.*host2"
        ):
            second.prepare_or_wait_for_session(cluster.target)
        second.stop()
    with process(1), graphs[0].as_default():
        session.run(model.train, {model.by: 1.0})
        assert cluster.sequencer.steps == {"global_step": 2}
        first.stop()
        session.close()
    # The chief's lease is left with the job: the next run's chief does not wait.
    assert not cluster.view().chief.holder


def test_a_chief_whose_predecessor_is_silent_takes_its_place(cluster, process):
    first = Task(cluster, process, 1)
    first.step()
    first.die()
    second = Task(cluster, process, 2)
    with pytest.raises((AbortedError, FailedPreconditionError)):
        # It wakes, and is told; it does not say that it was silent for too long where that is not known.
        first.session._tf_sess().cluster.chief_lease.candidate.confirm(first.session._tf_sess().cluster)
    second.close()


class Client:
    """As much of a client as RunOfTask needs."""

    run = SimpleNamespace(labels=("ps 0",))
    task = "/job:worker/task:1"
    has_task = False

    @property
    def membership(self):
        return self

    client_id = "me"

    def __init__(self, statuses):
        self._statuses = list(statuses)

    def refresh(self):
        return [self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]]

    def take_task(self):
        self.has_task = True


def status_of(*silent_secs, run="a", joined_secs=9.0):
    clients = [
        pb.ClientInfo(
            client=f"c{at}", task="/job:worker/task:1", silent_secs=secs, run=run, takes_task=True,
            joined_secs=joined_secs, process=Process(f"h{at}", 5 + at, "elsewhere", "1").encode(),
        )
        for at, secs in enumerate(silent_secs)
    ]  # fmt: skip
    mine = pb.ClientInfo(client="me", task="/job:worker/task:1", takes_task=True, joined_secs=1.0)
    return pb.StatusReply(
        state=pb.STATE_READY, incarnation=1, clients=[*clients, mine], steps={"global_step": 7},
        run=RunIdentity("a", "", "/runs/a").encode(),
    )  # fmt: skip


CHIEF = TaskRun(is_chief=True, kept="b", directory="/runs/b")


def test_a_run_of_which_nobody_is_left_is_dropped_and_said_to_be(caplog):
    silent = [status_of(5.0), status_of(9.0), status_of()]
    assert RunOfTask(ManualClock()).look(Client(silent[1:]), silent[:1], CHIEF)
    assert all(part in caplog.text for part in ("/runs/a", "global_step 7", "dropped"))


def test_one_sign_of_life_is_enough_to_be_refused():
    with pytest.raises(FailedPreconditionError, match="h0, pid 5, heard 0.1 s ago"):
        RunOfTask(ManualClock()).look(Client([status_of(0.1)]), [status_of(0.9)], CHIEF)


def test_who_has_joined_a_run_is_of_no_other():
    joined = TaskRun(is_chief=False, joined="b")
    with pytest.raises(FailedPreconditionError):
        RunOfTask(ManualClock(), "b").look(Client([status_of(0.1)]), [status_of(0.9)], joined)
    assert not RunOfTask(ManualClock(), "a").look(Client([]), [status_of(0.9)], replace(joined, joined="a"))


def test_a_second_process_of_a_task_is_refused_where_the_first_lives():
    with pytest.raises(FailedPreconditionError, match=r"Two processes run as /job:worker/task:1: host h0, pid 5"):
        RunOfTask(ManualClock()).refuse_second(Client([status_of(0.5), status_of(0.1)]))


def test_a_process_takes_the_place_of_one_that_is_silent_or_came_later():
    RunOfTask(ManualClock()).refuse_second(Client([status_of(1.0), status_of(1.5), status_of(2.6)]))
    RunOfTask(ManualClock()).refuse_second(Client([status_of(0.1, joined_secs=0.5)]))


def test_a_process_that_was_seen_to_end_is_not_waited_for():
    gone = status_of(0.1)
    gone.clients[0].process.CopyFrom(replace(this_process(), pid=2**22 + 5).encode())
    RunOfTask(ManualClock()).refuse_second(Client([gone]))


def test_a_file_that_names_no_run_is_said_to_be_damaged(tmp_path):
    (tmp_path / FILE_NAME).write_text("[]")
    with pytest.raises(DataLossError, match=FILE_NAME):
        kept_identity(str(tmp_path))

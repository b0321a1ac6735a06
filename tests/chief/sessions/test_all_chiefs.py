"""Programs in which every task says is_chief=True: one of them is the chief, the others go on as workers."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from small_model import LocalCluster, Mortal, build, wait_for_saves

import globalstep as gs
import globalstep.chief.sessions.run_joining as run_joining
import globalstep.worker.client.candidate as candidate
import globalstep.worker.client.heartbeat as heartbeat
from globalstep.chief.sessions import other_tasks
from globalstep.chief.sessions.chief_role import ChiefClaim
from globalstep.cluster.process_place import Process, this_process
from globalstep.cluster.run_identity import NO_RUN
from globalstep.errors import FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.sessions.supervisor import Supervisor
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.tf1.variables.checkpoint_variables import list_variables
from globalstep.wire import transports
from globalstep.wire.transports import KnownTarget
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.joined_run import Shutdown

pytestmark = pytest.mark.usefixtures("soon", "no_environment")

TASKS = tuple(f"/job:worker/task:{index}" for index in range(3))


class Tasks:
    """The tasks of one cluster: what each does is done as by a process of its own."""

    def __init__(self, monkeypatch):
        self.ps = LocalCluster(shards=2)
        self._process = this_process()
        for module in (run_joining, candidate, heartbeat):
            monkeypatch.setattr(module, "this_process", lambda: self._process)
        self._targets = []

    @contextlib.contextmanager
    def process(self, index, tasks=TASKS):
        """A block of worker `index`'s process; gives its server's target."""
        target = f"grpc://worker{index}-of-{self.ps.target}"
        transports._registered[target] = KnownTarget(self.ps.target, tasks[index], tasks)
        self._targets.append(target)
        before, self._process = self._process, Process(f"host{index}", 100 + index, f"place{index}", "1")
        try:
            yield target
        finally:
            self._process = before

    def close(self):
        for target in self._targets:
            transports.forget_target(target)
        self.ps.close()


@pytest.fixture
def tasks(monkeypatch):
    made = Tasks(monkeypatch)
    yield made
    made.close()


class Task(Mortal):
    """One task's program: the model of all, and a net of its own by a name of its own."""

    def __init__(self, tasks, index, make=MonitoredTrainingSession, **arguments):
        self.index = index
        self._tasks = tasks
        self._graph = Graph()
        with self._within() as target:
            self.model = build()
            self.own = gs.Variable(np.full(2, index, np.float32), name=f"worker_{index}/net", trainable=False)
            self.set_own = self.own.assign_add(self.model.w)
            self.session = make(target, True, **arguments)

    @contextlib.contextmanager
    def _within(self):
        with self._tasks.process(self.index) as target, self._graph.as_default():
            yield target

    def step(self):
        with self._within():
            return self.session.run(self.model.train, {self.model.by: 1.0})

    def run(self, fetches):
        with self._within():
            return self.session.run(fetches)

    @property
    def acts_as_chief(self):
        return self.session._tf_sess().cluster.chief_lease.term > 0

    def close(self):
        """End as a program that says that the job is over: a chief's does not wait for tasks that have not come."""
        with self._within():
            if self.acts_as_chief and hasattr(self.session, "end_job"):
                self.session.end_job()
            self.session.close()


def bare(target, is_chief):
    return MonitoredSession(ChiefSessionCreator(master=target), stop_grace_period_secs=0.1)


def monitored(target, is_chief, **arguments):
    return MonitoredTrainingSession(target, is_chief, stop_grace_period_secs=0.1, **arguments)


@pytest.mark.parametrize("make", [monitored, bare])
def test_one_is_the_chief_and_the_others_train_with_nets_of_their_own(tasks, caplog, make):
    first = Task(tasks, 0, make)
    first.step()
    second, third = Task(tasks, 1, make), Task(tasks, 2, make)
    assert [task.acts_as_chief for task in (first, second, third)] == [True, False, False]
    for task in (second, third):
        task.step()
        # Nobody's copy is another's, and the shared net was not initialized again.
        assert task.run(task.set_own).tolist() == [task.index + task.run(task.model.w)[0]] * 2
    assert tasks.ps.sequencer.steps == {"global_step": 3}
    said = [record.getMessage() for record in caplog.records if "is_chief=True" in record.getMessage()]
    assert len(said) == 2
    for part in (
        "/job:worker/task:0",
        "host0, pid 100",
        "/job:worker/task:1",
        "LOCAL_VARIABLES",
        "goes on as a worker",
    ):
        assert part in said[0]
    for task in (third, second, first):
        task.close()
    assert tasks.ps.view().state == pb.STATE_DONE


def test_only_the_chief_saves_and_its_net_alone_is_in_the_checkpoint(tasks, tmp_path):
    first = Task(tasks, 0, monitored, checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
    second = Task(tasks, 1, monitored, checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
    for _ in range(4):
        second.step()
    wait_for_saves()
    assert [path.name for path in tmp_path.glob("model.ckpt-*.index.json")] == ["model.ckpt-0.index.json"]
    first.step()
    second.close()
    first.close()
    wait_for_saves()
    assert (tmp_path / "model.ckpt-5.index.json").exists()
    assert {name for name, _ in list_variables(str(tmp_path))} == {"global_step", "w", "worker_0/net"}


def test_a_saver_hook_among_the_tasks_own_hooks_saves_on_the_chief_only(tasks, tmp_path):
    def make(target, is_chief):
        hooks = [gs.train.CheckpointSaverHook(str(tmp_path), save_steps=1)]
        return MonitoredSession(ChiefSessionCreator(master=target), hooks, stop_grace_period_secs=0.1)

    first = Task(tasks, 0, make)
    second = Task(tasks, 1, make)
    second.step()
    assert not (tmp_path / "model.ckpt-1.index.json").exists()
    second.close()
    first.step()
    first.close()
    wait_for_saves()
    assert (tmp_path / "model.ckpt-2.index.json").exists()


def test_a_worker_initializes_its_own_again_when_the_ps_tasks_have_lost_all(tasks, tmp_path):
    first = Task(tasks, 0, monitored, checkpoint_dir=str(tmp_path), save_checkpoint_steps=1)
    second = Task(tasks, 1, monitored, checkpoint_dir=str(tmp_path))
    first.step()
    wait_for_saves()
    for shard in range(2):
        tasks.ps.lose(shard)
    first.step()
    second.step()
    assert second.run(second.own).tolist() == [1.0, 1.0]
    assert second.run(second.model.w).tolist() == [3.0, 3.0]
    assert not second.acts_as_chief
    second.close()
    first.close()


def test_who_takes_the_place_of_a_chief_that_died_at_the_last_step_saves_it(tasks, tmp_path):
    arguments = {"checkpoint_dir": str(tmp_path), "save_checkpoint_steps": 4, "failover_secs": 600.0}
    first, second = (
        Task(tasks, index, monitored, hooks=[StopAtStepHook(last_step=10)], **arguments) for index in range(2)
    )
    for _ in range(9):
        first.step()
    wait_for_saves()
    first.die()
    second.step()
    second.session._tf_sess().cluster.chief_lease.candidate.failover_secs = 1e-9
    with second._within():
        while not second.session.should_stop():
            second.step()
    assert second.acts_as_chief
    assert (tmp_path / "model.ckpt-10.index.json").exists()
    second.close()


def test_a_worker_does_not_become_the_chief_when_the_chief_is_silent_and_the_chief_comes_back(tasks):
    first, second = Task(tasks, 0, monitored), Task(tasks, 1, monitored)
    first.die()
    second.step()
    second.session._tf_sess().cluster.close()
    again = Task(tasks, 0, monitored)
    assert again.acts_as_chief
    again.step()
    assert tasks.ps.sequencer.steps == {"global_step": 2}
    again.close()


def test_two_processes_of_one_task_are_refused_as_before(tasks):
    first = Task(tasks, 0, monitored)
    with tasks.process(0) as target, Graph().as_default():
        tasks._process = Process("elsewhere", 7, "elsewhere", "1")
        build()
        with pytest.raises(FailedPreconditionError, match="Two processes run as /job:worker/task:0"):
            monitored(target, True)
    first.step()
    first.close()


def test_tasks_with_directories_of_their_own_are_told_that_one_job_has_one(tasks, tmp_path):
    first = Task(tasks, 0, monitored, checkpoint_dir=str(tmp_path / "a"), save_checkpoint_secs=None)
    with pytest.raises(FailedPreconditionError, match=r"Two runs on one address.*one checkpoint_dir"):
        Task(tasks, 1, monitored, checkpoint_dir=str(tmp_path / "b"), save_checkpoint_secs=None)
    first.close()


def test_take_over_is_for_another_run_and_not_for_a_task_of_this_one(tasks, monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_TAKE_OVER", "1")
    first, second = Task(tasks, 0, monitored), Task(tasks, 1, monitored)
    assert first.acts_as_chief
    assert not second.acts_as_chief
    first.step()
    second.close()
    first.close()


class Supervised:
    """A Supervisor's session, as far as Task needs it."""

    def __init__(self, target, is_chief, **arguments):
        self.supervisor = Supervisor(is_chief=is_chief, **arguments)
        self.inner = self.supervisor.prepare_or_wait_for_session(target)

    def run(self, *arguments):
        return self.inner.run(*arguments)

    def _tf_sess(self):
        return self.inner

    def close(self):
        self.supervisor.stop()
        self.inner.close()


def test_of_supervisors_the_first_is_the_chief_and_the_others_are_none(tasks, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(other_tasks, "TO_COME_SECS", 0.0)  # the third task never comes
    first = Task(tasks, 0, Supervised, logdir=str(tmp_path))
    second = Task(tasks, 1, Supervised, logdir=str(tmp_path))
    assert first.session.supervisor.is_chief
    assert not second.session.supervisor.is_chief
    assert "is_chief=True" in caplog.text
    with pytest.raises(RuntimeError, match="Only chief supervisor"):
        second.session.supervisor.start_standard_services(second.session.inner)
    first.step()
    second.step()
    assert second.run(second.set_own).tolist() == [3.0, 3.0]
    second.close()
    assert tasks.ps.view().state == pb.STATE_READY
    first.close()
    assert tasks.ps.view().state == pb.STATE_DONE


# ---- Who is let come first ---------------------------------------------------------------------


class ChiefLease:
    """As much of a client as ChiefClaim needs: what PS task 0 says of itself, look after look."""

    run = SimpleNamespace(session_tasks=TASKS, identity=NO_RUN, means=NO_RUN)
    shutdown = Shutdown()
    candidate = None

    @property
    def chief_lease(self):
        return self

    def __init__(self, *statuses):
        self._statuses = list(statuses)
        self.claims = 0

    def refresh(self):
        return [self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]]

    def claim(self, request):
        self.claims += 1
        return pb.ClaimChiefReply(granted=True, chief=pb.ChiefLease(term=1, holder=request.candidate))


def secs_until_claimed(cluster, task):
    clock = ManualClock()
    claim = ChiefClaim(Candidate(task, configured=True), clock)
    claim.admit(cluster)
    assert cluster.claims == 1
    return clock.monotonic()


def test_the_first_task_does_not_wait():
    assert secs_until_claimed(ChiefLease(pb.StatusReply()), TASKS[0]) == secs_until_claimed(
        ChiefLease(pb.StatusReply()), ""
    )


def test_another_task_lets_the_first_come_for_a_while():
    start = secs_until_claimed(ChiefLease(pb.StatusReply()), TASKS[0])
    assert 9 <= secs_until_claimed(ChiefLease(pb.StatusReply()), TASKS[1]) - start <= 12


def test_no_task_waits_once_there_has_been_a_chief_or_the_first_has_come_as_a_worker():
    start = secs_until_claimed(ChiefLease(pb.StatusReply()), TASKS[0])
    held = pb.StatusReply(chief=pb.ChiefLease(term=5))
    assert secs_until_claimed(ChiefLease(pb.StatusReply(), held), TASKS[1]) - start < 1
    came = pb.ClientInfo(client="c", task=TASKS[0], takes_task=True, joined_secs=5.0)
    assert secs_until_claimed(ChiefLease(pb.StatusReply(), pb.StatusReply(clients=[came])), TASKS[1]) - start < 1

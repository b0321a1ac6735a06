"""Variables on the device of a worker's own task: they live in its process."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

import globalstep as gs
from globalstep.cluster.cluster import ClusterSpec
from globalstep.ps import local
from globalstep.tf1.graph.graph import Graph

CLUSTER = ClusterSpec({"ps": ["p:1"], "worker": ["w:1", "w:2", "w:3"]})


class Worker:
    """A worker's graph: a net on the PS and one on its own device, by the same names in every worker."""

    def __init__(self, target, index, train_own=False):
        self.graph = Graph()
        self.task = f"/job:worker/task:{index}"
        with self.graph.as_default():
            with gs.device(gs.train.replica_device_setter(cluster=CLUSTER, worker_device=self.task)):
                self.shared = gs.get_variable("shared", [2], initializer=gs.zeros_initializer())
                self.step = gs.train.get_or_create_global_step()
            with gs.device(self.task):
                self.own = gs.get_variable("own", [2], initializer=gs.zeros_initializer())
            with gs.device("/job:worker/task:2"):
                self.of_two = gs.get_variable("of_two", [], initializer=gs.zeros_initializer())
            self.copy = self.own.assign(self.shared)
            self.set_own = self.own.assign([float(index)] * 2)
            variables = [self.own if train_own else self.shared]
            gradients = [(gs.constant([1.0, 1.0]), variable) for variable in variables]
            self.train = gs.train.GradientDescentOptimizer(1.0).apply_gradients(gradients, global_step=self.step)
            self.init = gs.global_variables_initializer()
            self.missing = gs.report_uninitialized_variables()
        self.target = target

    def session(self):
        return gs.Session(self.target, self.graph, task=self.task)


@pytest.fixture
def target():
    name = f"own-{uuid.uuid4().hex}"
    target = f"local://{name}"
    yield target
    local.drop(name)


def test_the_same_name_is_another_variable_in_each_worker_but_the_first(target):
    workers = [Worker(target, index) for index in range(3)]
    sessions = [worker.session() for worker in workers]
    sessions[0].run(workers[0].init)
    for worker, session in zip(workers, sessions, strict=True):
        session.run([worker.own.initializer, worker.of_two.initializer])
        session.run(worker.set_own)
    for index, (worker, session) in enumerate(zip(workers, sessions, strict=True)):
        assert session.run(worker.own).tolist() == [index] * 2
    # Who copies reads what is on the PS, and changes nobody else's.
    sessions[0].run(workers[0].train)
    sessions[1].run(workers[1].copy)
    assert sessions[1].run(workers[1].own).tolist() == [-1.0, -1.0]
    assert sessions[2].run(workers[2].own).tolist() == [2.0, 2.0]
    assert sessions[0].run(workers[0].own).tolist() == [0.0, 0.0]
    for session in sessions:
        session.close()


def test_a_variable_on_anothers_device_is_one_for_all(target):
    first, second = Worker(target, 0), Worker(target, 1)
    with first.session() as session:
        session.run(first.init)
        session.run(first.of_two.initializer)
    with second.session() as session:
        assert session.run(second.of_two) == 0.0
        assert sorted(map(str, session.run(second.missing))) == ["b'own'"]


def test_it_outlives_a_session_as_in_the_server_of_its_task(target):
    first, second = Worker(target, 0), Worker(target, 1)
    with first.session() as session:
        session.run(first.init)
    with second.session() as session:
        session.run(second.set_own)
    with second.session() as session:
        assert session.run(second.own).tolist() == [1.0, 1.0]


def test_one_that_is_trained_is_on_the_ps_and_a_warning_says_so(target, caplog):
    worker = Worker(target, 1, train_own=True)
    with worker.session() as session:
        session.run(worker.init)
        session.run(worker.train)
    assert "own lies on the device /job:worker/task:1, and this program trains it: it is on the PS" in caplog.text
    other = Worker(target, 2, train_own=True)
    with other.session() as session:
        assert np.all(session.run(other.own) == [-1.0, -1.0])


def test_a_worker_initializes_its_own_when_the_chief_has_made_the_model_ready(target, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    chief, worker = Worker(target, 0), Worker(target, 1)
    with chief.session() as session:
        session.run([chief.init, chief.of_two.initializer])
    with worker.graph.as_default():
        manager = gs.train.SessionManager(ready_op=worker.missing, graph=worker.graph, task=worker.task)
        with manager.wait_for_session(target, max_wait_secs=30) as session:
            assert session.run(worker.own).tolist() == [0.0, 0.0]


def test_checkpoints_leave_out_what_is_a_tasks_own(target, tmp_path):
    chief, worker = Worker(target, 0), Worker(target, 1)
    with chief.session() as session:
        session.run([chief.init, chief.of_two.initializer])
    with worker.graph.as_default(), worker.session() as session:
        session.run(worker.set_own)
        prefix = gs.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert sorted(name for name, _ in gs.train.list_variables(prefix)) == ["global_step", "of_two", "shared"]

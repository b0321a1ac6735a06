"""SyncReplicasOptimizer follows TensorFlow's trajectories, with as many workers as are wanted and with a backup."""

import pathlib
import threading

import numpy as np
import pytest
import sync_cases as cases
from small_model import LocalCluster

import globalstep as gs
from globalstep.wire.declarations import OutcomeKind

DATA = np.load(pathlib.Path(__file__).parent / "sync.npz")


class Worker:
    """A worker's graph, and its session."""

    def __init__(self, case, target, first):
        self.graph = gs.Graph()
        with self.graph.as_default():
            variable = gs.Variable(cases.initial_values(), name="w")
            # Something else, so that there are Variables on several PS tasks.
            other = gs.Variable(np.zeros(100, np.float32), name="other")
            step = gs.train.create_global_step()
            arguments = dict(case.arguments)
            if case.decayed:
                arguments["learning_rate"] = gs.train.exponential_decay(arguments["learning_rate"], step, 2, 0.5)
            inner = getattr(gs.train, f"{case.optimizer}Optimizer")(**arguments)
            sync = gs.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=2, total_num_replicas=case.workers)
            self.ids, self.rows = gs.placeholder("int64", [None]), gs.placeholder("float32", [None, cases.SHAPE[1]])
            # It reads a Variable, so the run has its values, and its step, before it waits.
            value = gs.py_func(self._computed, [self.rows, variable], gs.float32)
            value.set_shape([None, cases.SHAPE[1]] if case.sparse else cases.SHAPE)
            grad = gs.IndexedSlices(value, self.ids, cases.SHAPE) if case.sparse else value
            self.train_op = sync.apply_gradients([(grad, variable), (gs.ones([100]), other)], global_step=step)
            self.state = {"values": variable, **{name: inner.get_slot(variable, name) for name in case.slots}}
            self.session = gs.Session(target)
            if first:
                self.session.run(gs.global_variables_initializer())
            self.session.run(sync.local_step_init_op)
        self.sparse = case.sparse
        self.has_read, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def _computed(self, rows, _):
        self.has_read.set()
        assert self.may_go_on.wait(60.0)
        return rows

    def train(self, number, gradient):
        ids = np.array(cases.ROWS[number])
        feed = {self.rows: gradient[ids], self.ids: ids} if self.sparse else {self.rows: gradient}
        return self.session.run(self.train_op, feed)


@pytest.mark.parametrize("case", list(cases.sync_cases()), ids=lambda case: case.name)
def test_the_trajectory_is_tensorflows(case):
    cluster = LocalCluster(shards=2)
    try:
        workers = [Worker(case, cluster.target, at == 0) for at in range(case.workers)]
        history = []
        for number in range(cases.STEPS):
            pair, late = cases.order(number, case.workers)
            found = {}

            def train(worker, number=number, found=found):
                found[worker] = workers[worker].train(number, cases.gradient(worker, number))

            threads = [threading.Thread(target=train, args=(worker,)) for worker in (*late, *pair)]
            for worker in late:
                workers[worker].has_read.clear()
                workers[worker].may_go_on.clear()
            for worker, thread in zip((*late, *pair), threads, strict=True):
                thread.start()
                if worker in late:
                    assert workers[worker].has_read.wait(60.0)
            for thread in threads[len(late) :]:
                thread.join()
            for worker in late:
                workers[worker].may_go_on.set()
            for thread in threads:
                thread.join()
            assert found == dict.fromkeys((*late, *pair), number + 1)
            kinds = [workers[worker].session.last_outcome.kind for worker in (*late, *pair)]
            assert kinds == [OutcomeKind.LATE] * len(late) + [OutcomeKind.ACCEPTED] * 2
            history.append(workers[0].session.run(workers[0].state))
        for worker in workers:
            worker.session.close()
    finally:
        cluster.close()
    for name in history[0]:
        wanted = DATA[f"{case.name}/{name}"]
        found = np.stack([entry[name] for entry in history])
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max(), err_msg=name)

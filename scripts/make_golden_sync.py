"""Make tests/golden/sync.npz from an installed TensorFlow: what SyncReplicasOptimizer computes, step by step.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0
    /some/where/bin/python scripts/make_golden_sync.py

A PS and the workers are servers of one process. No tokens are put in by hand, so that each step is made of the two
gradients that are meant for it. The data is committed and the tests need no TensorFlow; the cases are in
tests/golden/sync_cases.py.
"""

from __future__ import annotations

import pathlib
import sys
import threading
from typing import Any

import numpy as np
import tensorflow as tf

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import sync_cases as cases  # noqa: E402

v1 = tf.compat.v1


def build(case: cases.SyncCase, worker: int) -> dict[str, Any]:
    """Make a worker's graph."""
    graph = v1.Graph()
    with graph.as_default():
        with v1.device("/job:ps/task:0"):
            variable = v1.Variable(cases.initial_values(), name="w")
            step = v1.train.create_global_step()
        with v1.device(f"/job:worker/task:{worker}"):
            arguments: dict[str, Any] = dict(case.arguments)
            if case.decayed:
                arguments["learning_rate"] = v1.train.exponential_decay(arguments["learning_rate"], step, 2, 0.5)
            inner = getattr(v1.train, f"{case.optimizer}Optimizer")(**arguments)
            sync = v1.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=2, total_num_replicas=case.workers)
            ids, rows = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, cases.SHAPE[1]])
            grad: Any = tf.IndexedSlices(rows, ids, tf.constant(cases.SHAPE)) if case.sparse else rows
            if not case.sparse:
                grad = tf.ensure_shape(rows, cases.SHAPE)
            train_op = sync.apply_gradients([(grad, variable)], global_step=step)
            state = {"values": variable, **{name: inner.get_slot(variable, name) for name in case.slots}}
            init = v1.global_variables_initializer()
    return {
        "graph": graph, "train": train_op, "state": state, "step": step, "init": init, "ids": ids, "rows": rows,
        "local": [sync.chief_init_op if worker == 0 else sync.local_step_init_op], "sync": sync,
        "runner": sync.get_chief_queue_runner() if worker == 0 else None,
    }  # fmt: skip


def run_case(case: cases.SyncCase) -> dict[str, np.ndarray]:
    """Give every value and slot after each step."""
    local = [f"localhost:{18000 + at}" for at in range(1 + case.workers)]
    cluster = tf.train.ClusterSpec({"ps": local[:1], "worker": local[1:]})
    config = v1.ConfigProto()
    servers = [v1.train.Server(cluster, "ps", 0, config=config)]
    servers += [v1.train.Server(cluster, "worker", at, config=config) for at in range(case.workers)]
    made = [build(case, worker) for worker in range(case.workers)]
    sessions = [v1.Session(servers[1 + at].target, graph=each["graph"]) for at, each in enumerate(made)]
    v1.Session.reset(servers[1].target)
    sessions = [v1.Session(servers[1 + at].target, graph=each["graph"]) for at, each in enumerate(made)]
    sessions[0].run(made[0]["init"])
    for session, each in zip(sessions, made, strict=True):
        session.run(each["local"])
    coordinator = v1.train.Coordinator()
    made[0]["runner"].create_threads(sessions[0], coord=coordinator, daemon=True, start=True)

    def train(worker: int, number: int) -> None:
        each, value = made[worker], cases.gradient(worker, number)
        ids = np.array(cases.ROWS[number])
        feed = {each["rows"]: value[ids], each["ids"]: ids} if case.sparse else {each["rows"]: value}
        sessions[worker].run(each["train"], feed)

    history = []
    for number in range(cases.STEPS):
        pair, late = cases.order(number, case.workers)
        threads = [threading.Thread(target=train, args=(worker, number)) for worker in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in late:
            train(worker, number)
        assert sessions[0].run(made[0]["step"]) == number + 1
        history.append(sessions[0].run(made[0]["state"]))
    return {name: np.stack([entry[name] for entry in history]) for name in made[0]["state"]}


def main() -> None:
    """Make the file."""
    v1.disable_eager_execution()
    v1.disable_resource_variables()
    only = sys.argv[1:]
    if only:  # one case, in a process of its own: its servers cannot be ended
        (case,) = [case for case in cases.sync_cases() if case.name == only[0]]
        np.savez(only[1], **run_case(case))
        return
    import subprocess
    import tempfile

    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases.sync_cases():
            path = f"{folder}/{case.name}.npz"
            subprocess.run([sys.executable, __file__, case.name, path], check=True)
            with np.load(path) as data:
                arrays.update({f"{case.name}/{name}": data[name] for name in data.files})
    np.savez_compressed(GOLDEN / "sync.npz", **arrays)
    print(f"{len(arrays)} arrays in {GOLDEN / 'sync.npz'}")


if __name__ == "__main__":
    main()

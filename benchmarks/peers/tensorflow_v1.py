"""`python -m benchmarks.peers.tensorflow_v1`: TensorFlow's compat.v1 parameter server, between-graph, asynchronous.

As TensorFlow 1.x programs do it: `tf.train.Server` in every task, `replica_device_setter`, a graph a worker,
`apply_gradients` with the default `use_locking=False`, one `session.run` a step. In its fastest form: the session
is a plain one, and what it runs is made a callable once, which leaves out the parsing of fetches; reference
variables, as TensorFlow 1.x makes them; nothing is fetched to Python, since that would cost a copy.

The gradient of each variable is filled on the worker with a number that is computed from the variable's value, so
that values do cross the wire, and that no optimization of the graph makes it a constant.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tensorflow_v2

from benchmarks.harness.workload import (
    EMBEDDING_IDS,
    EMBEDDING_WIDTH,
    HOT_ID,
    LEARNING_RATE,
    Array,
    Case,
    id_batches,
    shapes,
)
from benchmarks.programs import digits_job
from benchmarks.programs.obey import obey, serve_until_told, serving

tf = tensorflow_v2.compat.v1

#: More than any value becomes.
_MUCH = 1e30


class TensorFlowWorker:
    """See obey.Worker.

    Args:
        server: The server of this task.
        index: Of this worker.
    """

    def __init__(self, server: Any, index: int) -> None:
        self.stages: dict[str, float] = {}
        self._server = server
        self._index = index
        self._session: Any = None
        self._case = Case("counter")
        self.step: Any = None
        self.train_on: Any = None
        self.accuracy: Any = None

    def _build(self, case: Case) -> None:
        """Build the case's graph and open a session."""
        worker = f"/job:worker/task:{self._index}"
        config = tf.ConfigProto(device_filters=["/job:ps", worker])
        graph = tf.Graph()
        setter = tf.train.replica_device_setter(ps_tasks=case.ps, worker_device=worker)
        with graph.as_default(), tf.device(setter):
            self._count = tf.train.get_or_create_global_step()
            rate = digits_job.RATE if case.kind == "digits" else LEARNING_RATE
            optimizer = {
                "sgd": tf.train.GradientDescentOptimizer,
                "adam": tf.train.AdamOptimizer,
                "adagrad": tf.train.AdagradOptimizer,
            }[case.rule](rate)
            self._variables: dict[str, Any] = {}
            if case.kind == "dense":
                self._op = optimizer.apply_gradients(self._dense(case), global_step=self._count)
            elif case.kind == "embedding":
                self._op = optimizer.apply_gradients(self._embedding(case), global_step=self._count)
            elif case.kind == "digits":
                self._op = optimizer.minimize(self._network(), global_step=self._count)
            else:
                self._op = tf.assign_add(self._count, 1)
            self._initializer = tf.global_variables_initializer()
        self._session = tf.Session(self._server.target, graph=graph, config=config)

    def _dense(self, case: Case) -> list[tuple[Any, Any]]:
        pairs = []
        for name, shape in shapes(case).items():
            variable = tf.get_variable(name, shape, initializer=tf.zeros_initializer(), use_resource=False)
            self._variables[name] = variable
            with tf.device(f"/job:worker/task:{self._index}/cpu:0"):
                pairs.append((tf.fill(shape, tf.cast(tf.identity(variable)[0] < _MUCH, tf.float32)), variable))
        return pairs

    def _embedding(self, case: Case) -> list[tuple[Any, Any]]:
        tables = [
            tf.get_variable(
                f"table_{at}", [case.size // case.ps, EMBEDDING_WIDTH], initializer=tf.zeros_initializer(),
                use_resource=False,
            )
            for at in range(case.ps)
        ]  # fmt: skip
        self._ids = tf.placeholder(tf.int64, [EMBEDDING_IDS])
        rows = tf.nn.embedding_lookup(tables, self._ids, partition_strategy="mod")
        self._variables["row"] = tf.nn.embedding_lookup(
            tables, tf.constant([HOT_ID], tf.int64), partition_strategy="mod"
        )
        with tf.device(f"/job:worker/task:{self._index}/cpu:0"):
            ones = tf.fill([EMBEDDING_IDS, EMBEDDING_WIDTH], tf.cast(tf.identity(rows)[0, 0] < _MUCH, tf.float32))
        gradients = tf.gradients([rows], tables, grad_ys=[ones])
        return list(zip(gradients, tables, strict=True))

    def _network(self) -> Any:
        values = digits_job.initial()
        names = ("hidden/weights", "hidden/biases", "weights", "biases")
        hidden_weights, hidden_biases, weights, biases = (
            tf.get_variable(name, initializer=value, use_resource=False)
            for name, value in zip(names, values, strict=True)
        )
        self._images = tf.placeholder(tf.float32, [None, 64])
        self._labels = tf.placeholder(tf.int64, [None])
        logits = tf.matmul(tf.nn.relu(tf.matmul(self._images, hidden_weights) + hidden_biases), weights) + biases
        self._accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), self._labels), tf.float32))
        return tf.losses.sparse_softmax_cross_entropy(self._labels, logits)

    def create(self, case: Case, form: str) -> None:
        """See Worker."""
        tf.Session.reset(self._server.target)
        self._build(case)
        self._session.run(self._initializer)
        self.leave()

    def join(self, case: Case, form: str, profile: bool) -> None:
        """See Worker."""
        self._case = case
        self._build(case)
        if case.kind == "embedding":
            self._batches = id_batches(case, self._index)
            self._at = 0
            run = self._session.make_callable(self._op, [self._ids])
            self.step = lambda: run(self._next_ids())
        elif case.kind == "digits":
            self._join_digits()
        else:
            self.step = self._session.make_callable(self._op)

    def _join_digits(self) -> None:
        data = digits_job.load(self._case.data)
        run = self._session.make_callable(self._op, [self._images, self._labels])
        look = self._session.make_callable(self._accuracy, [self._images, self._labels])
        self.train_on = lambda batch: run(data.train_images[batch], data.train_labels[batch])
        self.accuracy = lambda: float(look(data.test_images, data.test_labels))

    def _next_ids(self) -> Array:
        self._at += 1
        return self._batches[(self._at - 1) % len(self._batches)]

    def values(self) -> tuple[dict[str, Array], int]:
        """See Worker."""
        values, count = self._session.run([self._variables, self._count])
        return values, int(count)

    def pushed(self, steps: int) -> int:
        """See Worker."""
        return sum(int(np.sum(self._batches[at % len(self._batches)] == HOT_ID)) for at in range(steps))

    def leave(self) -> None:
        """See Worker."""
        self._session.close()


def main() -> None:
    """Be a PS or a worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.tensorflow_v1", description="TensorFlow 1.x PS")
    parser.add_argument("--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--counts", type=int, nargs=2, required=True, metavar="N", help="PS and workers")
    parser.add_argument("--addresses", nargs="+", required=True, metavar="HOST:PORT", help="of all PS, then workers")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    addresses = args.addresses
    cluster = tf.train.ClusterSpec(
        {"ps": addresses[: args.counts[0]], "worker": addresses[args.counts[0] : sum(args.counts)]}
    )
    server = tf.train.Server(cluster, job_name=args.job, task_index=args.index)
    if args.job == "ps":
        serving(addresses[args.index])
        serve_until_told()
    obey(TensorFlowWorker(server, args.index))
    # Its server cannot be stopped.
    os._exit(0)


if __name__ == "__main__":
    main()

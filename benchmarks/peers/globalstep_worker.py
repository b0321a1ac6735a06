"""`python -m benchmarks.peers.globalstep_worker`: a worker of globalstep.

Forms, all of one run on the same PS:

- "auto", "unix", "grpc", "tcp": the cluster's client over that transport ("auto" is shared memory here); a step is
  one `push` that asks for the values.
- "session": what a program writes: a graph, `apply_gradients` and `session.run(train_op)`, in a session as
  MonitoredTrainingSession makes it, over the transport that is chosen by itself.

The run is begun by a session in every form, so that Variables, slots and optimizer are a program's. Strict reads:
a step starts from values that hold its own last push.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

import globalstep as gs
from benchmarks.harness.laps import Laps, TimedTransport
from benchmarks.harness.workload import (
    EMBEDDING_IDS,
    EMBEDDING_WIDTH,
    HOT_ID,
    LEARNING_RATE,
    STEP,
    Array,
    Case,
    id_batches,
    shapes,
)
from benchmarks.programs import digits_job
from benchmarks.programs.obey import obey
from globalstep.cluster.run_policy import RunPolicy, policy_of
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, OutcomeKind, Push, Read
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["GlobalstepWorker", "Program"]

#: More than any value becomes.
_MUCH = 1e30


class GlobalstepWorker:
    """See obey.Worker.

    Args:
        addresses: "host:port" of every PS.
        index: Of this worker.
        policy: Of the runs that it begins.
    """

    def __init__(self, addresses: list[str], index: int, policy: RunPolicy) -> None:
        self._addresses = addresses
        self._policy = policy
        self._index = index
        self._case = Case("counter")
        self._laps = Laps()
        self._timed = False
        self.stages = self._laps.secs
        # Form -> what `join` made; the one that was joined last is what `step` steps.
        self._joined: dict[str, _Joined] = {}
        self._gradients: dict[str, Array] = {}
        self.step: Any = None
        self.train_on: Any = None
        self.accuracy: Any = None

    def _client(self, case: Case, form: str, profile: bool) -> ClusterClient:
        transport = "auto" if form == "session" else form
        transports: list[Any] = transports_to("grpc://" + ",".join(self._addresses[: case.ps]), transport)
        if profile:
            transports = [TimedTransport(connection, self._laps) for connection in transports]
        return ClusterClient(transports, policy=self._policy)

    def create(self, case: Case, form: str) -> None:
        """See Worker."""
        client = self._client(case, form, profile=False)
        client.begin(sequencer=0, open=True)
        program = Program(case)
        with gs.Session(graph=program.graph, cluster=client) as session:
            session.run(program.initializer)
        client.close()

    def join(self, case: Case, form: str, profile: bool) -> None:
        """See Worker."""
        if form not in self._joined:
            client = self._client(case, form, profile)
            joined = _Joined(client, Program(case) if form == "session" or case.kind == "digits" else None)
            self._joined[form] = joined
            if joined.program is None:
                client.refresh()
                joined.step = self._client_step(case, client)
            else:
                joined.session = gs.Session(graph=joined.program.graph, cluster=client, reuse_values=True)
                joined.step = self._session_step(case, joined.program, joined.session)
        self._case = case
        self._now = self._joined[form]
        self._timed = profile
        self.step = self._now.step

    # ---- The client's forms ---------------------------------------------------------------------

    def _client_step(self, case: Case, client: ClusterClient) -> Any:
        if case.kind == "counter":
            push = Push([], [Increment(STEP)], layout="step")
            return lambda: _accepted(client.push(push))
        (optimizer,) = {decl.name for status in client.refresh() for decl in status.optimizers}
        if case.kind == "dense":
            return self._dense_step(case, client, optimizer)
        return self._embedding_step(case, client, optimizer)

    def _dense_step(self, case: Case, client: ClusterClient, optimizer: str) -> Any:
        names = list(shapes(case))
        laps = self._laps
        reads = [Read(name) for name in names]
        ops = [Op(OpKind.APPLY, name, optimizer=optimizer) for name in names]
        # Every step is laid out alike, as every run of a session's train op is.
        pushed = Push(ops, [Increment(STEP)], [OptimizerUse(optimizer)], reads, layout="step")
        client.pull(reads)
        # All forms have the same arrays: only one of them steps at a time.
        if not self._gradients:
            self._gradients = {name: np.zeros(shape, np.float32) for name, shape in shapes(case).items()}
        gradients = list(self._gradients.values())

        def step() -> None:
            laps.start()
            for gradient in gradients:
                gradient.fill(1.0)
            laps.lap("gradient")
            _accepted(client.push(pushed.again(list(gradients))))
            laps.lap("decode")

        return step

    def _embedding_step(self, case: Case, client: ClusterClient, optimizer: str) -> Any:
        batches = iter(_Cycle(id_batches(case, self._index)))
        rows = np.zeros((EMBEDDING_IDS, EMBEDDING_WIDTH), np.float32)
        laps = self._laps
        increments, uses = [Increment(STEP)], [OptimizerUse(optimizer)]

        def step() -> None:
            ids = next(batches)
            laps.start()
            client.pull([Read(_TABLE, ids)], "rows")
            laps.lap("decode")
            rows.fill(1.0)
            laps.lap("gradient")
            op = Op(OpKind.APPLY, _TABLE, rows, indices=ids, optimizer=optimizer)
            _accepted(client.push(Push([op], increments, uses, layout="step")))
            laps.lap("decode")

        return step

    # ---- A program's form -----------------------------------------------------------------------

    def _session_step(self, case: Case, program: Program, session: gs.Session) -> Any:
        if case.kind == "embedding":
            batches = iter(_Cycle(id_batches(case, self._index)))
            return lambda: session.run(program.train_op, {program.ids: next(batches)})
        if case.kind == "digits":
            data = digits_job.load(case.data)
            images, labels = program.images, program.labels
            self.train_on = lambda batch: session.run(
                program.train_op, {images: data.train_images[batch], labels: data.train_labels[batch]}
            )
            self.accuracy = lambda: float(
                session.run(program.accuracy, {images: data.test_images, labels: data.test_labels})
            )
        return lambda: session.run(program.train_op)

    # ---- What was done --------------------------------------------------------------------------

    def values(self) -> tuple[dict[str, Array], int]:
        """See Worker."""
        case, client = self._case, self._now.client
        count = client.global_steps()[STEP]
        if case.kind == "dense":
            names = list(shapes(case))
            return dict(zip(names, client.pull([Read(name) for name in names]), strict=True)), count
        if case.kind == "embedding":
            return {"row": client.pull([Read(_TABLE, np.array([HOT_ID]))])[0]}, count
        return {}, count

    def pushed(self, steps: int) -> int:
        """See Worker."""
        batches = id_batches(self._case, self._index)
        each = [int(np.sum(batch == HOT_ID)) for batch in batches]
        return sum(each[at % len(each)] for at in range(steps))

    def leave(self) -> None:
        """See Worker."""
        for joined in self._joined.values():
            if joined.session is not None:
                joined.session.close()
            joined.client.close()
        self._joined = {}
        self._gradients = {}


_TABLE = "table"


class _Joined:
    """A client and, in a program's form, what runs on it."""

    def __init__(self, client: ClusterClient, program: Program | None) -> None:
        self.client = client
        self.program = program
        self.session: gs.Session | None = None
        self.step: Any = None


class _Cycle:
    """Repeats a list for ever."""

    def __init__(self, items: list[Array]) -> None:
        self._items = items

    def __iter__(self) -> Any:
        while True:
            yield from self._items


class Program:
    """The graph of a case, the same in every worker."""

    def __init__(self, case: Case) -> None:
        self.graph = gs.Graph()
        with self.graph.as_default(), gs.device(gs.train.replica_device_setter(ps_tasks=case.ps)):
            count = gs.train.get_or_create_global_step()
            rate = digits_job.RATE if case.kind == "digits" else LEARNING_RATE
            optimizer = {
                "sgd": gs.train.GradientDescentOptimizer,
                "adam": gs.train.AdamOptimizer,
                "adagrad": gs.train.AdagradOptimizer,
            }[case.rule](rate)
            if case.kind == "dense":
                self.train_op = optimizer.apply_gradients(_dense(case), global_step=count)
            elif case.kind == "embedding":
                self.train_op = optimizer.apply_gradients(self._embedding(case), global_step=count)
            elif case.kind == "digits":
                self.train_op = optimizer.minimize(self._network(), global_step=count)
            else:
                self.train_op = gs.assign_add(count, 1)
            self.initializer = gs.global_variables_initializer()

    def _embedding(self, case: Case) -> list[tuple[Any, Any]]:
        # One table, whose rows globalstep divides among the PS tasks.
        table = gs.get_variable(_TABLE, [case.size, EMBEDDING_WIDTH], initializer=gs.zeros_initializer())
        self.ids = gs.placeholder(gs.int64, [EMBEDDING_IDS])
        rows = gs.nn.embedding_lookup(table, self.ids)
        ones = gs.fill([EMBEDDING_IDS, EMBEDDING_WIDTH], gs.cast(rows[0, 0] < _MUCH, gs.float32))
        return [(gs.gradients([rows], [table], grad_ys=[ones])[0], table)]

    def _network(self) -> Any:
        names = ("hidden/weights", "hidden/biases", "weights", "biases")
        hidden_weights, hidden_biases, weights, biases = (
            gs.get_variable(name, initializer=value) for name, value in zip(names, digits_job.initial(), strict=True)
        )
        self.images = gs.placeholder(gs.float32, [None, 64])
        self.labels = gs.placeholder(gs.int64, [None])
        logits = gs.matmul(gs.nn.relu(gs.matmul(self.images, hidden_weights) + hidden_biases), weights) + biases
        self.accuracy = gs.reduce_mean(gs.cast(gs.equal(gs.argmax(logits, 1), self.labels), gs.float32))
        return gs.losses.sparse_softmax_cross_entropy(self.labels, logits)


def _dense(case: Case) -> list[tuple[Any, Any]]:
    """Variables, each with a gradient that is filled anew and depends on the value."""
    pairs = []
    for name, shape in shapes(case).items():
        variable = gs.get_variable(name, shape, initializer=gs.zeros_initializer())
        pairs.append((gs.fill(shape, gs.cast(variable[0] < _MUCH, gs.float32)), variable))
    return pairs


def _accepted(result: Any) -> None:
    if result.outcome.kind is not OutcomeKind.ACCEPTED:
        raise RuntimeError(f"A push was {result.outcome.kind.name}.")


def main() -> None:
    """Be a worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.globalstep_worker", description="globalstep")
    parser.add_argument("--addresses", required=True, metavar="HOST:PORT,...", help="every PS")
    parser.add_argument("--index", type=int, required=True)
    args = parser.parse_args()
    os.environ.pop("GLOBALSTEP_TRANSPORT", None)
    obey(GlobalstepWorker(args.addresses.split(","), args.index, policy_of(None)))


if __name__ == "__main__":
    main()

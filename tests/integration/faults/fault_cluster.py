"""A cluster in one process for the fault matrix: two PS tasks, a chief, workers, and one fault.

Every push adds RATE to every element: what is lost or doubled anywhere shows. What programs see is judged as
docs/design/histories.md says.
"""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import threading

import numpy as np
from counting_run import RATE, STEP, USES
from faulty_transport import FaultyTransport
from recorded_history import RecordedHistory, extremes, in_file
from safetensors.numpy import load_file

from globalstep.deploy.audit import history_checker
from globalstep.errors import AbortedError, FailedPreconditionError, NotFoundError, UnavailableError
from globalstep.files.storage import leave_probe, storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SystemClock
from globalstep.runtime.faults import SEND, ConnectionCutError, TransportFault
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, OutcomeKind, Push, Read, StopLimit, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import transports_to

SHARDS = 2
SEQUENCER = 0
LAST_STEP = 9
#: Name -> shape and shard. "w" and "e" lie in shared memory where there is some; the simulation's are all small.
VARIABLES = {"w": ((33_000,), 0), "b": ((), 1), "e": ((3_300, 10), 1)}
#: What a push reads: large values, which take the place of its gradients in shared memory.
READS = tuple(Read(name) for name in ("w", "e", "global_step"))
WAIT_SECS = 30.0


class Killed(BaseException):
    """The process of a client is gone: nothing of its program runs any more."""


class JumpingClock(SystemClock):
    """The machine's clock, but for what a test adds to it."""

    def __init__(self):
        self._added = 0.0

    def advance(self, secs):
        self._added += secs

    def monotonic(self):
        return super().monotonic() + self._added


class Injection:
    """One fault at one point, once it is armed; says when it has happened, and may hold who is there.

    Args:
        subject: "ps:1", "chief" or "worker".
        fault: Key of fault_matrix.FAULTS.
        method: The point's method.
        point: The point.
        lose: Makes a PS task lose its state.
    """

    def __init__(self, subject, fault, method, point, lose):
        self.subject, self.fault, self.method, self.point = subject, fault, method, point
        self.happened = threading.Event()
        self.go_on = threading.Event()
        self.fired = 0
        self._lose = lose
        # Guards `fired` and `_armed`; a leaf.
        self._lock = threading.Lock()
        self._armed = False

    def arm(self):
        self._armed = True

    def _is_here(self, point, method):
        if (point, method) != (self.point, self.method):
            return False
        with self._lock:
            if not self._armed or self.fired:
                return False
            self.fired += 1
            return True

    def at_task(self, shard, point, method):
        """A PS task is at a point."""
        if self.subject != f"ps:{shard}" or not self._is_here(point, method):
            return
        if self.fault == "kill":
            self._lose(shard)
        self.happened.set()
        if self.fault == "stop":
            assert self.go_on.wait(WAIT_SECS)
            return
        raise ConnectionCutError(f"injected {self.fault} at {method}.{point}")

    def at_link(self, client, shard, point, method):
        """A client is at a point of a request to a PS task."""
        if self.subject.startswith("ps"):
            if self.fault in ("kill", "stop", "cut") or self.subject != f"ps:{shard}":
                return None
        elif client != self.subject:
            return None
        if not self._is_here(point, method):
            return None
        self.happened.set()
        if self.fault == "kill":
            raise Killed
        if self.fault == "stop":
            assert self.go_on.wait(WAIT_SECS)
            return None
        if self.fault == "lost":
            raise UnavailableError(f"injected: the reply of {method} is lost")
        return {"cut": TransportFault.CUT, "doubled": TransportFault.TWICE, "late": TransportFault.LATE}[self.fault]


class Door:
    """The faults of a PS task."""

    def __init__(self, shard):
        self.shard, self.injection = shard, None

    def at(self, point, method):
        return self.injection.at_task(self.shard, point, method) if self.injection else None


class Link:
    """The faults of a client's transport."""

    def __init__(self, cluster, client, shard):
        self._cluster, self._client, self._shard = cluster, client, shard

    def at(self, point, method):
        injection = self._cluster.injection
        return injection.at_link(self._client, self._shard, point, method) if injection else None


class FaultCluster:
    """PS tasks, in this process, over one of the transports; "local" is by function calls."""

    def __init__(self, transport, directory):
        self.transport, self.directory = transport, directory
        self.history_file = directory / "history.jsonl"
        write = in_file(self.history_file)
        write({"f": "run", "value": {"limit": {"global_step": LAST_STEP}}})
        self.history = RecordedHistory(write)
        self.clock = JumpingClock()
        self.doors = [Door(shard) for shard in range(SHARDS)]
        self.injection = None
        self.programs = []
        #: Step -> (values, ledger) of the checkpoints that exist.
        self.checkpoints = {}
        self._servers = []
        if transport == "local":
            ps = LocalPS(SHARDS, clock=self.clock)
            self._transports = ps.transports
            self.controls = ps.controls
            for control, door in zip(self.controls, self.doors, strict=True):
                control.handler.faults = control.handler.shard.resources.faults = door
            return
        for door in self.doors:
            self._servers.append(PSServer(PSOptions(grace_secs=0.2), clock=self.clock, faults=door))
            self._servers[-1].start()
        addresses = ",".join(server.address for server in self._servers)
        self._transports = lambda: transports_to(addresses, transport)
        self.controls = [server.control for server in self._servers]

    @property
    def shards(self):
        return [control.handler.shard for control in self.controls]

    def inject(self, subject, fault, method, point):
        self.injection = Injection(subject, fault, method, point, self.lose)
        for door in self.doors:
            door.injection = self.injection
        return self.injection

    def lose(self, shard):
        """The process of a PS task ends, and another takes its place, which holds nothing."""
        fresh = Shard(self.clock)
        fresh.resources.faults = self.doors[shard]
        self.controls[shard].handler.shard = fresh
        for server in self._servers[shard : shard + 1]:
            server.shard = server._settler._shard = fresh

    def join(self, name):
        """A new process of a client."""
        transports = [
            FaultyTransport(transport, Link(self, name, shard)) for shard, transport in enumerate(self._transports())
        ]
        self.programs.append(Program(self, name, transports))
        return self.programs[-1]

    def deliver_late(self):
        """What was late comes now; whatever it is answered, it is answered."""
        for program in self.programs:
            for transport in program.transports:
                for call in transport.deliver_late():
                    try:
                        call.result()
                    except (AbortedError, UnavailableError, FailedPreconditionError):
                        continue

    def settle(self):
        """What the settlers of the PS tasks do about silent workers, some seconds later."""
        self.clock.advance(11.0)
        sequencer = self.shards[SEQUENCER]
        for at, shard in enumerate(self.shards):
            view, overdue = shard.view(), shard.overdue(10.0, 90.0)
            if view.state is not pb.STATE_VACANT and view.incarnation == sequencer.view().incarnation:
                entries = sequencer.handle(events.Resolve(view.incarnation, overdue, at, view.applied))
                shard.handle(events.Resolved(view.incarnation, overdue, () if at == SEQUENCER else entries))

    def close(self):
        for program in self.programs:
            program.client.close()
        for server in self._servers:
            server.close()

    def judge(self):
        """Have a process that knows nothing of globalstep judge what the programs saw."""
        command = [sys.executable, "-I", "-S", history_checker.__file__, self.history_file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


class Program:
    """What a chief or a worker does, as its session would: pushes, saves, restores, joins a new life."""

    def __init__(self, cluster, name, transports):
        self.cluster, self.name, self.transports = cluster, name, transports
        self.client = ClusterClient(transports, rng=random.Random(1), member=False, clock=cluster.clock, retry_secs=1e9)
        self._operation = functools.partial(cluster.history.operation, self.client.client_id)
        #: (incarnation, index) of its accepted pushes.
        self.accepted = set()

    def push(self):
        """One run: on a lost session, one more after joining the new life; gives the last outcome."""
        push = Push(
            ops=[
                Op(OpKind.APPLY, name, np.full(shape, -1.0, np.float32), optimizer="sgd")
                for name, (shape, _) in VARIABLES.items()
            ],
            increments=list(STEP),
            uses=list(USES),
            reads=list(READS),
            layout="step",
        )
        incarnation = self.client.incarnation
        adds = {"global_step": 1, **{name: RATE for variable in VARIABLES for name in extremes(variable, 0)}}
        with self._operation("push", incarnation=incarnation, add=adds) as told:
            result = self.client.push(push)
            outcome = result.outcome
            told["type"] = "ok" if outcome.index else "fail"
            if outcome.index:
                told["index"], told["read"] = outcome.index, dict(outcome.steps)
                told["then"] = seen(READS, result.values)
        if outcome.kind is OutcomeKind.ACCEPTED:
            self.accepted.add((incarnation, outcome.index))
        return outcome

    def start(self):
        """As a chief: bring the cluster up, from the newest checkpoint if there is one."""
        client, newest = self.client, max(self.cluster.checkpoints, default=None)
        values, ledger = self.cluster.checkpoints.get(newest, ({}, b""))
        with self._operation("begin") as told:
            client.begin(sequencer=SEQUENCER, open=False, ledger=ledger)
            book = json.loads(ledger) if ledger else None
            told |= {"incarnation": client.incarnation, "from": book and [book["incarnation"], book["index"]]}
        variables = [VariableDecl("global_step", "int64", (), SEQUENCER, is_step=True)]
        variables += [VariableDecl(name, "float32", shape, shard) for name, (shape, shard) in VARIABLES.items()]
        rates = {"learning_rate": constant(RATE)}
        client.declare(variables, [OptimizerDecl("sgd", "gradient_descent", rates, dict.fromkeys(VARIABLES, ()))])
        ops = [Op(OpKind.ASSIGN, decl.name, values.get(decl.name), fill=None if values else 0.0) for decl in variables]
        given = seen([Read(decl.name) for decl in variables], [values.get(decl.name, 0.0) for decl in variables])
        with self._operation("push", incarnation=client.incarnation, set=given) as told:
            outcome = client.push(Push(ops=ops)).outcome
            told |= {"index": outcome.index, "read": dict(outcome.steps)}
        client.open([StopLimit("global_step", last_step=LAST_STEP)])
        return newest or 0

    def recover(self):
        """As a chief: take over what runs, or restore what does not; gives whether it restored."""
        for _ in range(6):
            try:
                statuses = self.client.refresh()
                running = all(status.state in (pb.STATE_READY, pb.STATE_DONE) for status in statuses)
                if running and len({status.incarnation for status in statuses}) == 1:
                    return False
                self.start()
                return True
            except (AbortedError, UnavailableError):
                continue
        raise AssertionError("the chief did not come to an end of restoring")

    def save(self):
        """As a chief: a checkpoint, of which it gives the step. It exists when this returns."""
        with self._operation("read", incarnation=self.client.incarnation) as told:
            step, (values, ledger), told["index"] = self._save()
            told["read"] = seen(map(Read, values), values.values())
        self.cluster.checkpoints[step] = (values, ledger)
        return step

    def _save(self):
        storage, directory = storage_for(str(self.cluster.directory)), str(self.cluster.directory)
        with self.client.snapshot() as cut:
            step = cut.steps["global_step"]
            files = {
                shard: f"{step}-{shard}-{cut.index}-{self.client.incarnation}.safetensors" for shard in range(SHARDS)
            }
            with leave_probe(storage, directory) as probe:
                names = dict.fromkeys(["global_step", *VARIABLES])
                cut.write(directory, files, {name: name for name in names}, (probe.file, probe.text))
            ledger = cut.ledger
        values = {}
        for file in files.values():
            values.update(load_file(self.cluster.directory / file))
        return step, (values, ledger), cut.index

    def pull(self, *names):
        """Read Variables as of one moment."""
        with self._operation("read", incarnation=self.client.incarnation) as told:
            values = self.client.pull([Read(name) for name in names])
            told["read"] = seen(map(Read, names), values)
        return values

    def steps(self):
        """Give the step that is visible."""
        with self._operation("look", incarnation=self.client.incarnation) as told:
            told["read"] = self.client.global_steps()
        return told["read"]["global_step"]


def seen(reads, values):
    """Give what was read, as a history has it."""
    found = {}
    for read, value in zip(reads, values, strict=True):
        found |= {read.variable: int(value)} if read.variable == "global_step" else extremes(read.variable, value)
    return found


class Watcher:
    """Looks at the cluster from outside."""

    def __init__(self, cluster):
        self._program = cluster.join("watcher")
        self._seen = 0
        self.restores = 0

    def look(self):
        """Read all that is visible now; gives the step, or None when the cluster does not serve."""
        client = self._program.client
        try:
            statuses = client.refresh()
            if len({status.incarnation for status in statuses}) > 1:
                raise AbortedError("in different lives")
            self._program.steps()
            for name in VARIABLES:
                self._program.pull(name)
            step, *_ = self._program.pull("global_step", *VARIABLES)
        except (AbortedError, FailedPreconditionError, NotFoundError):
            return None
        self.restores += client.incarnation > self._seen > 0
        self._seen = client.incarnation
        return int(step)


__all__ = ["LAST_STEP", "SEND", "FaultCluster", "Killed", "Program", "Watcher"]

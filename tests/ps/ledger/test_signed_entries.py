"""What a worker says of others' decisions counts only with their signature: attacks on PS tasks with real tokens."""

from __future__ import annotations

import contextlib
import math
import stat
from functools import partial

import pytest
from counting_run import expected, initialize, state, step_push
from served_tasks import TokenTasks

from globalstep.errors import (
    AbortedError,
    DataLossError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.durability import shard_folder
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.client_ids import new_client_id
from globalstep.wire.declarations import Op, OpKind, Push, PushId
from globalstep.wire.known_progress import Known, KnownProgress
from globalstep.wire.protocol_version import own_protocol
from globalstep.worker.client import membership

KEY = bytes(range(32))
SHARDS = 3
SEQUENCER = SHARDS - 1


class Cluster(TokenTasks):
    """PS tasks with tokens, the chief's client, and an honest worker's."""

    def __init__(self, folder):
        super().__init__(folder, SHARDS)
        self.chief = self.join("chief", "grpc")
        self.chief.begin(open=True, sequencer=SEQUENCER)
        initialize(self.chief)
        self.worker = self.join("worker", "grpc")
        self.worker.refresh()

    def shard(self, at):
        return self.servers[at].shard

    def trains(self):
        """Whether honest pushes are accepted, applied everywhere, and seen."""
        before = self.worker.global_steps()["global_step"]
        for _ in range(3):
            self.worker.push(step_push())
        after = state(self.worker)
        assert after["global_step"] == before + 3
        return after == expected(before + 3)


class Attacker:
    """Whoever has a worker's token, with messages of its own making."""

    def __init__(self, cluster):
        self.incarnation = cluster.chief.incarnation
        self.name = new_client_id()
        self.transports = cluster.join("worker", "grpc", member=False).run.transports
        self.sequence = 0

    def request(self, method, fresh=False, **fields):
        self.sequence += fresh
        request = pb.Request()
        message = getattr(request, method)
        message.incarnation = self.incarnation
        if method in ("stage", "push", "commit"):
            message.id.client, message.id.sequence = self.name, self.sequence
        for name, value in fields.items():
            setattr(message, name, value)
        return request

    def send(self, shard, request, pieces=()):
        return self.transports[shard].send(request, pieces).result().reply

    def commit(self, shard, *entries):
        request = self.request("commit")
        request.commit.entries.extend(entries)
        return self.send(shard, request).commit

    def stage(self, shard, variable):
        request = self.request("stage")
        op = request.stage.ops.add(kind=pb.OP_APPLY, variable=variable, optimizer="sgd")
        op.value.CopyFrom(pb.TensorRef(dtype="float32", shape=[3] if variable == "w" else []))
        self.send(shard, request, [memoryview(bytes(16))])

    def push(self, *others, uses=True):
        request = self.request("push")
        request.push.others.extend(others)
        if uses:
            request.push.uses.add(optimizer="sgd")
        answer = self.send(SEQUENCER, request).push
        assert answer.outcome.kind == pb.OUTCOME_ACCEPTED
        return {told.shard: list(told.entries) for told in answer.pending}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "new_signing_key", lambda: KEY, raising=False)
    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def attacker(cluster):
    return Attacker(cluster)


@pytest.mark.parametrize("kind", [pb.ENTRY_PUSH, pb.ENTRY_SNAPSHOT])
@pytest.mark.parametrize("far", [1, 2**63])
def test_an_entry_that_nobody_admitted_is_refused(cluster, attacker, kind, far):
    attacker.sequence += 1
    applied = cluster.shard(0).view().applied
    attacker.stage(0, "w")
    push = pb.PushId(client=attacker.name, sequence=attacker.sequence)
    for signature in (b"", bytes(16)):
        entry = pb.Entry(index=min(applied + far, 2**63), kind=kind, push=push, previous=applied, signature=signature)
        with pytest.raises(PermissionDeniedError, match="the sequencer signed"):
            attacker.commit(0, entry)
    assert cluster.shard(0).view().applied == applied
    assert cluster.trains()


def _snapshots_of(shard, client):
    return sum(taken.client == client for taken in shard.now.snapshots._taken)


def test_no_snapshots_but_those_that_the_sequencer_admitted(cluster, attacker):
    applied = cluster.shard(0).view().applied
    attacker.sequence += 1
    for more in range(1, 41):
        push = pb.PushId(client=attacker.name, sequence=more)
        entry = pb.Entry(index=applied + more, kind=pb.ENTRY_SNAPSHOT, push=push, previous=applied)
        with contextlib.suppress(PermissionDeniedError, ResourceExhaustedError):
            attacker.commit(0, entry)
    assert _snapshots_of(cluster.shard(0), attacker.name) == 0
    with cluster.chief.snapshot():
        assert _snapshots_of(cluster.shard(0), cluster.chief.client_id) == 1
    assert cluster.trains()


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.uses[0].hypers.update({"learning_rate": math.nan}),
        lambda entry: entry.uses.add(optimizer="other", hypers={"learning_rate": 1.0}),
        lambda entry: setattr(entry, "previous", 0),
        lambda entry: setattr(entry, "index", entry.index + 1),
        lambda entry: setattr(entry, "kind", pb.ENTRY_SNAPSHOT),
        lambda entry: setattr(entry.push, "sequence", 77),
    ],
    ids=["rate", "another optimizer", "previous", "index", "kind", "push"],
)
def test_a_genuine_entry_is_refused_when_anything_in_it_was_changed(cluster, attacker, change):
    assert cluster.trains()
    attacker.sequence += 1
    attacker.stage(0, "w")
    genuine = attacker.push(0)[0]
    forged = pb.Entry()
    forged.CopyFrom(genuine[-1])
    change(forged)
    with pytest.raises(PermissionDeniedError, match="the sequencer signed"):
        attacker.commit(0, *genuine[:-1], forged)
    attacker.commit(0, *genuine)
    before = cluster.shard(0).view().applied
    # Once more it changes nothing.
    attacker.commit(0, *genuine)
    assert cluster.shard(0).view().applied == before
    assert cluster.trains()


def test_a_genuine_entry_for_another_shard_is_refused(cluster, attacker):
    attacker.sequence += 1
    attacker.stage(0, "w")
    attacker.stage(1, "b")
    genuine = attacker.push(0, 1)
    with pytest.raises(PermissionDeniedError, match="PS task 1"):
        attacker.commit(1, *genuine[0])
    assert cluster.trains()


def test_an_entry_of_another_incarnation_is_refused(cluster, attacker, monkeypatch):
    attacker.sequence += 1
    attacker.stage(0, "w")
    genuine = attacker.push(0)[0]
    # Even if a chief drew the same key again.
    attacker.incarnation = cluster.chief.begin(open=True, sequencer=SEQUENCER)
    initialize(cluster.chief)
    cluster.worker.refresh()
    attacker.stage(0, "w")
    genuine[-1].index = cluster.shard(0).view().applied + 1
    with pytest.raises((PermissionDeniedError, AbortedError)):
        attacker.commit(0, genuine[-1])
    assert cluster.trains()


@pytest.mark.parametrize("method", ["pull", "push", "GetGlobalStep"])
def test_a_floor_that_the_shard_did_not_sign_is_refused(cluster, attacker, method):
    """Another shard's, an older one under a higher number, and none at all."""
    assert cluster.trains()
    attacker.sequence += 1
    attacker.stage(0, "w")
    attacker.push(0)
    index = cluster.shard(SEQUENCER).view().applied
    before = cluster.shard(0).view().applied
    genuine = attacker.commit(0).signature if hasattr(pb.CommitReply(), "signature") else b""
    for signature in {b"", bytes(16), genuine}:
        floor = pb.Floor(shard=0, index=index)
        if signature:
            floor.signature = signature
        if method == "GetGlobalStep":
            request = pb.GetGlobalStepRequest(incarnation=attacker.incarnation, floors=[floor])
            send = attacker.transports[SEQUENCER].unary(method, request, 5.0).result
        else:
            request = attacker.request(method)
            getattr(request, method).floors.append(floor)
            if method == "push":
                request.push.others.append(0)
            send = partial(attacker.send, SEQUENCER, request)
        with pytest.raises(PermissionDeniedError, match="lacks that task"):
            send()
    read = attacker.request("pull")
    read.pull.reads.add(variable="global_step")
    attacker.send(SEQUENCER, read)  # comes after the others
    assert cluster.shard(SEQUENCER).now.ledger.under_way()[0][0] == before
    assert cluster.shard(0).view().applied == before
    assert cluster.trains()


def test_a_push_that_was_admitted_and_never_staged_stops_nobody(cluster, attacker):
    for _ in range(3):
        attacker.sequence += 1
        attacker.push(0, 1)
        assert cluster.trains()


def test_a_part_that_is_taken_back_after_the_decision_stops_nobody(cluster, attacker):
    attacker.sequence += 1
    attacker.stage(0, "w")
    attacker.push(0)
    attacker.commit(0)
    assert cluster.trains()


def test_a_part_whose_optimizer_the_decision_does_not_name_stops_nobody(cluster, attacker):
    attacker.sequence += 1
    attacker.stage(0, "w")
    attacker.push(0, uses=False)
    assert cluster.trains()
    assert list(cluster.shard(0).resources.of_nothing) == [PushId(attacker.name, attacker.sequence)]


@pytest.mark.parametrize("of", ["this incarnation", "the one before", "eight between", "eight to come"])
def test_how_far_an_incarnation_came_no_worker_says(cluster, attacker, of):
    """An index too high, or steps too low beside it, would be the step that training is said to go back from."""
    before, now = attacker.incarnation - 100, attacker.incarnation
    cluster.chief.push(step_push())
    cluster.chief.run.known_progress.hear(before, Known(7, {"global_step": 7}, 7))
    cluster.chief.heartbeat.beat()
    first, count = {
        "this incarnation": (now, 1),
        "the one before": (before, 1),
        "eight between": (before + 1, 8),
        "eight to come": (now + 10**12, 8),
    }[of]
    told = [
        pb.Told(incarnation=first + more, index=2**40, steps_index=2**40, steps={"global_step": 1})
        for more in range(count)
    ]
    for transport in attacker.transports:
        transport.unary(
            "Heartbeat", pb.HeartbeatRequest(client=attacker.name, lease_secs=5.0, told=told), 10.0
        ).result()
    for status in cluster.chief.statuses():
        assert {item.incarnation: item.index for item in status.told} == {before: 7, now: 2}


def test_the_end_that_a_sequencer_told_of_is_not_topped_by_others():
    told = KnownProgress()
    told.ended(7, 3, {"global_step": 3})
    assert not told.hear(7, Known(2**40, {"global_step": 2**40}, 2**40))
    assert told.of(7) == Known(3, {"global_step": 3}, 3, last=True)


def test_no_reply_has_the_key(cluster):
    for server in cluster.servers:
        assert server.control._Status(pb.StatusRequest(protocol=own_protocol())).incarnation
        assert KEY not in server.control._Status(pb.StatusRequest(protocol=own_protocol())).SerializeToString()
    # They do sign with it.
    cluster.worker.push(step_push())
    cluster.worker.push(Push(ops=[Op(OpKind.ASSIGN, "b", fill=0.0)]))
    assert KEY not in b"".join(floor.SerializeToString() for floor in cluster.worker._protocol.floors)


def control(tmp_path):
    return Control(Handler(Shard(SYSTEM_CLOCK)), "p", "h", log_dir=str(tmp_path))


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(64)], ids=["none", "short", "long"])
def test_a_run_of_several_shards_needs_a_key(tmp_path, key):
    task = control(tmp_path)
    with pytest.raises(InvalidArgumentError, match="random one of 32 bytes"):
        task.call("Begin", pb.BeginRequest(incarnation=2**50, shards=2, owner="a", open=True, key=key))
    assert task.handler.shard.view().incarnation == 0


def test_a_log_is_for_its_owner_only(tmp_path):
    task = control(tmp_path)
    policy = pb.RunPolicy(durability="log")
    begin = pb.BeginRequest(incarnation=2**50, shards=2, owner="a", open=True, key=KEY, policy=policy)
    begin.run.id = "a"
    task.call("Begin", begin)
    task.durability.close()
    folder = shard_folder(tmp_path / "a", 2**50, 0, 2)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (segment,) = folder.glob("segment-*")
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
    assert KEY in segment.read_bytes()


def test_a_log_of_several_shards_without_a_key_is_not_recovered_from(tmp_path):
    folder = shard_folder(tmp_path / "a", 7, 0, 2)
    folder.mkdir(parents=True)
    log = WriteAheadLog(folder, pb.BeginRequest(incarnation=7, shards=2, owner="a", open=True))
    log.secure()
    log.close()
    with pytest.raises(DataLossError, match="no key"):
        control(tmp_path).call("Recover", pb.LogRequest(incarnation=7, shards=2, run="a"))

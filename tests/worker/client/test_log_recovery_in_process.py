"""durability="log" within one process: every kind of change, bases, retries, refusals, full disks, lost logs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest
from stand_ins import Stored

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    LostStateError,
    NotFoundError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import State
from globalstep.ps.service.settler import Settler
from globalstep.ps.shard import events
from globalstep.ps.shard.applying import Applier
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.log_file import SegmentReader
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    OutcomeKind,
    Push,
    PushId,
    Read,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import Expr
from globalstep.worker.client.client import ClusterClient

LOG = RunPolicy(durability="log")
NAMES = ["a", "a/m", "b", "b/m", "free", "step", "power1", "power2"]


class Tasks(LocalPS):
    """PS tasks in this process that lose their state as a restart would make them."""

    def kill(self, *shards):
        for at in shards:
            control = self.controls[at]
            control.durability.close()
            control.handler.shard = Shard(SYSTEM_CLOCK)

    def folder(self, shard):
        return self.controls[shard].handler.shard.log.directory


@pytest.fixture
def connect():
    """Make clients of PS tasks, and close them at the end."""
    with contextlib.ExitStack() as stack:

        def connect(tasks, **more):
            return stack.enter_context(contextlib.closing(ClusterClient(tasks.transports(), retry_secs=5.0, **more)))

        yield connect


@pytest.fixture
def begin(connect, tmp_path):
    """Begin runs, each on PS tasks of its own; gives these and the chief's client."""

    def begin(shards, directory=tmp_path, policy=LOG, expected_tasks=(), **more):
        tasks = Tasks(shards, **more)
        return tasks, started(connect(tasks, policy=policy, task="/job:chief/task:0"), directory, expected_tasks)

    return begin


@pytest.fixture
def calm(begin):
    """Give the chief's client of a run without a log, to which nothing happens."""
    return lambda shards: begin(shards, "", RunPolicy())[1]


def started(client, directory, expected_tasks=()):
    """Begin a run with dense, sparse and scalar state; gives its chief's client."""
    last = client.shards - 1
    client.begin(open=False, run=RunIdentity(directory=str(directory)), expected_tasks=expected_tasks)
    client.journal = Stored()
    rate = Expr("const", value=0.05)
    adam = {"learning_rate": rate} | {
        name: Expr("const", value=value) for name, value in [("beta1", 0.9), ("beta2", 0.99), ("epsilon", 1e-7)]
    }
    momentum = {"learning_rate": rate, "momentum": Expr("const", value=0.9), "use_nesterov": Expr("const", value=0.0)}
    client.declare(
        [
            VariableDecl("a", "float32", (3, 5), trainable=True),
            VariableDecl("a/m", "float32", (3, 5), primary="a", optimizer="momentum", slot="momentum"),
            VariableDecl("b", "float64", (40, 2), last, trainable=True),
            VariableDecl("b/m", "float64", (40, 2), last, primary="b", optimizer="momentum", slot="momentum"),
            VariableDecl("free", "int32", (4,), last),
            VariableDecl("step", "int64", (), is_step=True),
            VariableDecl("power1", "float32", ()),
            VariableDecl("power2", "float32", ()),
            VariableDecl("c", "float32", (6,), trainable=True),
            VariableDecl("c/m", "float32", (6,), primary="c", optimizer="adam", slot="m"),
            VariableDecl("c/v", "float32", (6,), primary="c", optimizer="adam", slot="v"),
            VariableDecl("never", "float32", (2,)),
        ],
        [
            OptimizerDecl("momentum", "momentum", momentum, {"a": ("a/m",), "b": ("b/m",)}),
            OptimizerDecl("adam", "adam", adam, {"c": ("c/m", "c/v")}, ("power1", "power2")),
        ],
    )
    rng = np.random.default_rng(3)
    client.push(
        Push(
            [
                Op(OpKind.ASSIGN, "a", value=rng.normal(size=(3, 5)).astype("f4")),
                Op(OpKind.ASSIGN, "a/m", fill=0.0),
                Op(OpKind.ASSIGN, "b", value=rng.normal(size=(40, 2))),
                Op(OpKind.ASSIGN, "b/m", fill=0.25),
                Op(OpKind.ASSIGN, "free", value=np.arange(4, dtype="i4")),
                Op(OpKind.ASSIGN, "step", value=np.array(0)),
                Op(OpKind.ASSIGN, "power1", fill=0.9),
                Op(OpKind.ASSIGN, "power2", fill=0.99),
                Op(OpKind.ASSIGN, "c", value=rng.normal(size=6).astype("f4")),
                Op(OpKind.ASSIGN, "c/m", fill=0.0),
                Op(OpKind.ASSIGN, "c/v", source="c/m"),
            ]
        )
    )
    client.open([StopLimit("step", last_step=1000)])
    return client


def change(rng):
    """Give pushes of every kind, with random numbers."""
    rows = rng.integers(0, 40, 5)
    step = [Increment("step")]
    dense = [
        Op(OpKind.APPLY, "a", value=rng.normal(size=(3, 5)).astype("f4"), optimizer="momentum"),
        Op(OpKind.APPLY, "b", value=rng.normal(size=(40, 2)), optimizer="momentum"),
    ]
    use = [OptimizerUse("momentum")]
    reads = [Read("a"), Read("b"), Read("step")]
    yield Push(dense, step, use, reads, layout="dense")
    yield Push(dense[:1], step, [OptimizerUse("momentum", overrides={"learning_rate": rng.random()})], reads)
    sparse = Op(OpKind.APPLY, "b", value=rng.normal(size=(5, 2)), indices=rows, optimizer="momentum")
    yield Push([sparse], step, use, [Read("b", rows)])
    adam = Op(OpKind.APPLY, "c", value=rng.normal(size=6).astype("f4"), optimizer="adam", after_increment=True)
    yield Push([adam], step, [OptimizerUse("adam", after_increment=True)], [Read("c")])
    yield Push(
        [
            Op(OpKind.ASSIGN, "free", fill=3.0),
            Op(OpKind.ASSIGN_ADD, "free", value=np.arange(4, dtype="i4")),
            Op(OpKind.ASSIGN_SUB, "b", value=rng.normal(size=(5, 2)), indices=rows),
            Op(OpKind.ASSIGN, "b", value=rng.normal(size=(2, 2)), indices=np.array([1, 7])),
        ]
    )
    yield Push([Op(OpKind.ASSIGN, "c/m", source="c")])
    yield Push(reads=reads)


def everything(client):
    names = [*NAMES, "c", "c/m", "c/v"]
    return {
        name: value.tobytes() for name, value in zip(names, client.pull([Read(name) for name in names]), strict=True)
    }


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("cut", [False, True], ids=["from the beginning", "from a base"])
def test_every_kind_of_change_comes_back_bit_for_bit(begin, connect, shards, cut):
    (tasks, client), rng = begin(shards), np.random.default_rng(1)
    other = connect(tasks)
    for _ in range(2):
        for push in change(rng):
            client.push(push)
            other.push(push)
    if cut:
        with client.snapshot():
            pass
        assert (tasks.folder(0) / "base-00000002.json").exists()
        assert not (tasks.folder(0) / "segment-00000001.log").exists()
    for push in change(rng):
        client.push(push)
    before, steps, incarnation = everything(client), client.global_steps(), client.incarnation
    for victims in ([0], [shards - 1], range(shards)):
        tasks.kill(*victims)
        assert everything(client) == before
        assert client.global_steps() == steps
        for push in change(rng):
            assert other.push(push).outcome.kind is OutcomeKind.ACCEPTED
        before, steps = everything(client), client.global_steps()
    statuses = client.refresh()
    assert {status.incarnation for status in statuses} == {incarnation}
    assert statuses[0].limits == {"step": 1000}
    assert "never" in statuses[0].uninitialized


def test_a_refusal_comes_back_too(begin):
    tasks, client = begin(1)
    client.open([StopLimit("step", last_step=1)])
    push = next(change(np.random.default_rng(4)))
    assert client.push(push).outcome.kind is OutcomeKind.ACCEPTED
    assert client.push(push).outcome.kind is OutcomeKind.REFUSED_DONE
    tasks.kill(0)
    client._protocol._sequence -= 1
    refused = client.push(push).outcome
    assert (refused.kind, refused.duplicate) == (OutcomeKind.REFUSED_DONE, True)


def test_parts_that_wait_for_a_decision_come_back_also_from_a_base(begin, connect, calm):
    tasks, client = begin(2)
    other = connect(tasks)
    other.refresh()
    push = next(change(np.random.default_rng(4)))
    protocol, push_id = other._protocol, PushId(other.client_id, 77)
    parts = protocol.messages.split(push)
    protocol.call({1: protocol._staging(push_id, push, 1, parts[1])})
    for victims in [(0,), (1,), (0, 1)]:
        with client.snapshot():
            pass
        tasks.kill(*victims)
        everything(client)
    decided = protocol._decide(push_id, push, parts[0], [1], "")
    assert decided.reply.push.outcome.kind == pb.OUTCOME_ACCEPTED
    tasks.kill(0, 1)
    protocol.commit(push_id, decided, [1])
    twin = calm(2)
    twin.push(push)
    assert everything(client) == everything(twin)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_push_that_fails_halfway_is_taken_back_from_the_log_and_done_once(begin, calm, monkeypatch, shards):
    """An exception while a push is applied, the first two times, on whichever shard applies last."""
    (tasks, client), twin = begin(shards), calm(shards)
    real, left = Applier._keep, [2]

    def fail(self, now, *kept):
        if now.shard == shards - 1 and left[0] and now.log is not NO_LOG:
            left[0] -= 1
            raise RuntimeError("once more")
        return real(self, now, *kept)

    for at, push in enumerate(change(np.random.default_rng(4))):
        if at == 3:
            monkeypatch.setattr(Applier, "_keep", fail)
        assert client.push(push).outcome.kind is twin.push(push).outcome.kind
    assert left == [0]
    assert everything(client) == everything(twin)
    # What was acknowledged after that comes back as well.
    tasks.kill(*range(shards))
    assert everything(client) == everything(twin)


def test_a_push_that_fails_every_time_ends_its_program_and_nobody_else_s(begin, connect, monkeypatch):
    tasks, client = begin(1)
    push = next(change(np.random.default_rng(4)))
    client.push(push)
    before = everything(client)
    real = Applier.apply_entry
    with monkeypatch.context() as patch:

        def fail(self, *args):
            if self._resources.replaying:  # what came before is of another kind
                return real(self, *args)
            raise ZeroDivisionError("a rule's own")

        patch.setattr(Applier, "apply_entry", fail)
        with pytest.raises(InternalError, match="a rule's own"):
            client.push(push)
    other = connect(tasks)
    assert everything(client) == before
    other.refresh()
    assert other.push(push).outcome.kind is OutcomeKind.ACCEPTED
    assert client.global_steps() == {"step": 2}


def shorten(folder, records):
    """Take the last records of a log away, as a disk that lies about what it has written does."""
    path = max(folder.glob("segment-*.log"))
    ends = [0]
    for logged in SegmentReader(path).records():
        ends.append(logged.number)
    reader = SegmentReader(path)
    kept = len(ends) - 1 - records
    for number, _ in enumerate(reader.records(), 1):
        if number == kept:
            end = reader.end
            break
    os.truncate(path, end)


@pytest.mark.parametrize("short", [0, 1])
def test_a_log_whose_end_is_missing_is_refused_and_changes_nothing(begin, short):
    """The sequencer's (0), or another shard's: acknowledged pushes are gone, and only a checkpoint helps."""
    tasks, client = begin(2)
    for push in change(np.random.default_rng(4)):
        client.push(push)
    everything(client)
    folder = tasks.folder(short)
    tasks.kill(short)
    shorten(folder, 6)
    for _ in range(2):
        with pytest.raises(LostStateError, match=rf"cannot come back from a log: .* task {short}\D.*end.* is missing"):
            client.pull([Read("a" if short == 0 else "b")])
        view = tasks.controls[short].handler.shard.view()
        assert (view.state, view.incarnation, view.applied) == (State.VACANT, 0, 0)
    assert len(list(folder.glob("segment-*.log"))) == 1


def test_a_shard_s_missing_end_is_found_when_the_sequencer_comes_back_too(begin):
    tasks, client = begin(2)
    push = next(change(np.random.default_rng(4)))
    for _ in range(4):  # each tells the sequencer, with its ADMIT, that the one before is applied
        client.push(push)
    folder = tasks.folder(1)
    tasks.kill(0, 1)
    shorten(folder, 4)
    with pytest.raises(LostStateError, match="PS task 1 has come back at entry .* the end of its log is missing"):
        client.pull([Read("a")])
    assert tasks.controls[0].handler.shard.view().state is State.VACANT


def test_a_snapshot_of_who_is_not_the_chief_leaves_the_log_that_the_journal_needs(begin, connect):
    tasks, client = begin(2)
    tool = connect(tasks)
    for push in change(np.random.default_rng(4)):
        client.push(push)
    with tool.snapshot():
        pass
    assert (tasks.folder(0) / "segment-00000001.log").exists()
    assert not (tasks.folder(0) / "base-00000002.json").exists()
    # Nothing of a journal is at the other task.
    assert not (tasks.folder(1) / "segment-00000001.log").exists()
    before = everything(client)
    tasks.kill(0, 1)
    assert everything(client) == before
    shard = tasks.controls[0].handler.shard
    part = shard.handle(events.ReadJournal(client.incarnation, client.client_id, "", 0, 0, 0, 1000))
    assert len(part.records) > 0
    with client.snapshot():
        pass
    assert not (tasks.folder(0) / "segment-00000001.log").exists()


def test_a_run_without_a_place_for_its_log_does_not_begin(begin, connect, tmp_path):
    tasks = Tasks(1)
    client = connect(tasks, policy=LOG)
    for directory in ("", "memory://bucket/run"):
        with pytest.raises(FailedPreconditionError, match="--log-dir DIR"):
            client.begin(open=True, run=RunIdentity(directory=directory))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FailedPreconditionError, match="cannot write its log to"):
        client.begin(open=True, run=RunIdentity(directory=str(blocked)))
    assert tasks.controls[0].handler.shard.view().incarnation == 0


def test_another_run_of_the_directory_ends_the_log(begin, connect, tmp_path):
    tasks, _ = begin(1)
    folder = tasks.folder(0)
    started(connect(tasks, policy=RunPolicy(), task="/job:chief/task:0"), tmp_path)
    assert not folder.exists()
    assert tasks.controls[0].durability.find(str(tmp_path), 0, 1, "") == {}


@pytest.mark.parametrize("keep", [False, True])
def test_a_job_that_is_done_has_no_log_to_come_back_from(begin, tmp_path, keep):
    tasks, client = begin(2, policy=RunPolicy(durability="log", keep_log=keep))
    folder = tasks.folder(1)
    client.finish()
    client.close()
    assert (folder / "segment-00000001.log").exists() == keep
    assert tasks.controls[1].durability.find(str(tmp_path), 1, 2, "") == {}


def test_recovering_twice_or_of_another_life_changes_nothing(begin, tmp_path):
    tasks, client = begin(1)
    request = pb.LogRequest(incarnation=client.incarnation, directory=str(tmp_path), shards=1)
    assert not tasks.controls[0].call("Recover", request).recovered
    tasks.kill(0)
    assert tasks.controls[0].call("Recover", request).recovered
    assert not tasks.controls[0].call("Recover", request).recovered
    request.incarnation += 1
    with pytest.raises(NotFoundError, match="There is no write-ahead log"):
        tasks.controls[0].call("Recover", request)


def test_a_task_that_comes_back_waits_for_nobody_who_had_left_before(begin):
    workers = [f"/job:worker/task:{at}" for at in range(4)]
    tasks, client = begin(2, expected_tasks=workers)
    for task in (workers[0], workers[1], workers[2], workers[2]):
        one = ClusterClient(tasks.transports(), policy=LOG, task=task)
        one.heartbeat.goodbye(unfinished=task == workers[1], leaves_lease=False)
        one.heartbeat.stop()
        for transport in one.run.transports:
            transport.close()
    before = tasks.controls[1].handler.shard.attendance()[2]
    tasks.kill(1)
    client.pull([Read("b")])
    after = tasks.controls[1].handler.shard.attendance()[2]
    assert before.to_come == after.to_come == [workers[1], workers[3]]


def test_a_checkpoint_s_own_file_is_the_base_where_it_can_be(begin, tmp_path):
    tasks, client = begin(1)
    names = [*NAMES, "c", "c/m", "c/v"]
    probe = tmp_path / ".globalstep-probe-1"
    probe.write_text("text")
    with client.snapshot() as snapshot:
        snapshot.write(
            str(tmp_path), {0: "part.safetensors"}, {name: name for name in names}, (".globalstep-probe-1", "text")
        )
    assert os.path.samefile(tmp_path / "part.safetensors", Path(tasks.folder(0), "base-00000002.safetensors"))
    before = everything(client)
    tasks.kill(0)
    assert everything(client) == before


def test_files_of_snapshots_that_nobody_releases_are_forgotten_in_the_end(begin, tmp_path):
    """Chiefs that die in a save leave them; only which file a base may be a link to is forgotten."""
    tasks, _ = begin(1)
    durability = tasks.controls[0].durability
    for number in range(20):
        durability.written(PushId("dead", number), tmp_path / f"{number}", ())
    assert [push.sequence for push in durability._written] == list(range(12, 20))


def test_a_shard_that_came_back_short_before_the_sequencer_was_asked_drops_its_state(begin, tmp_path):
    tasks, client = begin(2)
    push = next(change(np.random.default_rng(4)))
    for _ in range(4):
        client.push(push)
    folder, control = tasks.folder(1), tasks.controls[1]
    tasks.kill(1)
    shorten(folder, 4)
    request = pb.LogRequest(
        incarnation=client.incarnation, directory=str(tmp_path), shard=1, shards=2, sequencer_address="sequencer"
    )
    assert control.call("Recover", request).applied == 3
    Settler(control.handler.shard, SYSTEM_CLOCK, lambda _, asked: tasks.controls[0].call("Settle", asked)).settle_once()
    assert control.handler.shard.view().state is State.VACANT
    with pytest.raises(LostStateError, match="cannot come back from a log: .*end of the log is missing"):
        client.push(push)


@pytest.mark.parametrize("later", [False, True])
def test_replay_is_not_measured_by_limits_of_admission(begin, later):
    """Snapshots of clients that died, and pushes that were refused by an error: more than may be about at a time."""
    tasks, client = begin(2)
    push = next(change(np.random.default_rng(4)))
    shard = tasks.controls[0].handler.shard
    for number in range(6):  # each chief's lease had run out before the next one saved
        saver = f"chief-{number}"
        snapshot = events.Push(
            client.incarnation, PushId(saver, 1), PushParts(), (), (), {}, [1], kind=EntryKind.SNAPSHOT
        )
        admission = shard.handle(snapshot)
        tasks.controls[1].handler.shard.handle(
            events.Commit(client.incarnation, PushId(saver, 1), admission.pending[1])
        )
        shard.handle(events.Leave(saver))
    if later:
        wrong = OptimizerUse("momentum", overrides={"learning_rate": float("nan")})
        for number in range(1, 71):
            refused = PushId("careless", number)
            with pytest.raises(InvalidArgumentError, match="NaN"):
                shard.handle(events.Push(client.incarnation, refused, PushParts(push.ops[:1]), (), [wrong], {}, [1]))
    client.push(push)
    before = everything(client)
    tasks.kill(0, 1)
    assert everything(client) == before
    assert not tasks.controls[0].handler.shard.now.staged

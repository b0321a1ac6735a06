"""Requests that no worker of ours would send: refused clearly, and nothing changes. Most were found by tests/fuzz."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from counting_run import initialize, state, step_push

from globalstep.errors import AbortedError, InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import Entry, EntryKind, HyperValues, Ledger
from globalstep.ps.ledger.push_table import MAX_STALENESS
from globalstep.ps.local import LocalPS
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.store import checking, store
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter, decode_tensor
from globalstep.wire.declarations import Increment, Op, OpKind, Push, PushId, Read, StopLimit, VariableDecl, padded
from globalstep.worker.client.client import ClusterClient

W = Op(OpKind.APPLY, "w", np.ones(3, np.float32), optimizer="sgd")


class Run:
    """A run in this process, and a stream to each of its PS tasks."""

    def __init__(self, shards=1):
        self.ps = LocalPS(shards)
        self.client = ClusterClient(self.ps.transports())
        self.client.begin(open=True, sequencer=shards - 1)
        initialize(self.client)
        self.streams = [LayoutMemory() for _ in range(shards)]
        self.incarnation = self.client.incarnation

    def shard(self, at=0):
        return self.ps.controls[at].handler.shard

    def send(self, request, data=b"", at=0):
        handler = self.ps.controls[at].handler
        reply, _ = handler.begin(request, memoryview(bytearray(data)), self.streams[at])
        return reply

    def encoded(self, kind, ops, reads=(), sequence=100, **more):
        """A PUSH or STAGE, and its data."""
        request, tensors = pb.Request(), TensorWriter()
        message = getattr(request, kind)
        message.incarnation = self.incarnation
        message.id.client, message.id.sequence = "x", sequence
        for op in ops:
            codec.encode_op(op, message.ops.add(), tensors)
        codec.encode_reads(reads, message.reads, tensors)
        for name, value in more.items():
            setattr(message, name, value)
        return request, b"".join(bytes(p) + bytes(padded(p.nbytes) - p.nbytes) for p in tensors.pieces)

    def close(self):
        self.client.close()


@pytest.fixture
def run():
    one = Run()
    yield one
    one.close()


@pytest.fixture
def run_of_two():
    one = Run(2)
    yield one
    one.close()


@pytest.mark.parametrize("layout", [0, 1])
def test_a_push_that_names_no_use_of_its_optimizer_takes_no_index(run, layout):
    before = state(run.client), run.shard().view().applied
    request, data = run.encoded("push", [W], layout=layout)
    request.push.increments.append(pb.Increment(step="global_step", by=1))
    reply = run.send(request, data)
    assert reply.error.type == "InvalidArgumentError"
    assert "uses" in reply.error.message
    assert "'sgd'" in reply.error.message
    assert (state(run.client), run.shard().view().applied) == before
    run.client.push(step_push())
    assert state(run.client)["global_step"] == 1


def test_a_push_that_uses_an_optimizer_again_and_again_is_refused(run):
    """Its numbers were kept for each use, and told to all who pushed, until the other PS tasks had applied it."""
    request, data = run.encoded("push", [W])
    request.push.uses.extend([pb.OptimizerUse(optimizer="sgd")] * 2)
    assert "uses an optimizer once" in run.send(request, data).error.message
    request.push.uses[1].after_increment = True
    assert not run.send(request, data).HasField("error")


def signed(run, entry, shard=0):
    """An entry as the sequencer would sign it for a shard."""
    decision = run.shard(shard).now.signer.decision(entry.index, entry.kind, entry.push, entry.hypers)
    return dataclasses.replace(entry, signature=decision.for_shard(shard, entry.previous))


def test_an_entry_without_the_hyper_parameters_of_a_part_is_one_of_nothing(run_of_two):
    run = run_of_two
    first, second = PushId("x", 1), PushId("x", 2)
    for push in (first, second):
        assert not run.send(*run.encoded("stage", [W], sequence=push.sequence), at=0).HasField("error")
    applied, w = run.shard(0).view().applied, state(run.client)["w"]
    rate = (HyperValues("sgd", False, {"learning_rate": 0.5}),)
    entries = [
        signed(run, Entry(applied + 1, EntryKind.PUSH, first, applied, (HyperValues("sgd", False, {}),))),
        signed(run, Entry(applied + 2, EntryKind.PUSH, second, applied + 1, rate)),
    ]
    with pytest.raises(AbortedError, match="entries are missing"):
        run.shard(0).handle(
            events.Commit(run.incarnation, second, [signed(run, Entry(9, EntryKind.PUSH, second, 8, rate))])
        )
    run.shard(0).handle(events.Commit(run.incarnation, second, entries))
    assert run.shard(0).view().applied == applied + 2
    assert list(run.shard(0).resources.of_nothing) == [first]
    np.testing.assert_array_equal(run.shard(0).now.store.snapshot()["w"], np.asarray(w) - 0.5)


def test_the_sequencer_takes_no_entries_from_others(run):
    push = PushId("x", 1)
    index = run.shard().view().applied
    with pytest.raises(InvalidArgumentError, match="never admitted"):
        run.shard().handle(events.Commit(run.incarnation, push, [Entry(index + 1, EntryKind.SNAPSHOT, push, index)]))
    run.client.push(step_push())
    assert state(run.client)["global_step"] == 1


def test_participants_that_are_not_there_are_refused_on_a_retry_too(run):
    run.client.push(step_push())
    for others in ([3], [0]):  # the sequencer is none of the others
        request = pb.Request(push=pb.PushRequest(incarnation=run.incarnation, others=others))
        request.push.id.CopyFrom(pb.PushId(client=run.client.client_id, sequence=2))
        assert run.send(request).error.type == "InvalidArgumentError"


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0, 2**62), (1,) * 65])
def test_shapes_that_no_array_has_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match="not possible"):
        decode_tensor(pb.TensorRef(dtype="float32", shape=shape), memoryview(bytes(64)))


def test_row_ids_without_an_axis_are_refused(run):
    op = Op(OpKind.APPLY, "e", np.ones((1, 2), np.float32), indices=np.array(3), optimizer="sgd")
    reply = run.send(*run.encoded("push", [op]))
    assert reply.error.type == "InvalidArgumentError"
    assert "int64 [n]" in reply.error.message


def test_data_that_is_not_padded_is_refused_before_anything_is_applied(run):
    """It was applied, and then its reads could not be taken."""
    request, data = run.encoded("push", [W], [Read("w")], layout=1)
    request.push.uses.append(pb.OptimizerUse(optimizer="sgd"))
    before = state(run.client)
    reply = run.send(request, data[:12])
    assert "padded" in reply.error.message
    assert state(run.client) == before
    assert not run.send(request, data).HasField("error")


def of_rows(run, kind="push", sequence=100, **more):
    """A push of two rows of `e` and one of `w`, which reads three rows, and its data; told under layout 1."""
    rows = Op(OpKind.APPLY, "e", np.ones((2, 2), np.float32), indices=np.array([1, 3]), optimizer="sgd")
    request, data = run.encoded(kind, [rows, W], [Read("e", np.array([0, 1, 3])), Read("w")], sequence, layout=1)
    message = getattr(request, kind)
    if kind == "push":
        message.uses.append(pb.OptimizerUse(optimizer="sgd"))
        message.increments.append(pb.Increment(step="global_step", by=1))
    for name, value in more.items():
        setattr(message, name, value)
    return request, data


def known_rows(run, rows, kind="push", sequence=101):
    """The same of a known layout, with these numbers of rows."""
    request, data = of_rows(run, kind, sequence, known_layout=True)
    message = getattr(request, kind)
    message.rows.extend(rows)
    for name in ("ops", "reads", "uses", "increments"):
        if hasattr(message, name):
            del getattr(message, name)[:]
    return request, data


@pytest.mark.parametrize(
    ("rows", "nbytes"),
    [
        ((2,), None),
        ((2, 3, 0), None),
        ((3, 2), None),
        ((2, 4), None),
        ((2, 2), None),
        ((0, 0), None),
        ((2**32 - 1, 2**32 - 1), None),
        ((2, 2**32 - 1), None),
        ((2, 3), 0),
        ((2, 3), -8),
        ((2, 3), 8),
        ((0, 0), 0),
    ],
)
def test_numbers_of_rows_are_held_against_the_bytes_that_came(run, rows, nbytes):
    assert not run.send(*of_rows(run)).HasField("error")
    before, applied = state(run.client), run.shard().view().applied
    request, data = known_rows(run, rows)
    changed = data if nbytes is None else (data + bytes(8))[: len(data) + nbytes] if nbytes else b""
    reply = run.send(request, changed)
    assert reply.error.type == "InvalidArgumentError"
    assert "rows" in reply.error.message
    assert (state(run.client), run.shard().view().applied, run.shard().now.staged) == (before, applied, {})
    reply = run.send(*known_rows(run, (2, 3), sequence=102))
    assert not reply.HasField("error")
    assert [list(item.shape) for item in reply.push.values] == [[3, 2], [3]]
    assert state(run.client)["e"][3] == [-1.0, -1.0]


@pytest.mark.parametrize("at", [16, 40, 56])
@pytest.mark.parametrize("row", [5, -1, 2**62])
def test_each_row_of_a_known_layout_is_looked_at(run, at, row):
    assert not run.send(*of_rows(run)).HasField("error")
    before = state(run.client)
    request, data = known_rows(run, (2, 3))
    ids = np.frombuffer(data, np.int64).copy()
    assert ids[2:4].tolist() == [1, 3], "behind 16 bytes of a gradient"
    ids[{16: 3, 40: 6, 56: 8}[at]] = row
    reply = run.send(request, ids.tobytes())
    assert reply.error.type == "InvalidArgumentError"
    assert f"Row id {row} is not in [0, 5)" in reply.error.message
    assert state(run.client) == before


def test_a_pull_of_a_layout_of_pushes_is_refused_and_later_pushes_of_it_are_applied(run):
    request, data = run.encoded("push", [W], [Read("w")], layout=1)
    request.push.uses.append(pb.OptimizerUse(optimizer="sgd"))
    assert not run.send(request, data).HasField("error")
    run.client.declare([VariableDecl("late", "float32", (2,))], [])  # what was planned is planned anew
    pull = pb.Request(pull=pb.PullRequest(incarnation=run.incarnation, client="x", layout=1, known_layout=True))
    assert "is one of pushes" in run.send(pull, data).error.message
    again, data = run.encoded("push", [], layout=1, known_layout=True, sequence=101)[0], data
    before = state(run.client)["w"]
    assert not run.send(again, data).HasField("error")
    assert state(run.client)["w"] != before


def test_rows_of_a_layout_that_was_not_told_are_to_be_told(run):
    assert run.send(*known_rows(run, (2, 3))).error.type == "LayoutUnknownError"
    assert not run.send(*run.encoded("push", [], layout=1)).HasField("error"), "dense, and of nothing"
    assert run.send(*known_rows(run, (2, 3))).error.type == "LayoutUnknownError"
    assert not run.send(*of_rows(run, sequence=102)).HasField("error")
    without = known_rows(run, ())
    assert run.send(*without).error.type == "LayoutUnknownError", "it is none of a layout of rows"


def test_the_sequencer_keeps_no_part_that_waits(run, run_of_two):
    reply = run.send(*of_rows(run, "stage"))
    assert "only other PS tasks stage one" in reply.error.message
    assert run.send(*known_rows(run, (2, 3))).error.type == "LayoutUnknownError"
    assert not run_of_two.send(*run_of_two.encoded("stage", [W])).HasField("error")


def test_a_layout_whose_first_push_was_refused_is_not_known(run):
    """Its ids were no whole numbers, its Variable has no such rows, or its optimizer is none."""
    request, data = of_rows(run)
    for field, value in (("variable", "w"), ("optimizer", "adam"), ("variable", "global_step")):
        wrong = pb.Request()
        wrong.CopyFrom(request)
        setattr(wrong.push.ops[0], field, value)
        told = run.send(wrong, data).error
        assert told.type in ("InvalidArgumentError", "NotFoundError")
        assert run.send(*known_rows(run, (2, 3))).error.type == "LayoutUnknownError"
    wrong.CopyFrom(request)
    wrong.push.ops[0].indices.dtype = "float64"
    assert "int64" in run.send(wrong, data).error.message
    memory = run.streams[0]
    memory._row_layouts.clear()
    assert run.send(wrong, data).error.type == "InvalidArgumentError"
    assert not memory._row_layouts
    assert state(run.client)["global_step"] == 0


def test_reads_of_rows_are_limited_under_a_known_layout_too(run):
    assert not run.send(*of_rows(run)).HasField("error")
    run.shard().now.store.most_read_bytes = 35
    reply = run.send(*known_rows(run, (2, 3)))
    assert reply.error.type == "ResourceExhaustedError"
    assert run.shard().now.ledger.steps == {"global_step": 1}


def test_a_stream_remembers_no_more_layouts_than_some(run):
    for number in range(1, 200):
        request, data = of_rows(run, sequence=100 + 2 * number)
        request.push.layout = number
        assert not run.send(request, data).HasField("error")
        request, data = run.encoded("push", [], layout=1000 + number, sequence=101 + 2 * number)
        assert not run.send(request, data).HasField("error")
        memory = run.streams[0]
        assert len(memory._layouts) + len(memory._row_layouts) <= 64
        assert not memory._layouts.keys() & memory._row_layouts.keys()


def test_a_declaration_larger_than_memory_is_refused_by_name(run, monkeypatch):
    monkeypatch.setattr(checking, "available_bytes", lambda: 1 << 20)
    with pytest.raises(ResourceExhaustedError, match=r"'big', float32 \[1000000\]"):
        run.client.declare([VariableDecl("big", "float32", (1_000_000,))], [])
    run.client.declare([VariableDecl("small", "float32", (1000,))], [])
    run.client.push(Push([Op(OpKind.ASSIGN, "small", fill=1.0)]))


@pytest.mark.parametrize("shape", [(2**62,), (1,) * 65, (-1,)])
def test_a_declaration_of_an_impossible_shape_is_refused(run, shape):
    with pytest.raises(InvalidArgumentError, match="shape"):
        run.ps.controls[0].call(
            "Declare",
            pb.DeclareRequest(
                incarnation=run.incarnation,
                client="x",
                variables=[pb.VariableDecl(name="v", dtype="float32", shape=shape)],
            ),
        )


def test_a_run_of_billions_of_shards_takes_no_memory(run):
    begin = pb.BeginRequest(incarnation=2**60, shards=2**32 - 1, owner="x", key=bytes(32))
    with pytest.raises(OpError, match="is not valid"):
        run.ps.controls[0].call("Begin", begin)
    assert state(run.client)["global_step"] == 0


def test_steps_do_not_run_over(run):
    """They did, and what then failed had been admitted."""
    run.client.push(Push([Op(OpKind.ASSIGN, "global_step", np.array(2**63 - 3))]))
    assert state(run.client)["global_step"] == 2**63 - 3
    with pytest.raises(InvalidArgumentError, match="beyond int64"):
        run.client.push(Push(increments=[Increment("global_step", 3)]))
    run.client.push(Push(increments=[Increment("global_step", 2)]))
    assert state(run.client)["global_step"] == 2**63 - 1
    limits = run.shard().handle(events.Open(run.incarnation, "x", [StopLimit("global_step", num_steps=1000)]))
    assert limits == {"global_step": 2**63 - 1}


def test_a_step_seen_far_off_is_no_number_that_cannot_be_written(run):
    push = Push(increments=[Increment("global_step", 1)], seen_steps={"global_step": -(2**63)})
    assert run.client.push(push).outcome.staleness == MAX_STALENESS
    push = Push(increments=[Increment("global_step", 1)], seen_steps={"global_step": 2**63 - 1})
    assert run.client.push(push).outcome.staleness == -MAX_STALENESS


@pytest.mark.parametrize(
    "change", [{"index": 2**81}, {"index": -1}, {"steps": {"global_step": 2**63}}, {"incarnation": 2**64}], ids=str
)
def test_a_ledger_with_numbers_beyond_the_wire_is_refused(change):
    with pytest.raises(InvalidArgumentError, match="ledger"):
        Ledger.load(json.dumps(json.loads(Ledger(1, 0).dumped_later()()) | change).encode(), 1, 0)


@pytest.mark.parametrize(
    "outcome", [[1, 1, 2**64, {}, 0], [-1, 1, 1, {}, 0], [1, 1, 1, {"s": 2**63}, 0], [1, 1, 1, {}, 2**40]], ids=str
)
def test_a_ledger_with_such_outcomes_is_refused(outcome):
    clients = {"a": {"forgotten": 0, "outcomes": [outcome]}}
    with pytest.raises(InvalidArgumentError, match="Not a ledger"):
        Ledger.load(json.dumps(json.loads(Ledger(1, 0).dumped_later()()) | {"clients": clients}).encode(), 1, 0)


def test_parts_that_nobody_admits_are_not_kept_without_end(run_of_two):
    run = run_of_two
    for sequence in range(1, 65):
        assert not run.send(*run.encoded("stage", [W], sequence=sequence)).HasField("error")
    reply = run.send(*run.encoded("stage", [W], sequence=65))
    assert (reply.error.type, reply.error.retry_millis) == ("ResourceExhaustedError", 500)
    assert "64 parts of client x" in reply.error.message


def test_decisions_that_their_client_tells_nobody_are_not_kept_without_end(run_of_two):
    run = run_of_two
    run.shard(1).resources.budget.limit_bytes = 1 << 20

    def push(sequence):
        request = pb.Request(push=pb.PushRequest(incarnation=run.incarnation, others=[0]))
        request.push.id.CopyFrom(pb.PushId(client=f"x{sequence}", sequence=1))
        return run.send(request, at=1)

    admitted = 0
    while not (reply := push(admitted)).HasField("error"):
        admitted += 1
        assert admitted < 2000
    assert (reply.error.type, reply.error.retry_millis) == ("ResourceExhaustedError", 500)
    # PS task 0 hears of them, and says so: the memory is free again.
    before = run.shard(1).view().applied
    settle = pb.SettleRequest(incarnation=run.incarnation, shard=0, applied=run.shard(0).view().applied)
    told = pb.Request(commit=pb.CommitRequest(incarnation=run.incarnation, id=pb.PushId(client="x0", sequence=1)))
    told.commit.entries.extend(run.ps.controls[1].call("Settle", settle).entries)
    assert not run.send(told, at=0).HasField("error")
    settle.applied = run.shard(0).view().applied
    run.ps.controls[1].call("Settle", settle)
    run.client.push(step_push())
    assert run.shard(1).view().applied == before + 1


def test_snapshots_that_nobody_releases_are_not_taken_without_end(run):
    request = pb.Request(push=pb.PushRequest(incarnation=run.incarnation, snapshot=True))
    kinds = []
    for sequence in range(1, 7):
        request.push.id.CopyFrom(pb.PushId(client="x", sequence=sequence))
        kinds.append(run.send(request).error.type)
    assert kinds == [""] * 4 + ["ResourceExhaustedError"] * 2
    release = pb.ReleaseSnapshotRequest(incarnation=run.incarnation, snapshot=pb.PushId(client="x", sequence=1))
    run.ps.controls[0].call("ReleaseSnapshot", release)
    request.push.id.sequence = 9
    assert not run.send(request).HasField("error")


def test_limits_are_set_all_or_none(run):
    with pytest.raises(NotFoundError, match="No step 'x' to limit"):
        run.shard().handle(
            events.Open(run.incarnation, "x", [StopLimit("global_step", last_step=3), StopLimit("x", last_step=3)])
        )
    assert run.shard().view().limits == {}


def test_a_declaration_that_the_process_is_given_no_memory_for_is_refused_by_name(run, monkeypatch):
    """A process may be given less than its machine has free: it was an internal error, and a log was unreadable."""

    def refuse(*args):
        raise MemoryError

    monkeypatch.setattr(store, "lay_out", refuse)
    with pytest.raises(ResourceExhaustedError, match=r"'big', float32 \[1000\]"):
        run.client.declare([VariableDecl("big", "float32", (1000,))], [])
    monkeypatch.undo()
    run.client.declare([VariableDecl("big", "float32", (1000,))], [])
    run.client.push(step_push())
    assert state(run.client)["global_step"] == 1

"""What a shard's snapshots hold, and whose memory it is."""

from __future__ import annotations

import json
import mmap
import threading
from argparse import Namespace

import numpy as np
import pytest
from counting_run import SHAPES, declarations, initialize, step_push

from globalstep.errors import NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import MAX_LEASE_SECS
from globalstep.ps.shard import events
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store.snapshots import SnapshotMemory
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, PushId, VariableDecl
from globalstep.worker.client.client import ClusterClient


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def arrays(value):
    return [np.full(5000, value, np.float32), np.full(1, value, np.int64)]


def test_released_copies_give_their_memory_back_while_others_keep_theirs():
    memory = SnapshotMemory()
    large = [np.ones(64 << 20, np.uint8)]
    kept = memory.copy(arrays(1))
    before = resident_bytes()
    copies = memory.copy(large)
    assert resident_bytes() > before + (60 << 20)
    del copies
    assert resident_bytes() < before + (10 << 20)
    assert kept[0].tolist() == [1.0] * 5000
    assert kept[1].tolist() == [1]


def test_memory_is_not_used_again_while_any_view_of_it_is_held():
    memory = SnapshotMemory()
    copies = memory.copy(arrays(1))
    view = memoryview(copies[0][10:20].reshape(2, 5)).cast("B")
    del copies
    for value in (2, 3):
        memory.copy(arrays(value))
    assert np.frombuffer(view, np.float32).tolist() == [1.0] * 10


def test_other_sizes_get_memory_of_their_own():
    memory = SnapshotMemory()
    del memory.copy(arrays(1))[:]
    (larger,) = memory.copy([np.arange(9000.0)])
    assert larger.tolist() == list(range(9000))
    assert memory.copy([]) == []


@pytest.fixture
def shard():
    clock = ManualClock()
    made = Shard(clock)
    made.handle(events.Begin(1, shard=0, shards=1, sequencer=0, owner="chief", opened=True))
    return made, clock


def take(shard, client, sequence):
    push = PushId(client, sequence)
    shard.handle(events.Push(1, push, PushParts(), (), (), {}, kind=EntryKind.SNAPSHOT))
    return push


def test_a_snapshot_of_a_client_that_is_gone_is_freed_by_the_next(shard):
    shard, clock = shard
    for client in ("one", "two"):
        shard.handle(events.Heartbeat(client, "", 15.0))
    old, other = take(shard, "one", 1), take(shard, "two", 1)
    assert shard.handle(events.ReadSnapshot(1, old)) is not None
    clock.advance(MAX_LEASE_SECS)
    shard.handle(events.Heartbeat("two", "", 15.0))
    own = take(shard, "three", 1)  # a tool, which keeps no lease
    with pytest.raises(NotFoundError, match=r"one.*taken for gone. Save again"):
        shard.handle(events.ReadSnapshot(1, old))
    assert shard.handle(events.ReadSnapshot(1, other)) is not None
    assert shard.handle(events.ReadSnapshot(1, own)) is not None


@pytest.mark.parametrize("shards", [1, 3])
def test_a_client_pushes_while_another_thread_reads_its_snapshot(shards):
    """Every element of a cut is the same number of pushes; the pushes after it change nothing in it."""
    client = ClusterClient(LocalPS(shards).transports())
    initialize(client)
    stop = threading.Event()

    def push():
        while not stop.is_set():
            client.push(step_push(scale=-2.0))

    pusher = threading.Thread(target=push, name="pusher")
    pusher.start()
    torn, counts = [], []
    try:
        while len(counts) < 20 or (counts[-1] == counts[0] and pusher.is_alive()):  # it may come late to its turn
            with client.snapshot() as snapshot:
                for _ in range(3):
                    values = snapshot.read([*SHAPES, "global_step"])
                    if {float(value) for array in values for value in array.flat} != {snapshot.steps["global_step"]}:
                        torn.append(values)
                assert b"global_step" in snapshot.ledger
                counts.append(snapshot.steps["global_step"])
    finally:
        stop.set()
        pusher.join()
        client.close()
    assert torn == []
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_a_task_without_the_storages_package_leaves_its_part_to_the_chief():
    client = ClusterClient(LocalPS(2).transports())
    initialize(client)
    with client.snapshot() as snapshot:
        files = {0: "m-0", 1: "m-1"}
        written = snapshot.write("nosuchscheme://bucket", files, {"w": "w", "b": "b"}, ("probe", "text"))
    client.close()
    assert written == {0: None, 1: None}


def test_the_ledger_needs_no_step_that_has_a_value():
    client = ClusterClient(LocalPS(1).transports())
    client.declare(*declarations(1))
    with client.snapshot() as nothing:
        assert b"global_step" in nothing.ledger
    client.close()


@pytest.mark.parametrize("logged", [False, True])
def test_the_ledger_is_encoded_outside_of_the_lock(logged, tmp_path, monkeypatch):
    """With many clients that takes a second; the cut takes a copy of references."""
    log = WriteAheadLog(tmp_path, pb.BeginRequest(incarnation=7)) if logged else NO_LOG
    shard = Shard(ManualClock())
    shard.handle(events.Begin(7, shard=0, shards=1, sequencer=0, owner="chief", opened=True, log=log))
    shard.handle(events.Declare(7, "chief", [VariableDecl("global_step", "int64", (), is_step=True)], []))
    shard.handle(
        events.Push(7, PushId("chief", 1), PushParts([Op(OpKind.ASSIGN, "global_step", fill=0.0)]), (), (), {})
    )
    for number in range(20):
        shard.handle(events.Push(7, PushId(f"w{number}", 1), PushParts(), [Increment("global_step")], (), {}))
    encoded = []

    def dumps(*args, **options):
        assert not shard._lock.locked()
        encoded.append(json.dumps(*args, **options))
        return encoded[-1]

    monkeypatch.setattr("globalstep.ps.ledger.ledger.json", Namespace(dumps=dumps, loads=json.loads))
    monkeypatch.setattr("globalstep.ps.ledger.ledger_image.json", Namespace(dumps=dumps, loads=json.loads))
    cut = PushId("chief", 2)
    shard.handle(events.Push(7, cut, PushParts(), (), (), {}, kind=EntryKind.SNAPSHOT))
    # What comes after the cut is not in it.
    shard.handle(events.Push(7, PushId("w0", 2), PushParts(), [Increment("global_step")], (), {}))
    for _ in range(2):
        ledger = Ledger.load(shard.handle(events.ReadSnapshot(7, cut))[1](), 1, 0)
    assert (ledger.steps, ledger.table.recorded(PushId("w0", 2))) == ({"global_step": 20}, None)
    assert ledger.table.recorded(PushId("w19", 1)) is not None
    if logged:
        log.close()
        assert json.loads(encoded[-1])["book"]["steps"] == {"global_step": 20}
    assert len(encoded) == 1 + logged

"""Every event that a log holds comes back from its record as it was."""

import dataclasses

import numpy as np
import pytest

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import AggregatePlace, Entry, EntryKind, HyperValues
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.wal.log_records import Records, encoder
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    Outcome,
    OutcomeKind,
    PushId,
    Read,
    StopLimit,
    VariableDecl,
)

PUSH, NO_PUSH = PushId("w", 3), PushId("", 0)
OPS = [Op(OpKind.ASSIGN, "v", np.array([1.0, 2.0], np.float32)), Op(OpKind.ASSIGN_ADD, "v", fill=3.0)]
PARTS = PushParts(OPS, [Read("v"), Read("w", np.array([1, 2]))])
ENTRY = Entry(7, EntryKind.PUSH, PUSH, 5, (HyperValues("o", True, {"learning_rate": 0.5}),), b"signed")
LAST = Entry(8, EntryKind.LAST_CONTRIBUTION, PUSH, 7, (), b"signed", AggregatePlace("step", 3))
GIVEN = (
    9,
    PUSH,
    EntryKind.PUSH,
    [0, 1],
    [Increment("step", 1, 3, 2), Increment("o", closes=True)],
    [],
    {"step": 4},
    {},
)
ASKED = (9, PUSH, EntryKind.PUSH, [0, 1], [Increment("step", 2)], [OptimizerUse("o")], {"step": 4}, {1: 6})
HELD = {
    events.Declare: [
        events.Declare(
            9, "c", [VariableDecl("v", "float32", (2,))], [OptimizerDecl("o", "momentum", {}, {"v": ("m",)})]
        )
    ],
    events.Open: [events.Open(9, "c", [StopLimit("step", last_step=10)]), events.Open(9, "c", [])],
    events.Leave: [events.Leave("c"), events.Leave("c", task="/job:worker/task:1", unfinished=True)],
    events.Finish: [events.Finish(9, "c")],
    events.Stage: [
        events.Stage(9, PUSH, PARTS),
        events.Stage(9, PUSH, PushParts()),
        events.Stage(9, PUSH, PARTS, "step", 7),
    ],
    events.Decided: [
        events.Decided(*ASKED, None, Outcome(OutcomeKind.ACCEPTED, 7, {"step": 6}, 2), "/job:worker/task:1"),
        events.Decided(*GIVEN, None, Outcome(OutcomeKind.LATE, 0, {"step": 6}, 2), ""),
        events.Decided(*ASKED, PARTS, Outcome(OutcomeKind.ACCEPTED, 7, {"step": 6}), ""),
        events.Decided(*ASKED, None, Outcome(OutcomeKind.DROPPED_NAN, 0, {"step": 4}, not_finite="v"), ""),
    ],
    events.Applied: [
        events.Applied(PUSH, [ENTRY], [PUSH]),
        events.Applied(NO_PUSH, [ENTRY, LAST], []),
        events.Applied(NO_PUSH, [], [PUSH]),
    ],
    events.Resolve: [events.Resolve(9, [PUSH], 1, 5)],
    events.Release: [events.Release(9, PUSH)],
}


def plain(value):
    """What an event says, in what can be compared: arrays as lists, sequences as lists."""
    if dataclasses.is_dataclass(value):
        return {
            item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value) if item.name != "data"
        }
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_all_that_a_log_holds_is_here():
    assert set(HELD) == set(events.LOGGED)


@pytest.mark.parametrize(
    "event", [event for held in HELD.values() for event in held], ids=lambda event: type(event).__name__
)
def test_an_event_comes_back_as_it_was(event):
    head, pieces = encoder(event)()
    data = b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in pieces)
    found = Records(9).event(pb.LogRecord.FromString(head), memoryview(data))
    assert type(found) is type(event)
    assert plain(found) == plain(event)


def test_a_record_of_another_kind_is_no_event():
    assert Records(9).event(pb.LogRecord(begin=pb.BeginRequest()), memoryview(b"")) is None

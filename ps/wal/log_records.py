"""The codec of a log: an event to its record, and back.

A record is written some time after its event, when the shard has moved on. So `encoder` takes only what does not
change any more, and gives a function that writes the record when it is called.

Layer: ps. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy.typing as npt

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.aggregates.contributions import HeldOps
from globalstep.ps.ledger import entries as entry_codec
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.ledger.ledger_image import ledger_image, ledger_of_image
from globalstep.ps.members.presence import State
from globalstep.ps.shard import events
from globalstep.ps.shard.applying import no_ledger
from globalstep.ps.shard.event_log import Image
from globalstep.ps.shard.events import Event
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.shard.replies import Kept
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, PushId

Array = npt.NDArray[Any]

#: Of entries that no push's COMMIT has brought.
_NO_PUSH = PushId("", 0)
#: The record's head, and its data in pieces.
Encoded = tuple[bytes, Sequence[memoryview]]

#: Layouts that are remembered while a log is played: those of a run's programs are few.
_MOST_LAYOUTS = 256


def encoder(event: Event[Any]) -> Callable[[], Encoded]:
    """Give what writes the record of an event. Under the shard's lock: it takes of it only what does not change."""
    return _ENCODERS[type(event)](event)


def begin_record(begin: pb.BeginRequest) -> Callable[[], Encoded]:
    """Give what writes the record that an incarnation begins with."""
    return _plain(pb.LogRecord(begin=begin))


def _plain(record: pb.LogRecord) -> Callable[[], Encoded]:
    return lambda: (record.SerializeToString(), ())


def _declare(event: events.Declare) -> Callable[[], Encoded]:
    message = pb.DeclareRequest(
        incarnation=event.incarnation,
        client=event.client,
        variables=[codec.encode_variable(decl) for decl in event.variables],
        optimizers=[codec.encode_optimizer(decl) for decl in event.optimizers],
    )
    return _plain(pb.LogRecord(declare=message))


def _open(event: events.Open) -> Callable[[], Encoded]:
    message = pb.OpenRequest(incarnation=event.incarnation, client=event.client)
    codec.encode_limits(event.limits, message)
    return _plain(pb.LogRecord(open=message))


def _leave(event: events.Leave) -> Callable[[], Encoded]:
    leave = pb.LeaveRequest(client=event.client, task=event.task, unfinished=event.unfinished)
    return _plain(pb.LogRecord(leave=leave))


def _finish(event: events.Finish) -> Callable[[], Encoded]:
    return _plain(pb.LogRecord(finish=pb.EndRequest(incarnation=event.incarnation, client=event.client)))


def _release(event: events.Release) -> Callable[[], Encoded]:
    snapshot = codec.encode_push_id(event.snapshot)
    return _plain(pb.LogRecord(release=pb.ReleaseSnapshotRequest(incarnation=event.incarnation, snapshot=snapshot)))


def _resolve(event: events.Resolve) -> Callable[[], Encoded]:
    message = pb.SettleRequest(
        incarnation=event.incarnation,
        pushes=[codec.encode_push_id(push) for push in event.pushes],
        shard=event.shard,
        applied=event.applied,
    )
    return _plain(pb.LogRecord(settle=message))


def _stage(event: events.Stage) -> Callable[[], Encoded]:
    def encode() -> Encoded:
        stage = pb.StageRequest(id=codec.encode_push_id(event.push), step=event.step, unit=event.unit)
        record = pb.LogRecord(stage=stage)
        pieces = _encode_parts(event.parts, record)
        return record.SerializeToString(), pieces

    return encode


def _decided(event: events.Decided) -> Callable[[], Encoded]:
    """The sequencer's own part is in it."""

    def encode() -> Encoded:
        message = pb.PushRequest(
            id=codec.encode_push_id(event.push),
            others=event.others,
            increments=codec.encode_increments(event.increments),
            uses=[codec.encode_use(use) for use in event.uses],
            seen_steps=dict(event.seen_steps),
            floors=[pb.Floor(shard=shard, index=index) for shard, index in event.floors.items()],
        )
        record = pb.LogRecord(push=message, entry_kind=int(event.kind), task=event.task)  # type: ignore[arg-type]
        codec.encode_outcome(event.outcome, record.outcome)
        pieces = _encode_parts(event.parts, record) if event.parts is not None else ()
        return record.SerializeToString(), pieces

    return encode


def _applied(event: events.Applied) -> Callable[[], Encoded]:
    def encode() -> Encoded:
        commit = pb.CommitRequest(
            id=codec.encode_push_id(event.brought_by) if event.brought_by.client else None,
            entries=map(entry_codec.encode, event.entries),
        )
        record = pb.LogRecord(commit=commit, dropped=map(codec.encode_push_id, event.dropped))
        return record.SerializeToString(), ()

    return encode


#: A class of `events.LOGGED` -> what gives what writes its record.
_ENCODERS: Mapping[type[Event[Any]], Callable[[Any], Callable[[], Encoded]]] = {
    events.Declare: _declare,
    events.Open: _open,
    events.Leave: _leave,
    events.Finish: _finish,
    events.Stage: _stage,
    events.Decided: _decided,
    events.Applied: _applied,
    events.Resolve: _resolve,
    events.Release: _release,
}


def base_record(begin: pb.BeginRequest, snapshot: PushId, image: Image) -> Callable[[], Encoded]:
    """Give the record of all that a shard holds besides values and staged parts. Under the shard's lock."""
    variables, optimizers = image.store.variables, image.store.optimizers
    ledger = ledger_image(image.ledger) if image.ledger is not None else no_ledger
    kept: Mapping[str, Kept] = dict(image.kept)
    contributed = image.contributions.image()
    state, applied = image.state, image.applied

    def encode() -> Encoded:
        tensors = TensorWriter()
        message = pb.LogBase(
            state=int(state),  # type: ignore[arg-type]
            variables=[codec.encode_variable(decl) for decl in variables],
            optimizers=[codec.encode_optimizer(decl) for decl in optimizers],
            applied=applied,
            snapshot=codec.encode_push_id(snapshot),
            ledger=ledger(),
            begin=begin,
        )
        for last in kept.values():
            item = message.kept[last.index]
            item.id.CopyFrom(codec.encode_push_id(last.push))
            codec.encode_reads(last.reads, item.reads, tensors)
        for held in contributed:
            into = message.waiting if held.unit else message.sums
            aggregate = into.add(step=held.step, unit=held.unit or held.folded)
            for op in held.ops:
                codec.encode_op(op, aggregate.ops.add(), tensors)
        return pb.LogRecord(base=message).SerializeToString(), tensors.pieces

    return encode


def _encode_parts(parts: PushParts, record: pb.LogRecord) -> Sequence[memoryview]:
    """Write a part's changes and reads; gives the data."""
    layout = parts.layout
    if layout is not None and parts.data is not None:
        if not layout.logged:
            message = pb.StageRequest(ops=cast("Sequence[pb.Op]", layout.ops))  # as they were sent, or logged
            tensors = TensorWriter()
            codec.encode_reads(layout.reads, message.reads, tensors)
            layout.logged = message.SerializeToString()
        record.part = layout.logged
        return [parts.data]
    message, tensors = pb.StageRequest(), TensorWriter()
    for op in parts.ops:
        codec.encode_op(op, message.ops.add(), tensors)
    codec.encode_reads(parts.reads, message.reads, tensors)
    record.part = message.SerializeToString()
    return tensors.pieces


def resume_event(base: pb.LogBase, data: memoryview, values: Mapping[str, Array]) -> events.Resume:
    """Give the event of an image that a segment begins with.

    Args:
        base: The image.
        data: Of its record.
        values: Of the Variables, from the file beside it.
    """
    begin = base.begin
    kept = [
        Kept(codec.decode_push_id(item.id), index, codec.decode_reads(item.reads, data), None)
        for index, item in sorted(base.kept.items())  # the oldest first
    ]
    sums = [HeldOps(item.step, _ops(item, data), folded=item.unit) for item in base.sums]
    waiting = [HeldOps(item.step, _ops(item, data), unit=item.unit) for item in base.waiting]
    return events.Resume(
        State(base.state),
        [codec.decode_variable(item) for item in base.variables],
        [codec.decode_optimizer(item) for item in base.optimizers],
        values,
        ledger_of_image(base.ledger, begin.shards, begin.sequencer) if base.ledger else None,
        base.applied,
        kept,
        sums + waiting,
    )


def _ops(message: pb.StageRequest, data: memoryview) -> list[Op]:
    return [codec.decode_op(op, data) for op in message.ops]


class Records:
    """Reads the records of an incarnation's log. Parts that are alike but for their numbers share a layout.

    Args:
        incarnation: Whose log it is.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._layouts: dict[bytes, Layout] = {}

    def event(self, record: pb.LogRecord, data: memoryview) -> Event[Any] | None:
        """Give the event of a record; None for one that holds none of `events.LOGGED`.

        Args:
            record: It.
            data: Its data; readonly.
        """
        kind = record.WhichOneof("kind")
        if kind == "declare":
            declare = record.declare
            variables = [codec.decode_variable(item) for item in declare.variables]
            optimizers = [codec.decode_optimizer(item) for item in declare.optimizers]
            return events.Declare(declare.incarnation, declare.client, variables, optimizers)
        if kind == "open":
            return events.Open(record.open.incarnation, record.open.client, codec.decode_limits(record.open))
        if kind == "leave":
            leave = record.leave
            return events.Leave(leave.client, task=leave.task, unfinished=leave.unfinished)
        if kind == "finish":
            return events.Finish(record.finish.incarnation, record.finish.client)
        if kind == "release":
            return events.Release(record.release.incarnation, codec.decode_push_id(record.release.snapshot))
        if kind == "stage":
            push = codec.decode_push_id(record.stage.id)
            parts = self._parts(record.part, data)
            return events.Stage(self._incarnation, push, parts, record.stage.step, record.stage.unit)
        if kind == "push":
            return self._decided(record, data)
        if kind == "commit":
            message = record.commit
            found = [entry_codec.decode(entry) for entry in message.entries]
            dropped = [codec.decode_push_id(push) for push in record.dropped]
            brought = codec.decode_push_id(message.id) if message.HasField("id") else _NO_PUSH
            return events.Applied(brought, found, dropped)
        if kind == "settle":
            settle = record.settle
            pushes = [codec.decode_push_id(push) for push in settle.pushes]
            return events.Resolve(settle.incarnation, pushes, settle.shard, settle.applied)
        return None

    def _decided(self, record: pb.LogRecord, data: memoryview) -> events.Decided:
        message = record.push
        return events.Decided(
            self._incarnation,
            codec.decode_push_id(message.id),
            EntryKind(record.entry_kind),
            list(message.others),
            codec.decode_increments(message.increments),
            [codec.decode_use(use) for use in message.uses],
            dict(message.seen_steps),
            {floor.shard: floor.index for floor in message.floors},
            self._parts(record.part, data) if record.HasField("part") else None,
            codec.decode_outcome(record.outcome),
            record.task,
        )

    def _parts(self, part: bytes, data: memoryview) -> PushParts:
        """Give a part as a shard wants it.

        Args:
            part: As in LogRecord.
            data: Of its record; readonly.
        """
        layout = self._layouts.get(part)
        if layout is not None and layout.data_bytes == data.nbytes:
            return PushParts((), layout.reads, data, layout)
        message = pb.StageRequest.FromString(part)
        reads = codec.decode_reads(message.reads, data)
        dense = all(op.kind == pb.OP_APPLY and not op.HasField("indices") for op in message.ops)
        if dense and message.ops and all(read.indices is None for read in reads):
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[part] = Layout(message.ops, codec.decode_op, reads, [], [], data.nbytes)
            return PushParts((), reads, data, layout)
        return PushParts(_ops(message, data), reads, data)

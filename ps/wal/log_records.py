"""Between what happens to a shard and the records of its log.

A record is written some time after its event, when the shard has moved on. So `record_of_*` take only what does
not change any more, and give a function that writes the record when it is called.

Layer: ps. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger import entries as entry_codec
from globalstep.ps.ledger.ledger import Entry
from globalstep.ps.ledger.ledger_image import ledger_image
from globalstep.ps.shard.answers import Kept
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.store.snapshots import no_ledger
from globalstep.ps.wal.witness import Image, Pushed
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import PushId

__all__ = ["Encoded", "PartMemory", "base_record", "entries_record", "push_record", "stage_record"]

#: The record's head, and its data in pieces.
Encoded = tuple[bytes, Sequence[memoryview]]


def plain_record(record: pb.LogRecord) -> Callable[[], Encoded]:
    """Give a record without data."""
    return lambda: (record.SerializeToString(), ())


def push_record(told: Pushed) -> Callable[[], Encoded]:
    """Give the record of a decision of the sequencer, with the part of a push that has no other participant."""

    def encode() -> Encoded:
        message = pb.LogPush(
            id=codec.encode_push_id(told.push),
            kind=int(told.kind),  # type: ignore[arg-type]
            participants=told.participants,
            increments=codec.encode_increments(told.increments),
            uses=[codec.encode_use(use) for use in told.uses],
            seen_steps=dict(told.seen_steps),
            floors=[pb.Floor(shard=shard, index=index) for shard, index in told.floors.items()],
            alone=told.parts is not None,
            task=told.task,
        )
        codec.encode_outcome(told.outcome, message.outcome)
        record = pb.LogRecord(push=message)
        pieces = _encode_parts(told.parts, record) if told.parts is not None else ()
        return record.SerializeToString(), pieces

    return encode


def stage_record(push: PushId, parts: PushParts) -> Callable[[], Encoded]:
    """Give the record of a part that was taken in."""

    def encode() -> Encoded:
        record = pb.LogRecord(stage=pb.LogStage(id=codec.encode_push_id(push)))
        pieces = _encode_parts(parts, record)
        return record.SerializeToString(), pieces

    return encode


def entries_record(
    brought_by: PushId, entries: Sequence[Entry], dropped: Sequence[PushId] = ()
) -> Callable[[], Encoded]:
    """Give the record of entries that were applied, and of parts that were dropped."""

    def encode() -> Encoded:
        message = pb.LogEntries(
            brought_by=codec.encode_push_id(brought_by) if brought_by.client else None,
            entries=[entry_codec.encode(entry) for entry in entries],
            dropped=[codec.encode_push_id(push) for push in dropped],
        )
        return pb.LogRecord(entries=message).SerializeToString(), ()

    return encode


def base_record(begin: pb.BeginRequest, snapshot: PushId, image: Image) -> Callable[[], Encoded]:
    """Give the record of all that a shard holds besides values and staged parts. Under the shard's lock."""
    variables, optimizers = image.store.variables, image.store.optimizers
    ledger = ledger_image(image.ledger) if image.ledger is not None else no_ledger
    kept: Mapping[str, Kept] = dict(image.kept)
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
            item = message.kept.add(id=codec.encode_push_id(last.push), index=last.index)
            for read in last.reads:
                codec.encode_read(read, item.reads.add(), tensors)
        return pb.LogRecord(base=message).SerializeToString(), tensors.pieces

    return encode


def _encode_parts(parts: PushParts, record: pb.LogRecord) -> Sequence[memoryview]:
    """Write a part's changes and reads; gives the data."""
    layout = parts.layout
    if layout is not None and parts.data is not None:
        if not layout.logged:
            message = pb.LogPart(ops=cast("Sequence[pb.Op]", layout.ops))  # as they were told, or logged
            tensors = TensorWriter()
            for read in layout.reads:
                codec.encode_read(read, message.reads.add(), tensors)
            layout.logged = message.SerializeToString()
        record.part = layout.logged
        return [parts.data]
    message, tensors = pb.LogPart(), TensorWriter()
    for op in parts.ops:
        codec.encode_op(op, message.ops.add(), tensors)
    for read in parts.reads:
        codec.encode_read(read, message.reads.add(), tensors)
    record.part = message.SerializeToString()
    return tensors.pieces


@dataclass(slots=True)
class PartMemory:
    """Reads parts; those that are alike but for their numbers share a layout, as they did when they came."""

    _layouts: dict[bytes, Layout] = field(default_factory=dict[bytes, Layout])

    def parts(self, part: bytes, data: memoryview) -> PushParts:
        """Give a part as a shard wants it.

        Args:
            part: A LogPart.
            data: Of its record; readonly.
        """
        layout = self._layouts.get(part)
        if layout is not None and layout.data_bytes == data.nbytes:
            return PushParts((), layout.reads, data, layout)
        message = pb.LogPart.FromString(part)
        reads = [codec.decode_read(read, data) for read in message.reads]
        dense = all(op.kind == pb.OP_APPLY and not op.HasField("indices") for op in message.ops)
        if dense and message.ops and all(read.indices is None for read in reads):
            layout = self._layouts[part] = Layout(message.ops, codec.decode_op, reads, [], [], data.nbytes)
            return PushParts((), reads, data, layout)
        return PushParts([codec.decode_op(op, data) for op in message.ops], reads, data)

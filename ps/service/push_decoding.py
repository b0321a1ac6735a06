"""Decoding of pushes from their messages: parts, decisions, and how much of them there may be.

Layer: ps. Threads: functions; a LayoutMemory belongs to one stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.events import Push
from globalstep.ps.shard.layouts import Layout, LayoutMemory, PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.wire import codec
from globalstep.wire.declarations import Increment, OptimizerUse, padded

if TYPE_CHECKING:
    from globalstep.ps.store.row_layouts import RowLayout

#: How often a message may name each Variable that a shard holds, and how many changes it may have besides: a push has a
#: few parts and reads of each.
_TIMES = 4
_BESIDES = 64

_NO_PARTS = PushParts()

#: Dtypes that ids of rows may have.
_IDS = ("int64", "int32")

#: By what a push is decided: its increments and uses.
Decision = tuple[list[Increment], list[OptimizerUse]]


def check_counts(variables: int, **lists: Sequence[Any]) -> None:
    """Refuse a message with more in it than there is use for, before any of it is looked at.

    Args:
        variables: How many Variables the shard holds.
        lists: What the message has, by what it is.

    Raises:
        InvalidArgumentError: If there is too much.
    """
    most = _TIMES * variables + _BESIDES
    for what, items in lists.items():
        if len(items) > most:
            raise InvalidArgumentError(
                f"A message with {len(items)} {what} for a PS task that holds {variables} Variables; {most} are the "
                "most. Split it."
            )


def parts_of(
    message: pb.PushRequest | pb.StageRequest | pb.PullRequest,
    data: memoryview,
    memory: LayoutMemory,
    shard: Shard,
    decision: Decision | None = None,
) -> PushParts:
    """Decode a push's part, or what a pull reads, or recall it where its layout is known.

    Args:
        message: What holds it.
        data: The bytes of its tensors.
        memory: What its stream remembers.
        shard: Whose part it is.
        decision: By what the push is decided, where that comes with the part.
    """
    memory.told = None
    if message.known_layout:
        if message.rows:
            told = memory.recall_rows(message.layout)
            return PushParts(*told.bind(message.rows, data), data, rows=told, account=memory.account)
        layout = memory.recall(message.layout, data)
        if layout.ops and isinstance(message, pb.PullRequest):
            raise InvalidArgumentError(f"Layout {message.layout} is one of pushes, which a read cannot have.")
        # A client whose contributions were answered without values knows the layout, and not where they would lie.
        known = not isinstance(message, pb.PushRequest) or not message.patience_ms or message.knows_places
        return PushParts((), layout.reads, data, layout, known, account=memory.account)
    ops: Sequence[pb.Op] = ()
    if isinstance(message, pb.PullRequest):
        memory.account.name = message.client or memory.account.name
    else:
        ops, memory.account.name = message.ops, message.id.client
    if not (ops or message.reads or message.layout or data.nbytes or decision):
        # It asks for nothing, as a PULL that tells low-water marks.
        return PushParts(data=data, account=memory.account)
    check_counts(shard.now.store.variable_count, changes=ops, reads=message.reads)
    reads = codec.decode_reads(message.reads, data)
    increments, uses = decision or ([], [])
    layout = Layout(ops, codec.decode_op, reads, increments, uses, data.nbytes)
    dense = message.layout and all(op.kind == pb.OP_APPLY and not op.HasField("indices") for op in ops)
    if dense and layout.may_be_remembered:
        # A copy, without what else the message has: it is kept.
        message.DiscardUnknownFields()
        layout.ops = pb.StageRequest(ops=ops).ops
        memory.tell(message.layout, layout, message.ByteSize())
        return PushParts((), layout.reads, data, layout, account=memory.account)
    parts = PushParts(layout.bind(data), layout.reads, data, account=memory.account)
    if message.layout and (rows := _row_layout(ops, message.reads, data.nbytes, increments, uses)):
        memory.tell(message.layout, rows, message.ByteSize())
        parts.rows = rows
    return parts


def _row_layout(
    ops: Sequence[pb.Op],
    reads: Sequence[pb.Read],
    nbytes: int,
    increments: list[Increment],
    uses: list[OptimizerUse],
) -> RowLayout | None:
    """Return the layout of a push of rows that was decoded; None where it has no rows, or later ones may lie otherwise.

    Args:
        ops: Its changes.
        reads: Its reads.
        nbytes: Of its data.
        increments: See RowLayout.
        uses: See RowLayout.
    """
    from globalstep.ps.store.row_layouts import RowChange, RowLayout

    at = 0
    changes: list[RowChange] = []
    for op in ops:
        sparse = op.HasField("indices")
        shape = tuple(op.value.shape)
        # What has not a row for each id is going to be refused for that.
        if op.kind != pb.OP_APPLY or not op.HasField("value") or (sparse and shape[:1] != tuple(op.indices.shape)):
            return None
        dtype = codec.DTYPES[op.value.dtype]
        for ref in (op.value, op.indices) if sparse else (op.value,):
            if ref.offset != at:
                return None
            at += padded(_nbytes(ref))
        if sparse and op.indices.dtype not in _IDS:
            return None
        row = shape[1:] if sparse else shape
        size = dtype.itemsize * math.prod(row)
        changes.append(
            RowChange(
                op.variable,
                op.optimizer,
                op.unique,
                op.after_increment,
                dtype,
                row,
                size if sparse else padded(size),
                codec.DTYPES[op.indices.dtype] if sparse else None,
            )
        )
    told: list[tuple[str, np.dtype[Any] | None]] = []
    for read in reads:
        if not read.HasField("indices"):
            told.append((read.variable, None))
            continue
        if read.indices.offset != at or len(read.indices.shape) != 1 or read.indices.dtype not in _IDS:
            return None
        at += padded(_nbytes(read.indices))
        told.append((read.variable, codec.DTYPES[read.indices.dtype]))
    of_rows = any(change.ids is not None for change in changes) or any(ids is not None for _, ids in told)
    if at != nbytes or not of_rows or any(use.overrides for use in uses):
        return None
    return RowLayout(changes, told, increments, uses)


def _nbytes(ref: pb.TensorRef) -> int:
    return codec.DTYPES[ref.dtype].itemsize * math.prod(ref.shape)


def decision_of(message: pb.PushRequest, shard: Shard) -> Decision:
    """Decode the increments and uses of a push that has them."""
    check_counts(shard.now.store.variable_count, increments=message.increments, uses=message.uses)
    if len({(use.optimizer, use.after_increment) for use in message.uses}) < len(message.uses):
        raise InvalidArgumentError("A push uses an optimizer once before its increments, and once after them.")
    return codec.decode_increments(message.increments), [codec.decode_use(use) for use in message.uses]


def counting_push(message: pb.PushRequest, memory: LayoutMemory) -> Push:
    """Give a push that only counts, of a known layout."""
    layout = memory.recall(message.layout, memoryview(b""))
    push = codec.decode_push_id(message.id)
    return Push(message.incarnation, push, _NO_PARTS, layout.increments, (), dict(message.seen_steps))

"""What is told of pushes, out of the messages that they come in: parts, decisions, and how much of them there may be.

Floor: ps. Threads: functions; a LayoutMemory belongs to one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globalstep import codec
from globalstep.declarations import Increment, OptimizerUse
from globalstep.errors import InvalidArgumentError, LayoutUnknownError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.caller import Caller
from globalstep.ps.counting import CountingPush, CountingShard
from globalstep.ps.layouts import Layout, LayoutMemory, PushParts

__all__ = ["check_counts", "counting_push", "decision_of", "parts_of"]

#: How often a message may name each Variable that a shard holds, and how many changes it may have besides: a push has a
#: few parts and reads of each.
_TIMES = 4
_BESIDES = 64

#: Refuses a decision that its caller may not ask for.
Permit = Callable[[Caller, Sequence[Increment], Sequence[OptimizerUse]], None]


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
    message: pb.PushRequest | pb.StageRequest,
    data: memoryview,
    memory: LayoutMemory,
    shard: CountingShard,
    deciding: pb.PushRequest | pb.AdmitRequest | None = None,
    permit: Permit | None = None,
) -> PushParts:
    """Decode a push's part, or recall it where its layout is known.

    Args:
        message: What tells it.
        data: The bytes of its tensors.
        memory: What its stream remembers.
        shard: Whose part it is.
        deciding: What says by what the push is decided.
        permit: Is asked about that where it is told, and not where it was told before.
    """
    if message.ahead:
        data = memory.take_ahead(message.layout)
    if message.known_layout:
        layout = memory.recall(message.layout, data)
        return PushParts((), layout.reads, data, layout, True)
    check_counts(shard.variable_count, changes=message.ops, reads=message.reads)
    increments: list[Increment] = []
    uses: list[OptimizerUse] = []
    if deciding is not None:
        increments, uses = decision_of(deciding, None, shard)
        if permit is not None:
            permit(memory.caller, increments, uses)
    reads = [codec.decode_read(read, data) for read in message.reads]
    told = Layout(message.ops, codec.decode_op, reads, increments, uses, data.nbytes, deciding is not None)
    dense = message.layout and all(op.kind == pb.OP_APPLY and not op.HasField("indices") for op in message.ops)
    if dense and memory.remember(message.layout, told):
        return PushParts((), told.reads, data, told)
    return PushParts(told.bind(data), told.reads, data)


def decision_of(
    message: pb.PushRequest | pb.AdmitRequest, layout: Layout | None, shard: CountingShard
) -> tuple[list[Increment], list[OptimizerUse]]:
    """Give the increments and uses of a push: those that its layout was told with, or else the message's own."""
    if layout is None:
        check_counts(shard.variable_count, increments=message.increments, uses=message.uses)
        return codec.decode_increments(message.increments), [codec.decode_use(use) for use in message.uses]
    if not layout.decides:
        raise LayoutUnknownError("This layout was told without increments and uses; tell it in full.")
    return layout.increments, layout.uses


def counting_push(message: pb.PushRequest, memory: LayoutMemory) -> CountingPush:
    """Give a push that only counts, of a known layout."""
    layout = memory.recall(message.layout, memoryview(b""))
    push = codec.decode_push_id(message.id)
    return CountingPush(message.incarnation, push, layout.increments, dict(message.seen_steps))

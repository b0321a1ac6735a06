"""Between ledger entries and their messages.

Floor: ps. Threads: functions are pure.
"""

from __future__ import annotations

from globalstep import codec
from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger import Entry, EntryKind, HyperValues

__all__ = ["decode", "encode"]


def encode(entry: Entry) -> pb.Entry:
    """Write an entry."""
    message = pb.Entry(
        index=entry.index,
        kind=int(entry.kind),  # type: ignore[arg-type]
        push=codec.encode_push_id(entry.push),
        previous=entry.previous,
        signature=entry.signature,
    )
    for item in entry.hypers:
        message.hypers.add(optimizer=item.optimizer, after_increment=item.after_increment, values=dict(item.values))
    return message


def decode(message: pb.Entry) -> Entry:
    """Read an entry.

    Raises:
        InvalidArgumentError: If it is of no known kind.
    """
    if int(message.kind) not in list(EntryKind):
        raise InvalidArgumentError(f"Entry {message.index} is of no known kind.")
    return Entry(
        message.index,
        EntryKind(message.kind),
        codec.decode_push_id(message.push),
        message.previous,
        tuple(HyperValues(item.optimizer, item.after_increment, dict(item.values)) for item in message.hypers),
        message.signature,
    )

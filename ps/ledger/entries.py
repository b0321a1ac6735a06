"""Between ledger entries and their messages.

Layer: ps. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import AggregatePlace, Entry, EntryKind, HyperValues
from globalstep.wire import codec

#: By their numbers on the wire.
ENTRY_KINDS: Mapping[int, EntryKind] = {int(kind): kind for kind in EntryKind}


def encode(entry: Entry) -> pb.Entry:
    """Write an entry."""
    message = pb.Entry(
        index=entry.index,
        kind=int(entry.kind),  # type: ignore[arg-type]
        push=codec.encode_push_id(entry.push),
        previous=entry.previous,
        signature=entry.signature,
    )
    if entry.place is not None:
        message.step, message.contributions, message.unit = entry.place
    for item in entry.hypers:
        message.uses.add(optimizer=item.optimizer, after_increment=item.after_increment, hypers=dict(item.values))
    return message


def decode(message: pb.Entry) -> Entry:
    """Read an entry.

    Raises:
        InvalidArgumentError: If it is of no known kind.
    """
    kind = ENTRY_KINDS.get(message.kind)
    if kind is None:
        raise InvalidArgumentError(f"Entry {message.index} is of no known kind.")
    return Entry(
        message.index,
        kind,
        codec.decode_push_id(message.push),
        message.previous,
        tuple([HyperValues(item.optimizer, item.after_increment, dict(item.hypers)) for item in message.uses]),
        message.signature,
        AggregatePlace(message.step, message.contributions, message.unit) if message.step else None,
    )

"""Signatures: proof that an entry is the sequencer's decision, and a floor the shard's own word.

"What is signed" in docs/design/push-protocol.md says which task signs, and what a signature is over.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from globalstep.ps.ledger.ledger import AggregatePlace, Entry, EntryKind, HyperValues
    from globalstep.wire.declarations import PushId

#: Of an incarnation's key.
KEY_BYTES = 32
_SIGNATURE_BYTES = 16
_DECISION = struct.Struct("<QBQI")
_PLACE = struct.Struct("<IQ")
_COUNTS = struct.Struct("<I?I")
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<d")


@dataclass(slots=True)
class Floor:
    """The entry up to which a shard is said to have applied its own."""

    index: int
    #: Of the shard; b"" where every caller is believed.
    signature: bytes = b""


@dataclass(slots=True, eq=False)
class Decision:
    """The fields that are the same in all entries of a push; see `Signer.decision`."""

    _hash: hashlib.blake2b

    def for_shard(self, shard: int, previous: int) -> bytes:
        """Give the signature of the entry for a participant, which follows its entry `previous`."""
        hashed = self._hash.copy()
        hashed.update(_PLACE.pack(shard, previous))
        return hashed.digest()


class Signer:
    """Signs and checks for the PS tasks of one incarnation.

    >>> signer = Signer(bytes(32), 7)
    >>> signer.is_floor(1, Floor(12, signer.floor(1, 12))), signer.is_floor(2, Floor(12, signer.floor(1, 12)))
    (True, False)

    Args:
        key: Of the incarnation; b"" where it has one shard: there is no other to sign for.
        incarnation: Its number.
    """

    __slots__ = ("_entries", "_floors")

    def __init__(self, key: bytes, incarnation: int) -> None:
        number = struct.pack("<Q", incarnation)
        self._entries = hashlib.blake2b(number, key=key, digest_size=_SIGNATURE_BYTES, person=b"globalstep-entry")
        self._floors = hashlib.blake2b(number, key=key, digest_size=_SIGNATURE_BYTES, person=b"globalstep-floor")

    def decision(
        self,
        index: int,
        kind: EntryKind,
        push: PushId,
        hypers: Iterable[HyperValues],
        place: AggregatePlace | None = None,
    ) -> Decision:
        """Begin the signatures of a decision's entries."""
        client = push.client.encode()
        pieces = [_DECISION.pack(index, kind, push.sequence, len(client)), client]
        for item in hypers:
            name = item.optimizer.encode()
            pieces += (_COUNTS.pack(len(name), item.after_increment, len(item.values)), name)
            for hyper, value in sorted(item.values.items()):
                key = hyper.encode()
                pieces += (_LENGTH.pack(len(key)), key, _NUMBER.pack(value))
        # Its bytes are never those of more hyper-parameters: three more than those of one that begins the same, and a
        # value, or another one, would be nine at least.
        if place is not None:
            step = place.step.encode()
            pieces += (_LENGTH.pack(len(step)), step, _LENGTH.pack(place.contributions), _LENGTH.pack(place.unit))
        hashed = self._entries.copy()
        hashed.update(b"".join(pieces))
        return Decision(hashed)

    def is_entry(self, shard: int, entry: Entry) -> bool:
        """Whether the sequencer has signed an entry, and for this shard."""
        decision = self.decision(entry.index, entry.kind, entry.push, entry.hypers, entry.place)
        return hmac.compare_digest(decision.for_shard(shard, entry.previous), entry.signature)

    def floor(self, shard: int, index: int) -> bytes:
        """Sign a shard's floor, which it will not forget."""
        hashed = self._floors.copy()
        hashed.update(_PLACE.pack(shard, index))
        return hashed.digest()

    def is_floor(self, shard: int, floor: Floor) -> bool:
        """Whether the shard itself has signed its floor."""
        return hmac.compare_digest(self.floor(shard, floor.index), floor.signature)

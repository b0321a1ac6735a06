"""Random and mutated protobuf messages: any field of any message, with words that a run knows and others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzz_choices import mutated, noise, number
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e300, -1e300, float("inf"), float("-inf"), float("nan"), 5e-324)
_DEEPEST = 6
#: Type of a field -> lowest and highest number.
_RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class MessageFuzzer:
    """Makes and changes messages.

    Args:
        words: Texts that mean something to the receiver.
        special: Field name -> gives a value for it.
        closed: Fields that only `special` gives a value, since another one would reach out of the test.
    """

    def __init__(
        self, words: Sequence[str], special: Mapping[str, Callable[[random.Random], Any]], closed: Sequence[str] = ()
    ) -> None:
        self._words = words
        self._special = special
        self._closed = frozenset(closed)

    def fill(self, rng: random.Random, message: Message, depth: int = 0) -> Message:
        """Set some of a message's fields, at random."""
        for field in message.DESCRIPTOR.fields:
            if rng.randrange(3) == 0:
                self._set(rng, message, field, depth)
        return message

    def prepare(self, rng: random.Random, message: Message) -> Message:
        """Give the fields that have special values such ones, so that what else is wrong gets to be looked at."""
        for field in message.DESCRIPTOR.fields:
            if field.name in self._special and not field.is_repeated and rng.randrange(16):
                self._set(rng, message, field, 3)
        return message

    def mutate(self, rng: random.Random, message: Message, most: int = 3) -> Message:
        """Change some fields anywhere in a message, or bytes of it on the wire; now and then nothing."""
        if rng.randrange(8) == 0:
            return self._mutate_bytes(rng, message)
        for _ in range(rng.randrange(most + 1)):
            inner = message
            # From the top, a step deeper with an even chance each.
            while (below := _messages_in(inner)) and rng.randrange(2):
                inner = rng.choice(below)
            fields = inner.DESCRIPTOR.fields
            if fields:
                self._change(rng, inner, rng.choice(fields))
        return message

    def _mutate_bytes(self, rng: random.Random, message: Message) -> Message:
        changed = type(message)()
        try:
            changed.ParseFromString(mutated(rng, message.SerializeToString()))
        except DecodeError:
            return message
        self._close(rng, changed)
        return changed

    def _close(self, rng: random.Random, message: Message) -> None:
        """Give the closed fields of a message a value that is allowed."""
        for field in message.DESCRIPTOR.fields:
            if field.name in self._closed and not field.is_repeated:
                setattr(message, field.name, self._special[field.name](rng))
        for inner in _messages_in(message):
            self._close(rng, inner)

    def _change(self, rng: random.Random, message: Message, field: Any) -> None:
        repeated = field.is_repeated
        if rng.randrange(4) == 0:
            message.ClearField(field.name)
        elif repeated and not _is_map(field) and rng.randrange(3) == 0 and (items := getattr(message, field.name)):
            at = rng.randrange(len(items))
            if rng.randrange(2):
                del items[at]
            else:
                items.append(items[at])
        else:
            self._set(rng, message, field, 3)

    def _set(self, rng: random.Random, message: Message, field: Any, depth: int) -> None:
        if depth > _DEEPEST:
            return
        if _is_map(field):
            key_field, value_field = field.message_type.fields
            key, target = self._scalar(rng, key_field), getattr(message, field.name)
            if value_field.message_type is not None:
                self.fill(rng, target[key], depth + 1)
            else:
                target[key] = self._scalar(rng, value_field)
        elif field.message_type is not None:
            target = getattr(message, field.name)
            if field.is_repeated:
                for _ in range(rng.randrange(3)):
                    self.fill(rng, target.add(), depth + 1)
            else:
                target.SetInParent()
                special = self._special.get(field.name)
                if special is not None and rng.randrange(8):
                    target.CopyFrom(special(rng))
                else:
                    self.fill(rng, target, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(self._scalar(rng, field) for _ in range(rng.randrange(4)))
        else:
            setattr(message, field.name, self._scalar(rng, field))

    def _scalar(self, rng: random.Random, field: Any) -> Any:
        special = None if field.enum_type is not None else self._special.get(field.name)
        if special is not None and (field.name in self._closed or rng.randrange(4)):
            value = special(rng)
            if not isinstance(value, Message):  # a field of that name elsewhere is a message
                return value
        kind = field.cpp_type
        if kind in _RANGES:
            low, high = _RANGES[kind]
            return min(max(number(rng), low), high)
        if kind == Field.CPPTYPE_BOOL:
            return bool(rng.randrange(2))
        if kind in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
            return rng.choice(_FLOATS)
        if kind == Field.CPPTYPE_ENUM:
            return rng.choice((*(value.number for value in field.enum_type.values), 99, -1))
        if field.type == Field.TYPE_BYTES:
            return noise(rng)
        return rng.choice(self._words) if rng.randrange(4) else noise(rng, 12).decode("latin-1")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _messages_in(message: Message) -> list[Message]:
    """The messages that a message holds, those in maps left out."""
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None and not _is_map(field):
            found.extend(value if field.is_repeated else [value])
    return found

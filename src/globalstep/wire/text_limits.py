"""The limit of every text that a request may bear: one table, and the one check that requests are held against.

Texts come into error texts, log lines, terminals, and tables that are kept: a field that the table does not have does
not come in, and a test fails.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from globalstep.errors import InvalidArgumentError
from globalstep.wire.names import (
    GOOD_IDS,
    GOOD_NAMES,
    check_id,
    check_name_if_any,
    check_queue_name,
    check_task,
    printable,
    shown,
)

#: Most characters of a word (a dtype, a rule, an operation), of a text, and of a path or URL.
WORD_CHARACTERS = 64
TEXT_CHARACTERS = 256
PATH_CHARACTERS = 4096
#: Most bytes of a signature, a key or a token.
SECRET_BYTES = 256

#: Refuses what a field of a message has.
_Look = Callable[[Any], None]


class _Check(Protocol):
    """Refuses a text of a field."""

    def __call__(self, value: Any, /, field: str) -> None: ...


def _printable(most: int) -> _Check:
    def check(value: str, field: str) -> None:
        if len(value) > most:
            raise InvalidArgumentError(f"{field} is {shown(value)}; {most:,} characters are the most.")
        if printable(value) != value:
            raise InvalidArgumentError(f"{field} is {shown(value)}; it must have no control characters.")

    return check


def _secret(value: bytes, field: str) -> None:
    if len(value) > SECRET_BYTES:
        raise InvalidArgumentError(f"{field} has {len(value):,} bytes; {SECRET_BYTES} are the most.")


_word, _text, _path = _printable(WORD_CHARACTERS), _printable(TEXT_CHARACTERS), _printable(PATH_CHARACTERS)

#: By "Message.field", the check of each string of a request, and of bytes that are no data; an empty one may always be.
#: A map's texts are its keys and values: "Message.FieldEntry.key".
LIMITS: dict[str, _Check] = {
    "Protocol.package": _text,
    "BeginRequest.owner": check_id,
    "BeginRequest.sequencer_address": _path,
    "BeginRequest.expected_tasks": check_task,
    "BeginRequest.directory": _path,
    "BeginRequest.key": _secret,
    "RunPolicy.durability": _word,
    "RunPolicy.staleness": _word,
    "RunPolicy.on_nan": _word,
    "RunIdentity.id": _text,
    "RunIdentity.name": _text,
    "RunIdentity.directory": _path,
    "DeclareRequest.client": check_id,
    "VariableDecl.name": check_name_if_any,
    "VariableDecl.dtype": _word,
    "VariableDecl.primary": check_name_if_any,
    "VariableDecl.optimizer": check_name_if_any,
    "VariableDecl.slot": check_name_if_any,
    "VariableDecl.whole": check_name_if_any,
    "OptimizerDecl.name": check_name_if_any,
    "OptimizerDecl.kind": _word,
    "OptimizerDecl.scalars": check_name_if_any,
    "OptimizerDecl.HypersEntry.key": check_name_if_any,
    "OptimizerDecl.SlotsEntry.key": check_name_if_any,
    "SlotNames.names": check_name_if_any,
    "Expression.op": _word,
    "Expression.name": check_name_if_any,
    "OpenRequest.client": check_id,
    "OpenRequest.LastStepsEntry.key": check_name_if_any,
    "OpenRequest.NumStepsEntry.key": check_name_if_any,
    "HeartbeatRequest.client": check_id,
    "HeartbeatRequest.task": check_task,
    "HeartbeatRequest.candidate": check_id,
    "Told.StepsEntry.key": check_name_if_any,
    "ProcessInfo.host": _text,
    "ProcessInfo.place": _text,
    "ProcessInfo.started": _word,
    "ClaimChiefRequest.candidate": check_id,
    "ClaimChiefRequest.task": check_task,
    "ClaimChiefRequest.gone": check_id,
    "LeaveRequest.client": check_id,
    "LeaveRequest.candidate": check_id,
    "LeaveRequest.task": check_task,
    "EndRequest.client": check_id,
    "EndRequest.process": _text,
    "Floor.signature": _secret,
    "PullRequest.client": check_id,
    "Read.variable": check_name_if_any,
    "TensorRef.dtype": _word,
    "PushId.client": check_id,
    "Draw.law": _word,
    "Op.variable": check_name_if_any,
    "Op.source": check_name_if_any,
    "Op.optimizer": check_name_if_any,
    "Increment.step": check_name_if_any,
    "OptimizerUse.optimizer": check_name_if_any,
    "OptimizerUse.HypersEntry.key": check_name_if_any,
    "PushRequest.SeenStepsEntry.key": check_name_if_any,
    "StageRequest.step": check_name_if_any,
    "PushRequest.not_finite": check_name_if_any,
    "Entry.signature": _secret,
    "Entry.step": check_name_if_any,
    "AwaitRequest.client": check_id,
    "AwaitRequest.step": check_name_if_any,
    "OpenLaneRequest.unused": _secret,
    "WriteSnapshotRequest.directory": _path,
    "WriteSnapshotRequest.file": _text,
    "WriteSnapshotRequest.probe_file": _text,
    "WriteSnapshotRequest.probe_text": _path,
    "WriteSnapshotRequest.NamesEntry.key": _path,  # of a part, as the file names it: "w 6 2 0,3:-"
    "WriteSnapshotRequest.NamesEntry.value": check_name_if_any,
    "ReadJournalRequest.client": check_id,
    "ReadJournalRequest.life": _text,
    "GetGlobalStepRequest.task": check_id,
    "LogRequest.directory": _path,
    "LogRequest.sequencer_address": _path,
    "LogRequest.run": _text,
    "QueueRequest.client": check_id,
    "QueueRequest.process": _text,
    "QueueAttributes.name": check_queue_name,
    "QueueAttributes.kind": _word,
    "QueueAttributes.dtypes": _word,
    "QueueAttributes.shapes": _text,
}
#: Bytes that are data: the limits of messages and of memory are theirs. `ledger` is the chief's.
DATA = {"BeginRequest.ledger", "QueueRequest.elements"}

#: Texts that a check has found good already.
_GOOD: dict[_Check, set[str]] = {check_id: GOOD_IDS, check_name_if_any: GOOD_NAMES}
_NONE_GOOD: set[str] = set()

#: What looks at each field of a kind of message that has texts, by name; by the message's class, once one has come.
_LOOKS: dict[type[Any], dict[str, tuple[set[str] | None, _Look]]] = {}


def check_texts(message: Any) -> None:
    """Refuse a request with a text that is too long, or has characters that it may not have.

    Raises:
        InvalidArgumentError: If it has one; the error names the field.
    """
    kind = type(message)
    looks = _LOOKS.get(kind)
    if looks is None:
        looks = _LOOKS[kind] = looks_of(message.DESCRIPTOR)
    for field, value in message.ListFields():
        look = looks.get(field.name)
        if look is not None and (look[0] is None or value not in look[0]):
            look[1](value)


def looks_of(kind: Descriptor) -> dict[str, tuple[set[str] | None, _Look]]:
    """Give what looks at the values of a kind of message's fields that are texts, or have some, by name.

    Returns:
        Name -> the values that need no look any more, if there may be some; and what looks at the others.

    Raises:
        KeyError: If the table has no limit for one.
    """
    looks = {field: _look_at(field) for field in kind.fields}
    return {
        field.name: (None if field.message_type or _is_repeated(field) else _good_of(field), look)
        for field, look in looks.items()
        if look is not None
    }


def _is_repeated(field: FieldDescriptor) -> bool:
    # `is_repeated` came with protobuf 6.31, which has warned of `label` since.
    found: bool = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3  # type: ignore[attr-defined]
    return found


def _look_at(field: FieldDescriptor) -> _Look | None:
    """Give what looks at the value of a field; None for a field without texts."""
    inner = field.message_type
    check = _check_of(field)
    if inner is not None and inner.GetOptions().map_entry:
        of_keys, of_values = (_check_of(inner.fields_by_name[part]) for part in ("key", "value"))
        good = _good_of(inner.fields_by_name["key"])

        def look_at_items(items: Any) -> None:
            for key in items:
                if of_keys is not None and key not in good:
                    of_keys(key)
                if of_values is not None:
                    of_values(items[key])

        return look_at_items if of_keys or of_values else None
    if check is None or not _is_repeated(field):
        return check

    def look_at_each(values: Any) -> None:
        for value in values:
            check(value)

    return look_at_each


def _good_of(field: FieldDescriptor) -> set[str]:
    """Give the texts that need no look any more as values of a field."""
    limit = LIMITS.get(field.full_name.removeprefix("globalstep.v1."))
    return _NONE_GOOD if limit is None else _GOOD.get(limit, _NONE_GOOD)


def _check_of(field: FieldDescriptor) -> Callable[[Any], None] | None:
    """Give the check of one value of a field; None where it has no text."""
    if field.message_type is not None:
        return check_texts
    if field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
        return None
    name = field.full_name.removeprefix("globalstep.v1.")
    if name in DATA:
        return None
    limit = LIMITS[name]
    return partial(limit, field=name)

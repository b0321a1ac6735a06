"""The limit of every text that a request may bear: one table, and the one check that requests are held against.

Texts come into error texts, log lines, terminals, and tables that are kept: a field that the table does not have does
not come in, and a test fails.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

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


#: What the value of a field with texts is.
_TEXT, _TEXTS, _MESSAGE, _MESSAGES = "text", "texts", "message", "messages"


class _Field(NamedTuple):
    """How the texts of a field are checked.

    Attributes:
        holds: What its value is; a map is the texts of its keys.
        check: Refuses one text.
        good: Texts that need no check any more.
        values: Of a map, what checks a value; `_MESSAGES` where they are messages, None where they have no texts.
    """

    holds: str
    check: Callable[[Any], None]
    good: set[str]
    values: Callable[[Any], None] | str | None = None


#: Class of a message, once one has come -> its fields that have texts, by name.
_FIELDS: dict[type[Any], dict[str, _Field]] = {}


def check_texts(message: Any) -> None:
    """Refuse a request with a text that is too long, or has characters that it may not have.

    Raises:
        InvalidArgumentError: If it has one; the error names the field.
    """
    waiting = [message]
    while waiting:
        message = waiting.pop()
        fields = _FIELDS.get(type(message))
        if fields is None:
            fields = _FIELDS[type(message)] = fields_of(message.DESCRIPTOR)
        for descriptor, value in message.ListFields():
            field = fields.get(descriptor.name)
            if field is None:
                continue
            holds, check, good, values = field
            if holds is _TEXT:
                if value not in good:
                    check(value)
            elif holds is _MESSAGE:
                waiting.append(value)
            elif holds is _MESSAGES:
                waiting.extend(value)
            else:  # texts, or the keys of a map
                for text in value:
                    if text not in good:
                        check(text)
                if values is _MESSAGES:
                    waiting.extend(value.values())
                elif callable(values):
                    for text in value.values():
                        values(text)


def fields_of(kind: Descriptor) -> dict[str, _Field]:
    """Return the fields of a kind of message that are texts, or have some, by name.

    Raises:
        KeyError: If the table has no limit for one.
    """
    fields = {field.name: _field_of(field) for field in kind.fields}
    return {name: field for name, field in fields.items() if field is not None}


def _field_of(field: FieldDescriptor) -> _Field | None:
    """Return how the texts of a field are checked; None for a field without."""
    inner = field.message_type
    # `is_repeated` came with protobuf 6.31, which has warned of `label` since.
    is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3  # type: ignore[attr-defined]
    if inner is not None and inner.GetOptions().map_entry:
        key, value = (inner.fields_by_name[part] for part in ("key", "value"))
        values = _MESSAGES if value.message_type is not None else _check_of(value)
        check = _check_of(key)
        if check is None and values is None:
            return None
        return _Field(_TEXTS, check or _no_check, _good_of(key), values)
    if inner is not None:
        return _Field(_MESSAGES if is_repeated else _MESSAGE, _no_check, _NONE_GOOD)
    check = _check_of(field)
    return None if check is None else _Field(_TEXTS if is_repeated else _TEXT, check, _good_of(field))


def _no_check(value: Any) -> None:
    pass


def _good_of(field: FieldDescriptor) -> set[str]:
    """Return the texts that need no check any more as values of a field."""
    limit = LIMITS.get(field.full_name.removeprefix("globalstep.v1."))
    return _NONE_GOOD if limit is None else _GOOD.get(limit, _NONE_GOOD)


def _check_of(field: FieldDescriptor) -> Callable[[Any], None] | None:
    """Return the check of one value of a field; None where it has no text."""
    if field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
        return None
    name = field.full_name.removeprefix("globalstep.v1.")
    return None if name in DATA else partial(LIMITS[name], field=name)

"""Every text that a request may bear has a limit: all fields of all messages, as the contract has them."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.text_limits import DATA, LIMITS, check_texts

SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]
#: What may come in: Exchange's frames bear a Request, and so do the messages of all other transports.
ROOTS = [m.input_type for m in SERVICE.methods if m.name != "Exchange"] + [pb.Request.DESCRIPTOR]
#: More characters than any text may have.
MOST = 4096


def kinds_in(kind: Descriptor, seen: dict[str, Descriptor]) -> dict[str, Descriptor]:
    """A kind of message, and all that it may hold, by name."""
    if kind.full_name not in seen:
        seen[kind.full_name] = kind
        for field in kind.fields:
            if field.message_type is not None:
                kinds_in(field.message_type, seen)
    return seen


def texts() -> dict[str, FieldDescriptor]:
    """All strings and bytes that a request may hold, by their names in the table."""
    seen: dict[str, Descriptor] = {}
    for root in ROOTS:
        kinds_in(root, seen)
    return {
        f"{kind.full_name.removeprefix('globalstep.v1.')}.{field.name}": field
        for kind in seen.values()
        for field in kind.fields
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES)
    }


def put(message, field: FieldDescriptor, value) -> None:
    """Put a value into a field of a message, whatever that is."""
    if not field.is_repeated:
        setattr(message, field.name, value)
    else:
        getattr(message, field.name).append(value)


def with_text(field: FieldDescriptor, value):
    """A message that has a value in a field; of a map's entry, the message with the map."""
    kind = field.containing_type
    if not kind.GetOptions().map_entry:
        message = GetMessageClass(kind)()
        put(message, field, value)
        return message
    owner = GetMessageClass(kind.containing_type)()
    entries = next(item for item in kind.containing_type.fields if item.message_type is kind)
    found = getattr(owner, entries.name)
    inner = kind.fields_by_name["value"]
    if field.name == "value":
        found["key"] = value
    elif inner.message_type is not None:
        found[value].SetInParent()
    else:
        found[value] = "x" if inner.type == inner.TYPE_STRING else 1
    return owner


def around(message):
    """The message by itself, and within each other one that may hold it."""
    yield message
    for root in ROOTS:
        for kind in kinds_in(root, {}).values():
            for field in kind.fields:
                if field.message_type is message.DESCRIPTOR and not kind.GetOptions().map_entry:
                    outer = GetMessageClass(kind)()
                    if field.is_repeated:
                        getattr(outer, field.name).append(message)
                    else:
                        getattr(outer, field.name).CopyFrom(message)
                    yield outer


def test_the_table_has_every_text_of_every_request_and_nothing_else():
    assert sorted(texts()) == sorted({*LIMITS, *DATA})


def refusal(message) -> str:
    """What a message is refused with; nothing where it is taken."""
    try:
        check_texts(message)
    except InvalidArgumentError as error:
        return str(error)
    return ""


def test_a_text_that_is_too_long_is_refused_wherever_it_stands():
    for name in LIMITS:
        field = texts()[name]
        text = "x" * (MOST + 1) if field.type == field.TYPE_STRING else bytes(MOST + 1)
        for message in around(with_text(field, text)):
            assert 0 < len(refusal(message)) < 400, name  # it is in a log, and in the reply


def test_a_text_that_speaks_to_terminals_is_refused():
    for name in LIMITS:
        field = texts()[name]
        for text in ("a\x1b[2J", "a\nb", "a\x00", "a\u202eb") if field.type == field.TYPE_STRING else ():
            said = refusal(with_text(field, text))
            assert said, (name, text)
            assert said.isprintable(), (name, text)


def test_what_programs_say_is_taken():
    for name in LIMITS:
        field = texts()[name]
        said = refusal(with_text(field, "worker-1:a/b_c.d" if field.type == field.TYPE_STRING else bytes(32)))
        assert not said, name


def test_names_of_parts_in_a_checkpoint_are_taken():
    check_texts(pb.WriteSnapshotRequest(names={"w 6 2 0,3:-": "w/part_0"}))


def test_texts_for_people_may_have_any_letters():
    check_texts(pb.HeartbeatRequest(run=pb.RunIdentity(name="Überlauf 7 – 東京", directory="/läufe/1 (neu)")))

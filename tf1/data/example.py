"""tf.train.Example, SequenceExample and their parts: the messages that TFRecord files usually hold.

Built from a description in this file rather than generated, so that `proto/` holds the wire contract
only, and in a descriptor pool of their own, so that TensorFlow's own may be imported beside them.
Source: TensorFlow, core/example/{example,feature}.proto.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FieldProto = descriptor_pb2.FieldDescriptorProto


def _add_list(file: descriptor_pb2.FileDescriptorProto, name: str, kind: Any, packed: bool) -> None:
    field = file.message_type.add(name=name).field.add(
        name="value", number=1, label=_FieldProto.LABEL_REPEATED, type=kind
    )
    if packed:
        field.options.packed = True


def _add_message(message: Any, name: str, number: int, kind: str, label: Any = _FieldProto.LABEL_OPTIONAL) -> None:
    message.field.add(
        name=name, number=number, label=label, type=_FieldProto.TYPE_MESSAGE, type_name=f".tensorflow.{kind}"
    )


def _add_map(file: descriptor_pb2.FileDescriptorProto, name: str, field: str, kind: str) -> None:
    """Add a message whose only field is a map from names to messages."""
    message = file.message_type.add(name=name)
    entry = message.nested_type.add(name=f"{kind}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_FieldProto.LABEL_OPTIONAL, type=_FieldProto.TYPE_STRING)
    _add_message(entry, "value", 2, kind)
    _add_message(message, field, 1, f"{name}.{kind}Entry", _FieldProto.LABEL_REPEATED)


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    _add_list(file, "BytesList", _FieldProto.TYPE_BYTES, packed=False)
    _add_list(file, "FloatList", _FieldProto.TYPE_FLOAT, packed=True)
    _add_list(file, "Int64List", _FieldProto.TYPE_INT64, packed=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes", "float", "int64"), start=1):
        feature.field.add(
            name=f"{name}_list",
            number=number,
            label=_FieldProto.LABEL_OPTIONAL,
            type=_FieldProto.TYPE_MESSAGE,
            type_name=f".tensorflow.{name.capitalize()}List",
            oneof_index=0,
        )
    _add_map(file, "Features", "feature", "Feature")
    _add_message(file.message_type.add(name="FeatureList"), "feature", 1, "Feature", _FieldProto.LABEL_REPEATED)
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    sequence = file.message_type.add(name="SequenceExample")
    _add_message(sequence, "context", 1, "Features")
    _add_message(sequence, "feature_lists", 2, "FeatureLists")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_describe())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"tensorflow.{name}"))


BytesList = _message("BytesList")
FloatList = _message("FloatList")
Int64List = _message("Int64List")
Feature = _message("Feature")
Features = _message("Features")
Example = _message("Example")
FeatureList = _message("FeatureList")
FeatureLists = _message("FeatureLists")
SequenceExample = _message("SequenceExample")

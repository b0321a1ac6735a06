"""tf.train.Example and its parts: the messages that TFRecord files usually hold.

Built from a description in this file rather than generated, so that `proto/` holds the wire contract
only, and in a descriptor pool of their own, so that TensorFlow's own may be imported beside them.
Source: TensorFlow, core/example/{example,feature}.proto.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["BytesList", "Example", "Feature", "Features", "FloatList", "Int64List"]

_FieldProto = descriptor_pb2.FieldDescriptorProto


def _add_list(file: descriptor_pb2.FileDescriptorProto, name: str, kind: Any, packed: bool) -> None:
    field = file.message_type.add(name=name).field.add(
        name="value", number=1, label=_FieldProto.LABEL_REPEATED, type=kind
    )
    if packed:
        field.options.packed = True


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
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_FieldProto.LABEL_OPTIONAL, type=_FieldProto.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=_FieldProto.LABEL_OPTIONAL,
        type=_FieldProto.TYPE_MESSAGE,
        type_name=".tensorflow.Feature",
    )
    features.field.add(
        name="feature",
        number=1,
        label=_FieldProto.LABEL_REPEATED,
        type=_FieldProto.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features",
        number=1,
        label=_FieldProto.LABEL_OPTIONAL,
        type=_FieldProto.TYPE_MESSAGE,
        type_name=".tensorflow.Features",
    )
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

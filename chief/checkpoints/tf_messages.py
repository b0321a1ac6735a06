"""Messages of TensorFlow's checkpoints that the tensorboard package does not ship.

Source: tensorflow/python/training/checkpoint_state.proto, tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/framework/tensor_shape.proto and tensor_slice.proto: names, numbers and types of fields.

Layer: chief. Imports nothing of globalstep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "fixed32": descriptor_pb2.FieldDescriptorProto.TYPE_FIXED32,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
_MESSAGES = {
    "CheckpointState": [
        "string model_checkpoint_path = 1",
        "repeated string all_model_checkpoint_paths = 2",
        "repeated double all_model_checkpoint_timestamps = 3",
        "double last_preserved_timestamp = 4",
    ],
    "Dim": ["int64 size = 1"],
    "TensorShape": ["repeated Dim dim = 2"],
    "Extent": ["int64 start = 1", "optional int64 length = 2"],
    "TensorSlice": ["repeated Extent extent = 1"],
    "BundleHeader": ["int32 num_shards = 1", "int32 endianness = 2"],
    "BundleEntry": [
        "int32 dtype = 1",
        "TensorShape shape = 2",
        "int32 shard_id = 3",
        "int64 offset = 4",
        "int64 size = 5",
        "fixed32 crc32c = 6",
        "repeated TensorSlice slices = 7",
    ],
}


def message_classes(package: str, syntax: str, messages: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Make the classes of messages, in a pool of their own: another package in the process may register them, too.

    A field is "[repeated|optional] type name = number"; of proto3 those are "optional" whose 0 is not their absence.
    Enums are given as int32, which is how they travel.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    field_proto = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for text in fields:
            *label, kind, name, _, number = text.split()
            field = message.field.add(name=name, number=int(number))
            field.label = field_proto.LABEL_REPEATED if label == ["repeated"] else field_proto.LABEL_OPTIONAL
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type, field.type_name = field_proto.TYPE_MESSAGE, f".{package}.{kind}"
            if label == ["optional"]:
                message.oneof_decl.add(name=f"has_{name}")
                field.oneof_index = len(message.oneof_decl) - 1
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_made = message_classes("tf", "proto3", _MESSAGES)

#: What the `checkpoint` file holds.
CheckpointState: Any = _made["CheckpointState"]
#: BundleHeaderProto: how many data files a checkpoint has.
BundleHeader: Any = _made["BundleHeader"]
#: BundleEntryProto: where a tensor of a checkpoint is.
BundleEntry: Any = _made["BundleEntry"]

"""Messages of TensorFlow's checkpoints that the tensorboard package does not ship.

Source: tensorflow/python/training/checkpoint_state.proto, tensorflow/core/protobuf/tensor_bundle.proto,
tensorflow/core/framework/tensor_shape.proto and tensor_slice.proto: names, numbers and types of fields.

Layer: chief. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "fixed32": descriptor_pb2.FieldDescriptorProto.TYPE_FIXED32,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
# Message -> fields as "[repeated] type name = number". Enums are given as int32, which is how they travel.
_MESSAGES = {
    "CheckpointState": [
        "string model_checkpoint_path = 1",
        "repeated string all_model_checkpoint_paths = 2",
        "repeated double all_model_checkpoint_timestamps = 3",
        "double last_preserved_timestamp = 4",
    ],
    "Dim": ["int64 size = 1"],
    "TensorShape": ["repeated Dim dim = 2"],
    "Extent": ["int64 start = 1", "int64 length = 2"],
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


def _classes() -> dict[str, Any]:
    # A pool of its own: a tensorflow in the same process registers the same messages in the default one.
    file = descriptor_pb2.FileDescriptorProto(name="tf_checkpoints.proto", package="tf", syntax="proto3")
    field_proto = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for text in fields:
            *label, kind, name, _, number = text.split()
            field = message.field.add(name=name, number=int(number))
            field.label = field_proto.LABEL_REPEATED if label else field_proto.LABEL_OPTIONAL
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type, field.type_name = field_proto.TYPE_MESSAGE, f".tf.{kind}"
            if name == "length":
                # In a oneof there: a whole extent has no length, which differs from the length 0.
                message.oneof_decl.add(name="has_length")
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tf.{name}")) for name in _MESSAGES}


_made = _classes()

#: What the `checkpoint` file holds.
CheckpointState: Any = _made["CheckpointState"]
#: BundleHeaderProto: how many data files a checkpoint has.
BundleHeader: Any = _made["BundleHeader"]
#: BundleEntryProto: where a tensor of a checkpoint is.
BundleEntry: Any = _made["BundleEntry"]

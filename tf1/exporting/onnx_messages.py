"""Messages of ONNX models, as far as this package writes them.

Source: onnx/onnx.proto of ONNX 1.16 (IR version 8 and later): names, numbers and types of fields. With these few
messages a model is written without the onnx package, which tests check them with.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["DATA_TYPES", "Attribute", "Model", "Node", "Tensor", "ValueInfo"]

_KINDS = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
# Message -> fields as "[repeated] type name = number". Enums are given as int32, which is how they travel.
_MESSAGES = {
    "Entry": ["string key = 1", "string value = 2"],
    "Opset": ["string domain = 1", "int64 version = 2"],
    "Tensor": [
        "repeated int64 dims = 1",
        "int32 data_type = 2",
        "repeated bytes string_data = 6",
        "string name = 8",
        "bytes raw_data = 9",
        "repeated Entry external_data = 13",
        "int32 data_location = 14",
    ],
    "Attribute": [
        "string name = 1",
        "float f = 2",
        "int64 i = 3",
        "bytes s = 4",
        "Tensor t = 5",
        "repeated float floats = 7",
        "repeated int64 ints = 8",
        "repeated bytes strings = 9",
        "int32 type = 20",
    ],
    "Node": [
        "repeated string input = 1",
        "repeated string output = 2",
        "string name = 3",
        "string op_type = 4",
        "repeated Attribute attribute = 5",
    ],
    "Dimension": ["int64 dim_value = 1", "string dim_param = 2"],
    "Shape": ["repeated Dimension dim = 1"],
    "TensorType": ["int32 elem_type = 1", "Shape shape = 2"],
    "Type": ["TensorType tensor_type = 1"],
    "ValueInfo": ["string name = 1", "Type type = 2"],
    "Graph": [
        "repeated Node node = 1",
        "string name = 2",
        "repeated Tensor initializer = 5",
        "repeated ValueInfo input = 11",
        "repeated ValueInfo output = 12",
    ],
    "Model": [
        "int64 ir_version = 1",
        "string producer_name = 2",
        "string producer_version = 3",
        "Graph graph = 7",
        "repeated Opset opset_import = 8",
        "repeated Entry metadata_props = 14",
    ],
}

#: Name of a dtype to its number in ONNX.
DATA_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "string": 8,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}


def _classes() -> dict[str, Any]:
    # A pool of its own: an onnx in the same process registers its messages in the default one.
    file = descriptor_pb2.FileDescriptorProto(name="globalstep_onnx.proto", package="of_onnx", syntax="proto2")
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
                field.type, field.type_name = field_proto.TYPE_MESSAGE, f".of_onnx.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"of_onnx.{name}")) for name in _MESSAGES}


_made = _classes()

#: ModelProto.
Model: Any = _made["Model"]
#: NodeProto.
Node: Any = _made["Node"]
#: AttributeProto.
Attribute: Any = _made["Attribute"]
#: TensorProto.
Tensor: Any = _made["Tensor"]
#: ValueInfoProto.
ValueInfo: Any = _made["ValueInfo"]

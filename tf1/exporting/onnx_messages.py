"""Messages of ONNX models, as far as this package writes them.

Source: onnx/onnx.proto of ONNX 1.16 (IR version 8 and later): names, numbers and types of fields. With these few
messages a model is written without the onnx package, which tests check them with.
"""

from __future__ import annotations

from typing import Any

from globalstep.chief.checkpoints.tf_messages import message_classes

_MESSAGES = {
    "Entry": "string key = 1; string value = 2",
    "Opset": "string domain = 1; int64 version = 2",
    "Tensor": "repeated int64 dims = 1; int32 data_type = 2; repeated bytes string_data = 6; string name = 8; "
    "bytes raw_data = 9; repeated Entry external_data = 13; int32 data_location = 14",
    "Attribute": "string name = 1; float f = 2; int64 i = 3; bytes s = 4; Tensor t = 5; repeated float floats = 7; "
    "repeated int64 ints = 8; repeated bytes strings = 9; int32 type = 20",
    "Node": "repeated string input = 1; repeated string output = 2; string name = 3; string op_type = 4; "
    "repeated Attribute attribute = 5",
    "Dimension": "int64 dim_value = 1; string dim_param = 2",
    "Shape": "repeated Dimension dim = 1",
    "TensorType": "int32 elem_type = 1; Shape shape = 2",
    "Type": "TensorType tensor_type = 1",
    "ValueInfo": "string name = 1; Type type = 2",
    "Graph": "repeated Node node = 1; string name = 2; repeated Tensor initializer = 5; repeated ValueInfo input = 11; "
    "repeated ValueInfo output = 12",
    "Model": "int64 ir_version = 1; string producer_name = 2; string producer_version = 3; Graph graph = 7; "
    "repeated Opset opset_import = 8; repeated Entry metadata_props = 14",
}

#: Name of a dtype to its number in ONNX.
_NAMES = "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64"
DATA_TYPES = {name: number for number, name in enumerate(_NAMES.split(), 1)}


_made = message_classes("of_onnx", "proto2", {name: fields.split("; ") for name, fields in _MESSAGES.items()})

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

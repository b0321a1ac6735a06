"""The protocol buffers of the tensorboard package that events, summaries and graphs are made of.

The one place that imports them. They come without types: their fields are Any.
Importing it costs about 30 ms, so only modules that write or read them do.

Layer: shared. Imports nothing of globalstep.
"""

from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event, SessionLog, TaggedRunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats, NodeExecStats, StepStats
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryDescription
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

__all__ = [
    "DATA_TYPES",
    "AttrValue",
    "DeviceStepStats",
    "Event",
    "GraphDef",
    "HistogramProto",
    "MetaGraphDef",
    "NodeDef",
    "NodeExecStats",
    "RunMetadata",
    "SessionLog",
    "StepStats",
    "Summary",
    "SummaryDescription",
    "TaggedRunMetadata",
    "TensorProto",
    "TensorShapeProto",
]

#: Name of a dtype to its number in TensorFlow's messages.
DATA_TYPES: dict[str, int] = {
    "float16": types_pb2.DT_HALF,
    "float32": types_pb2.DT_FLOAT,
    "float64": types_pb2.DT_DOUBLE,
    "int8": types_pb2.DT_INT8,
    "int16": types_pb2.DT_INT16,
    "int32": types_pb2.DT_INT32,
    "int64": types_pb2.DT_INT64,
    "uint8": types_pb2.DT_UINT8,
    "uint16": types_pb2.DT_UINT16,
    "uint32": types_pb2.DT_UINT32,
    "uint64": types_pb2.DT_UINT64,
    "bool": types_pb2.DT_BOOL,
    "complex64": types_pb2.DT_COMPLEX64,
    "complex128": types_pb2.DT_COMPLEX128,
    "string": types_pb2.DT_STRING,
}

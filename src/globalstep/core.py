"""`globalstep.core`: the paths of TensorFlow's protocol buffers."""

from globalstep.tf1.module_paths import module_paths

_MESSAGES = "gs gs.files.tensorboard_protos"
_EXAMPLES = "gs.train"

_PATHS = {
    "example.example_pb2": _EXAMPLES,
    "example.feature_pb2": _EXAMPLES,
    "framework.attr_value_pb2": _MESSAGES,
    "framework.graph_pb2": _MESSAGES,
    "framework.node_def_pb2": _MESSAGES,
    "framework.step_stats_pb2": _MESSAGES,
    "framework.summary_pb2": _MESSAGES,
    "framework.tensor_pb2": _MESSAGES,
    "framework.tensor_shape_pb2": _MESSAGES,
    "protobuf.cluster_pb2": "gs.train",
    "protobuf.config_pb2": "gs",
    "protobuf.meta_graph_pb2": f"{_MESSAGES} gs.tf1.exporting.signatures:SignatureDef "
    "gs.tf1.exporting.signatures:TensorInfo",
    "protobuf.tensorflow_server_pb2": "gs.train",
    "util.event_pb2": _MESSAGES,
}

__all__ = module_paths(__name__, _PATHS)

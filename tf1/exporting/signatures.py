"""Signatures of a saved model: its inputs and outputs, by names.

Layer: tf1. Source: TensorFlow 1.15 `python/saved_model`: utils_impl.py, signature_def_utils_impl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import SignatureDef, TensorInfo

from globalstep.files.tensorboard_protos import DATA_TYPES
from globalstep.tf1.graph.graph import Graph, Node, as_node, get_default_graph
from globalstep.tf1.graph.graph_def import shape_proto

_METHODS = {name: f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")}


def build_tensor_info(tensor: Any) -> TensorInfo:
    """Describe a node for a signature: name, dtype and shape.

    Args:
        tensor: A node, or what stands for one.

    Returns:
        A TensorInfo.
    """
    node = as_node(tensor)
    return TensorInfo(name=node.name, dtype=DATA_TYPES[node.dtype.name], tensor_shape=shape_proto(node.shape))


def get_tensor_from_tensor_info(tensor_info: Any, graph: Graph | None = None, import_scope: str | None = None) -> Node:
    """Give the node that a TensorInfo describes.

    Args:
        tensor_info: A TensorInfo.
        graph: Where it is; default the default graph.
        import_scope: The scope that it was imported under.

    Raises:
        KeyError: If the graph has none of that name.
    """
    name = f"{import_scope}/{tensor_info.name}" if import_scope else tensor_info.name
    return (graph if graph is not None else get_default_graph()).get_tensor_by_name(name)


def build_signature_def(
    inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None, method_name: str | None = None
) -> SignatureDef:
    """Make a signature.

    Args:
        inputs: Name -> TensorInfo of an input.
        outputs: Name -> TensorInfo of what the model gives.
        method_name: One of `gs.saved_model.signature_constants`.

    Returns:
        A SignatureDef.
    """
    signature = SignatureDef()
    for infos, field in ((inputs, signature.inputs), (outputs, signature.outputs)):
        for name, info in (infos or {}).items():
            field[name].CopyFrom(info)
    if method_name is not None:
        signature.method_name = method_name
    return signature


def predict_signature_def(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> SignatureDef:
    """Make the signature of a prediction.

    Args:
        inputs: Name -> node that is fed.
        outputs: Name -> node that is wanted.

    Returns:
        A SignatureDef.

    Raises:
        ValueError: If there are none of either.
    """
    for nodes, word in ((inputs, "inputs"), (outputs, "outputs")):
        if not nodes:
            raise ValueError(f"Prediction {word} cannot be None or empty.")
    return build_signature_def(
        {name: build_tensor_info(node) for name, node in inputs.items()},
        {name: build_tensor_info(node) for name, node in outputs.items()},
        _METHODS["predict"],
    )


def classification_signature_def(examples: Any, classes: Any, scores: Any) -> SignatureDef:
    """Make the signature of a classification.

    Args:
        examples: String node of serialized examples.
        classes: String node of classes, or None.
        scores: float32 node of scores, or None.

    Returns:
        A SignatureDef.

    Raises:
        ValueError: If a node has another dtype, or both are None.
    """
    if examples is None:
        raise ValueError("Classification examples cannot be None.")
    _require_dtype("Classification input tensors", examples, "string")
    outputs = {}
    if classes is not None:
        outputs["classes"] = _require_dtype("Classification classes", classes, "string")
    if scores is not None:
        outputs["scores"] = _require_dtype("Classification scores", scores, "float32")
    if not outputs:
        raise ValueError("Classification classes and scores cannot both be None.")
    return build_signature_def({"inputs": build_tensor_info(examples)}, outputs, _METHODS["classify"])


def regression_signature_def(examples: Any, predictions: Any) -> SignatureDef:
    """Make the signature of a regression.

    Args:
        examples: String node of serialized examples.
        predictions: float32 node of predictions.

    Returns:
        A SignatureDef.

    Raises:
        ValueError: If a node is missing or has another dtype.
    """
    if examples is None or predictions is None:
        raise ValueError(f"Regression {'examples' if examples is None else 'predictions'} cannot be None.")
    _require_dtype("Regression input tensors", examples, "string")
    outputs = {"outputs": _require_dtype("Regression output tensors", predictions, "float32")}
    return build_signature_def({"inputs": build_tensor_info(examples)}, outputs, _METHODS["regress"])


def is_valid_signature(signature_def: Any) -> bool:
    """Say whether a signature has inputs and outputs, and a method that there is."""
    return bool(
        signature_def is not None
        and signature_def.inputs
        and signature_def.outputs
        and signature_def.method_name in _METHODS.values()
    )


def _require_dtype(what: str, value: Any, dtype: str) -> TensorInfo:
    node = as_node(value)
    if node.dtype.name != dtype:
        raise ValueError(f"{what} must be of type {dtype}; {node.name!r} is of type {node.dtype.name}.")
    return build_tensor_info(node)

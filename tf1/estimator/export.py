"""Inputs of an exported model that is served: their receivers, and functions that make them.

Layer: tf1. Source of names and texts: TensorFlow 1.15 `tf.estimator.export`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.parsing_ops import parse_example


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_Receiver):
    """Inputs of a served model, and the features that are made of them.

    Args:
        features: For the model function: a dict of nodes; a single one is named "feature".
        receiver_tensors: What a request brings: a dict of nodes; a single one is named "input".
        receiver_tensors_alternatives: Further sets of nodes that a request may bring in their place, by name.

    Raises:
        ValueError: If something is missing, or is no node.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Mapping[str, Any] | None = None
    ) -> ServingInputReceiver:
        """Check what is given."""
        return super().__new__(
            cls,
            _tensors(features, "feature", "feature"),
            _tensors(receiver_tensors, "input", "receiver_tensor"),
            _alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_Receiver):
    """A ServingInputReceiver for a model function whose features are one node.

    Args:
        features: The node.
        receiver_tensors: As for ServingInputReceiver.
        receiver_tensors_alternatives: As for ServingInputReceiver.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Mapping[str, Any] | None = None
    ) -> TensorServingInputReceiver:
        """Check what is given."""
        if features is None:
            raise ValueError("features must be defined.")
        if isinstance(features, dict):
            raise ValueError("feature must be a Tensor or SparseTensor; for a dict there is ServingInputReceiver.")
        return super().__new__(
            cls,
            _tensors(features, "feature", "feature")["feature"],
            _tensors(receiver_tensors, "input", "receiver_tensor"),
            _alternatives(receiver_tensors_alternatives),
        )


def _tensors(nodes: Any, single: str, what: str) -> dict[Any, Any]:
    if nodes is None:
        raise ValueError(f"{what}s must be defined.")
    tensors = nodes if isinstance(nodes, dict) else {single: nodes}
    for name, value in tensors.items():
        if not isinstance(name, str) and not (what == "feature" and isinstance(name, int)):
            raise ValueError(f"{what} keys must be strings: {name}.")
        if not isinstance(value, (Node, SparseTensor)):
            raise ValueError(f"{what} {name} must be a Tensor or SparseTensor.")
    return tensors


def _alternatives(alternatives: Any) -> dict[str, dict[str, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives}.")
    return {name: _tensors(tensors, "input", "receiver_tensors_alternative") for name, tensors in alternatives.items()}


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that makes a receiver of serialized `Example`s, which are parsed into features.

    Args:
        feature_spec: As for `gs.parse_example`.
        default_batch_size: How many a request has; None for any number.
    """

    def receive() -> ServingInputReceiver:
        examples = placeholder("string", [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(parse_example(examples, feature_spec), {"examples": examples})

    return receive


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a function that makes a receiver of features as they are.

    Args:
        features: Name -> node, whose dtype, name and shape but for the batch a request's has.
        default_batch_size: How many examples a request has; None for any number.
    """
    # Nodes are of a graph that is gone when the function is called.
    kinds = {
        name: (node.dtype, [default_batch_size, *node.shape.as_list()[1:]], node.op.name)
        for name, node in features.items()
    }

    def receive() -> ServingInputReceiver:
        made = {name: placeholder(dtype, shape, own) for name, (dtype, shape, own) in kinds.items()}
        return ServingInputReceiver(dict(made), dict(made))

    return receive

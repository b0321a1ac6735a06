"""Summaries of whole collections: `tf.contrib.layers.summarize_*`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/summaries.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, Node, get_collection
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.reduction_ops import reduce_mean
from globalstep.tf1.ops.summary_ops import histogram, scalar

_Summarizer = Callable[..., Node | None]


def summarize_tensor(tensor: Node, tag: str | None = None) -> Node | None:
    """Make a summary of a value: of a number if it is one, else a histogram; None for strings and bools.

    Args:
        tensor: A node.
        tag: Its tag; default "<name>_summary".
    """
    if tensor.dtype.name in ("string", "bool"):
        return None
    name = tag or f"{tensor.op_name}_summary"
    return scalar(name, tensor) if tensor.shape.ndims == 0 else histogram(name, tensor)


def summarize_activation(op: Node) -> Node:
    """Make a histogram of a value, and for a rectified one a summary of how much of it is cut off.

    Args:
        op: A node.
    """
    if op.op_type in ("Relu", "Softplus", "Relu6"):
        _share(math_ops.less(op.inputs[0], 0.0), f"{op.op_name}/zeros")
    if op.op_type == "Relu6":
        _share(math_ops.greater(op.inputs[0], 6.0), f"{op.op_name}/sixes")
    return histogram(f"{op.op_name}/activation", op)


def summarize_tensors(tensors: Sequence[Node], summarizer: _Summarizer = summarize_tensor) -> list[Node | None]:
    """Make a summary of each of `tensors` by `summarizer`."""
    return [summarizer(tensor) for tensor in tensors]


def summarize_collection(
    collection: str, name_filter: str | None = None, summarizer: _Summarizer = summarize_tensor
) -> list[Node | None]:
    """Make a summary of each member of a collection.

    Args:
        collection: Its name.
        name_filter: Only of those whose name matches this regular expression from its start.
        summarizer: Makes a summary of a node.
    """
    members = get_collection(collection)
    return summarize_tensors([one for one in members if _fits(one, name_filter)], summarizer)


def summarize_activations(
    name_filter: str | None = None, summarizer: _Summarizer = summarize_activation
) -> list[Node | None]:
    """Make summaries of the collection ACTIVATIONS; see `summarize_collection`."""
    return summarize_collection(GraphKeys.ACTIVATIONS, name_filter, summarizer)


def summarize_variables(
    name_filter: str | None = None, summarizer: _Summarizer = summarize_tensor
) -> list[Node | None]:
    """Make summaries of the collection GLOBAL_VARIABLES; see `summarize_collection`."""
    return summarize_collection(GraphKeys.GLOBAL_VARIABLES, name_filter, summarizer)


def summarize_weights(name_filter: str | None = None, summarizer: _Summarizer = summarize_tensor) -> list[Node | None]:
    """Make summaries of the collection WEIGHTS; see `summarize_collection`."""
    return summarize_collection(GraphKeys.WEIGHTS, name_filter, summarizer)


def summarize_biases(name_filter: str | None = None, summarizer: _Summarizer = summarize_tensor) -> list[Node | None]:
    """Make summaries of the collection BIASES; see `summarize_collection`."""
    return summarize_collection(GraphKeys.BIASES, name_filter, summarizer)


def _share(holds: Node, tag: str) -> None:
    scalar(tag, reduce_mean(math_ops.cast(holds, "float32")))


def _fits(one: Any, name_filter: str | None) -> bool:
    return name_filter is None or re.match(name_filter, one.op_name) is not None

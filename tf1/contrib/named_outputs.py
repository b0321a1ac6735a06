"""Outputs of layers by name: what `tf.contrib.slim.utils` gives of a collection of them.

Follows TensorFlow 1.15, contrib/layers/python/layers/utils.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from globalstep.tf1.graph.graph import Node, add_to_collections, get_collection, get_collection_ref


def append_tensor_alias(tensor: Any, alias: str) -> Any:
    """Give a node another name, besides those that it has; a "/" at its end is dropped.

    Args:
        tensor: The node.
        alias: The name.

    Returns:
        The node.
    """
    tensor.aliases = [*getattr(tensor, "aliases", ()), alias.removesuffix("/")]
    return tensor


def get_tensor_aliases(tensor: Any) -> list[str]:
    """Give the names that a node was given; if there are none, its own without ":0"."""
    return list(getattr(tensor, "aliases", None) or [tensor.op_name])


def gather_tensors_aliases(tensors: Sequence[Any]) -> list[str]:
    """Give the names of several nodes; see `get_tensor_aliases`."""
    return [alias for tensor in tensors for alias in get_tensor_aliases(tensor)]


def collect_named_outputs(collections: Any, alias: str, outputs: Node) -> Node:
    """Give a node a name, and add it to collections.

    Args:
        collections: A name, several, or None for none.
        alias: The node's name.
        outputs: The node.

    Returns:
        The node.
    """
    if collections:
        append_tensor_alias(outputs, alias)
        add_to_collections(collections, outputs)
    return outputs


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> OrderedDict[str, Any]:
    """Give the nodes of a collection by their names, in its order.

    Args:
        collection: Its name.
        clear_collection: Whether it is empty afterwards.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default():
    ...     net = gs.contrib.slim.fully_connected(gs.zeros([1, 2]), 3, scope="fc1", outputs_collections="outputs")
    ...     list(gs.contrib.slim.utils.convert_collection_to_dict("outputs"))
    ['fc1']
    """
    tensors = OrderedDict(
        (alias, tensor) for tensor in get_collection(collection) for alias in get_tensor_aliases(tensor)
    )
    if clear_collection:
        get_collection_ref(collection).clear()
    return tensors


def last_dimension(shape: Any, min_rank: int = 1) -> int:
    """Give the size of the last axis of a static shape.

    Args:
        shape: The shape.
        min_rank: How many axes it has at least.

    Raises:
        ValueError: If it has fewer, or the size is not known.
    """
    if shape.ndims is None:
        raise ValueError("dims of shape must be known but is None")
    if shape.ndims < min_rank:
        raise ValueError(f"rank of shape must be at least {min_rank} not: {shape.ndims}")
    size = shape.as_list()[-1]
    if size is None:
        raise ValueError("last dimension shape must be known but is None")
    return int(size)

"""Fetches and feeds of a run: nested structures, flattened to nodes; and the values of what was fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from globalstep.dtypes import string_array
from globalstep.tf1.execution.plan import EMPTY, Plan
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue

Rebuild = Callable[[Sequence[Any]], Any]


class Fetches:
    """Takes the fetches of runs apart; how, it remembers of those that are all nodes. Thread-safe.

    Args:
        graph: The graph that they are in.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # What `_form_of` gives -> what `flatten` does. It only grows, and what it is of the graph keeps anyway.
        self._known: dict[Any, tuple[tuple[Node, ...], Rebuild]] = {}

    def flatten(self, fetches: Any) -> tuple[tuple[Node, ...], Rebuild]:
        """Take fetches apart as the function `flatten` does."""
        form = _form_of(fetches)
        try:
            pair = self._known.get(form)
        except TypeError:  # something in it cannot be looked up
            return flatten(fetches, self._graph)
        if pair is None:
            pair = flatten(fetches, self._graph)
            if _is_of_nodes(fetches):
                self._known[form] = pair
        return pair


def _form_of(fetches: Any) -> Any:
    """Give what is the same for fetches of the same structure and nodes, where `_is_of_nodes` holds for them."""
    kind = type(fetches)
    if kind is list or kind is tuple:
        return (kind, *fetches)
    if kind is dict:
        return (kind, *fetches, *map(_form_of, fetches.values()))
    return fetches


def _is_of_nodes(fetches: Any) -> bool:
    """Whether fetches are a node, a list or tuple of nodes, or a dict of these, as nearly always."""
    kind = type(fetches)
    if kind is list or kind is tuple:
        return all(isinstance(item, Node) for item in fetches)
    if kind is dict:
        return all(type(item) is not dict and _is_of_nodes(item) for item in fetches.values())
    return isinstance(fetches, Node)


def flatten(fetches: Any, graph: Graph) -> tuple[tuple[Node, ...], Rebuild]:
    """Take fetches apart.

    Args:
        fetches: A node, operation, name, IndexedSlices, object with `__node__`, or a list, tuple,
            namedtuple or dict of such, nested at will.
        graph: The graph that they are in.

    Returns:
        The nodes, and a function from their values to the shape of `fetches`.

    Raises:
        TypeError: If something is no fetch.
        ValueError: If it is not in the graph.
    """
    if isinstance(fetches, Node) and fetches.graph is graph:
        return (fetches,), itemgetter(0)
    nodes: list[Node] = []
    rebuild = _flatten(fetches, graph, nodes)
    return tuple(nodes), rebuild


def _flatten(fetch: Any, graph: Graph, nodes: list[Node]) -> Rebuild:
    if isinstance(fetch, Node) and fetch.graph is graph:
        nodes.append(fetch)
        return itemgetter(len(nodes) - 1)
    if isinstance(fetch, IndexedSlices):
        parts = [_flatten(part, graph, nodes) for part in (fetch.values, fetch.indices)]
        shape = fetch.dense_shape
        return lambda values: IndexedSlices(parts[0](values), parts[1](values), shape)
    if isinstance(fetch, SparseTensor):
        three = [_flatten(part, graph, nodes) for part in (fetch.indices, fetch.values, fetch.dense_shape)]
        return lambda values: SparseTensorValue(*[part(values) for part in three])
    if type(fetch) is list and fetch and all(isinstance(item, Node) and item.graph is graph for item in fetch):
        nodes.extend(fetch)
        return itemgetter(slice(len(nodes) - len(fetch), len(nodes)))
    if isinstance(fetch, (list, tuple)):
        items = [_flatten(item, graph, nodes) for item in fetch]
        kind: Any = type(fetch)
        if hasattr(fetch, "_fields"):
            return lambda values: kind(*[item(values) for item in items])
        return lambda values: kind([item(values) for item in items])
    if isinstance(fetch, Mapping):
        keyed = {key: _flatten(item, graph, nodes) for key, item in fetch.items()}
        kind = type(fetch)
        if kind is dict:
            return lambda values: {key: item(values) for key, item in keyed.items()}
        return lambda values: kind((key, item(values)) for key, item in keyed.items())
    nodes.append(_node(fetch, graph))
    return itemgetter(len(nodes) - 1)


def _node(fetch: Any, graph: Graph) -> Node:
    if fetch is None:
        raise TypeError(f"Fetch argument {fetch!r} has invalid type {type(fetch)!r}")
    try:
        return graph.as_graph_element(fetch)
    except TypeError as error:
        raise TypeError(
            f"Fetch argument {fetch!r} has invalid type {type(fetch)!r}, must be a string or Tensor. ({error})"
        ) from None
    except (ValueError, KeyError) as error:
        text = error.args[0] if error.args else error
        raise ValueError(f"Fetch argument {fetch!r} cannot be interpreted as a Tensor. ({text})") from None


def feeds_of(feed_dict: Mapping[Any, Any], graph: Graph) -> dict[Node, Any]:
    """Take feeds apart and check them.

    Args:
        feed_dict: Node, Variable or name to the value to take for it. Keys and values may be nested lists
            or tuples of the same structure.
        graph: The graph that the keys are in.

    Returns:
        Node to array.

    Raises:
        TypeError: If a key is no node of the graph, or a value is a node or does not fit the dtype.
        ValueError: If a value does not fit the node's shape.
    """
    feeds: dict[Node, Any] = {}
    for key, value in feed_dict.items():
        _add_feed(key, value, graph, feeds)
    return feeds


def _add_feed(key: Any, value: Any, graph: Graph, feeds: dict[Node, Any]) -> None:
    if isinstance(key, IndexedSlices):
        pair = (value.values, value.indices) if isinstance(value, IndexedSlices) else value
        _add_feed(key.values, pair[0], graph, feeds)
        _add_feed(key.indices, pair[1], graph, feeds)
        return
    if isinstance(key, SparseTensor):
        if not isinstance(value, tuple | list) or len(value) != 3:
            raise TypeError(f"A SparseTensor is fed with a SparseTensorValue, or three arrays, not {value!r}.")
        indices, filled, sizes = value
        rank = len(np.asarray(sizes).reshape(-1))
        _add_feed(key.indices, np.asarray(indices, np.int64).reshape(-1, rank), graph, feeds)
        _add_feed(key.values, filled, graph, feeds)
        if key.dense_shape.op_type == "Const":
            if list(np.asarray(sizes).reshape(-1)) != key.shape.as_list():
                raise ValueError(
                    f"Cannot feed a value of dense_shape {list(sizes)} for {key!r}, which has {key.shape}."
                )
        else:
            _add_feed(key.dense_shape, sizes, graph, feeds)
        return
    if isinstance(key, tuple):
        for inner, item in zip(key, value, strict=True):
            _add_feed(inner, item, graph, feeds)
        return
    try:
        node = graph.as_graph_element(key)
    except (TypeError, ValueError, KeyError) as error:
        text = error.args[0] if error.args else error
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {text}") from None
    if isinstance(value, Node):
        raise TypeError(
            "The value of a feed cannot be a tf.Tensor object. Acceptable feed values include Python scalars, "
            "strings, lists, numpy ndarrays, or TensorHandles. For reference, the tensor object was "
            f"{value!r} which was passed to the feed with key {key!r}."
        )
    feeds[node] = _fitting(node, value)


def _fitting(node: Node, value: Any) -> Any:
    try:
        dtype, shape = node.dtype.as_numpy_dtype, node.shape
    except ValueError:
        # What is not known before a run cannot be checked before it either.
        return np.asarray(value)
    if type(value) is int and node.dtype.is_integer and not node.dtype.min <= value <= node.dtype.max:
        raise TypeError(
            f"Type of feed value {value} with type {type(value)} is not compatible with Tensor type "
            f"{node.dtype.name}. Try explicitly setting the type of the feed tensor to a larger type "
            "(e.g. int64)."
        )
    try:
        array = string_array(value) if dtype is object else np.asarray(value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} [fed to {node.name!r} of dtype {node.dtype.name}]") from None
    dims = shape.dims
    if dims is not None and (
        len(dims) != array.ndim
        or not all(dim.value is None or dim.value == size for dim, size in zip(dims, array.shape, strict=True))
    ):
        raise ValueError(
            f"Cannot feed value of shape {array.shape!r} for Tensor {node.name!r}, which has shape "
            f"'{TensorShape(shape)}'"
        )
    return array


def fetched(plan: Plan, values: Sequence[Any], feeds: Mapping[Node, Any]) -> list[Any]:
    """Give the value of each of a plan's fetches; None for an operation, and for what was not come to.

    Args:
        plan: The plan.
        values: The slots of a run.
        feeds: What was fed: the program may write into that array again, and keep the value.
    """
    constants = plan.constants
    results: list[Any] = [
        None if slot is None or (value := values[slot]) is EMPTY else _owned(value, constants[slot])
        for slot in plan.fetches
    ]
    for fed in feeds.values():
        results = [value.copy() if _is_view(value, fed) else value for value in results]
    return results


def _is_view(value: Any, fed: Any) -> bool:
    return isinstance(value, np.ndarray) and isinstance(fed, np.ndarray) and np.may_share_memory(value, fed)


def _owned(value: Any, constant: Any) -> Any:
    """Give a value that the caller may keep and write into; numbers as numpy scalars."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value[()]
        return value.copy() if not value.flags.writeable or value is constant else value
    if isinstance(value, tuple):
        return type(value)(*map(_each_owned, value)) if hasattr(value, "_fields") else tuple(map(_each_owned, value))
    if isinstance(value, bool | int | float | complex):
        return np.asarray(value)[()]
    return value


def _each_owned(value: Any) -> Any:
    return _owned(value, None)

"""Evaluates nodes in tests without a session: inputs first, each node once."""

import numpy as np

from globalstep.tf1.graph.indexed_slices import IndexedSlices


def evaluate(fetch, feeds=None):
    """Give the value of a node or of IndexedSlices, or of a list or tuple of them.

    Variables are fed like placeholders.
    """
    fed = {node: np.asarray(value, dtype=node.dtype.as_numpy_dtype) for node, value in (feeds or {}).items()}
    values = dict(fed)

    def value_of(node):
        if node in values:
            return values[node]
        for control in node.control_inputs:
            value_of(control)
        if "both" in node.attrs and node.attrs["of"] not in fed:
            of = node.attrs["of"]
            with np.errstate(all="ignore"):
                value, values[node] = node.attrs["both"](*(value_of(source) for source in node.inputs))
            values.setdefault(of, value)
            return values[node]
        if node.fn is None and node.is_operation:
            values[node] = None
            return None
        if node.fn is None:
            raise AssertionError(f"{node!r} has no value: feed it")
        with np.errstate(all="ignore"):
            values[node] = node.fn(*(value_of(source) for source in node.inputs))
        return values[node]

    def resolve(item):
        if isinstance(item, (list, tuple)):
            parts = [resolve(part) for part in item]
            return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
        if isinstance(item, IndexedSlices):
            return IndexedSlices(resolve(item.values), resolve(item.indices), item.dense_shape)
        return None if item is None else value_of(item)

    return resolve(fetch)

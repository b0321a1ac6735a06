"""Parsing of tf.train.SequenceExample: its context, and its lists of features.

Layer: tf1. Source of texts: TensorFlow 1.15, core/util/example_proto_fast_parsing.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data.example import SequenceExample
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.parsing_ops import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    check_dtypes,
    dense_of,
    outputs_of,
    sparse_parts,
    values_in,
)


def parse_single_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized `SequenceExample` message.

    Args:
        serialized: A scalar string.
        context_features: Name to FixedLenFeature or VarLenFeature, of what is said once.
        sequence_features: Name to FixedLenSequenceFeature or VarLenFeature, of lists.
        example_name: Accepted as in TensorFlow.
        name: Name of the node; default "ParseSingleSequenceExample".

    Returns:
        Of the context, name to node of the feature's shape, or to SparseTensor [values]; of the lists, name to node
        [entries, *shape], or to SparseTensor [entries, longest].

    Raises:
        ValueError: Without features, or for one of another kind or dtype.
        InvalidArgumentError: When run, if it does not parse, lacks a feature or has other values.
    """
    context, lists = dict(context_features or {}), dict(sequence_features or {})
    if not context and not lists:
        raise ValueError("Missing features.")
    check_dtypes({**context, **lists})
    _check_kinds(context, (FixedLenFeature, VarLenFeature))
    _check_kinds(lists, (FixedLenSequenceFeature, VarLenFeature))
    op_type, attrs = "ParseSingleSequenceExample", {"context": context, "lists": lists}
    node = Node(op_type, [as_node(serialized, "string")], name=name or op_type, attrs=attrs)
    said = outputs_of(node, context, 0, [], 1)
    places = sum(3 if isinstance(feature, VarLenFeature) else 1 for feature in context.values())
    return said, outputs_of(node, lists, places, [], 2)


@computes("ParseSingleSequenceExample")
def _parse(value: Any, *, context: Any, lists: Any) -> Any:
    data = np.asarray(value, dtype=object).reshape(-1)[0]
    try:
        example = SequenceExample.FromString(data.encode() if isinstance(data, str) else data)
    except DecodeError:
        raise InvalidArgumentError("Could not parse example input: no SequenceExample message") from None
    parsed: list[Any] = []
    for key, feature in context.items():
        held = example.context.feature
        columns = [values_in(held[key], key, feature, 0) if key in held else None]
        if isinstance(feature, VarLenFeature):
            parsed.extend(sparse_parts(columns, feature, batched=False))
        else:
            parsed.append(dense_of(columns, key, feature, batched=False))
    for key, feature in lists.items():
        columns = _entries(example, key, feature)
        if isinstance(feature, VarLenFeature):
            parsed.extend(sparse_parts(columns, feature, batched=True))
        else:
            parsed.append(dense_of(columns, key, FixedLenFeature(feature.shape, feature.dtype), batched=True))
    return tuple(parsed)


def _check_kinds(features: Mapping[str, Any], kinds: tuple[type, ...]) -> None:
    for feature in features.values():
        if not isinstance(feature, kinds):
            raise ValueError(f"Unsupported {type(feature).__name__} {feature}.")


def _entries(example: Any, key: str, feature: Any) -> list[list[Any] | None]:
    """Give the values of each entry of a list; no entries where the example has none and may."""
    held = example.feature_lists.feature_list
    if key not in held:
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise InvalidArgumentError(
                f"Name: <unknown>, Feature list '{key}' is required but could not be found. Did you mean to include it "
                "in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )
        return []
    entries = [values_in(entry, key, feature, place) for place, entry in enumerate(held[key].feature)]
    if isinstance(feature, VarLenFeature):
        return list(entries)
    wanted = TensorShape(feature.shape).num_elements()
    for place, entry in enumerate(entries):
        if len(entry or ()) != wanted:
            raise InvalidArgumentError(
                f"Name: <unknown>, Key: {key}, Index: {place}.  Number of values != expected.  values size: "
                f"{len(entry or ())} but output shape: {TensorShape(feature.shape)} ({as_dtype(feature.dtype).name})"
            )
    return list(entries)

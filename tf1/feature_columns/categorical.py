"""Columns that give ids: by hash, as they are, crossed, weighted; graph files may name what is here.

Layer: tf1. Source: TensorFlow 1.15 `tf.feature_column`; the hash of crosses: `FingerprintCat64` of TensorFlow's
`core/platform/fingerprint.h`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.feature_columns.column import (
    CategoricalColumn,
    Features,
    Ids,
    KeyedColumn,
    require_discrete,
    require_key,
)
from globalstep.tf1.graph.graph import Node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.indexing_ops import gather_nd
from globalstep.tf1.ops.parsing_ops import VarLenFeature
from globalstep.tf1.text.fingerprints import fingerprint64
from globalstep.tf1.text.string_numbers import as_string
from globalstep.tf1.text.string_ops import as_bytes, string_to_hash_bucket_fast


def _with_values(sparse: SparseTensor, values: Node) -> SparseTensor:
    return SparseTensor(sparse.indices, values, sparse.dense_shape)


@dataclass(frozen=True)
class _HashedCategoricalColumn(KeyedColumn):
    hash_bucket_size: int
    dtype: Any

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    @property
    def parsed_dtype(self) -> DType:
        return as_dtype(self.dtype)

    def ids_of(self, features: Features) -> Ids:
        sparse = self.values_of(features)
        text = sparse.values if sparse.dtype.name == "string" else as_string(sparse.values)
        return Ids(_with_values(sparse, string_to_hash_bucket_fast(text, self.hash_bucket_size)))


@dataclass(frozen=True)
class _IdentityCategoricalColumn(KeyedColumn):
    number: int
    default_value: int | None

    @property
    def num_buckets(self) -> int:
        return self.number

    def ids_of(self, features: Features) -> Ids:
        sparse = features.sparse(self.key)
        if not sparse.dtype.is_integer:
            raise ValueError(f"Invalid input, not integer. key: {self.key} dtype: {sparse.dtype.name}")
        attrs = {"key": self.key, "number": self.number, "default": self.default_value}
        ids = Node("IdsInRange", (sparse.values,), name="Identity", dtype="int64", shape=[None], attrs=attrs)
        return Ids(_with_values(sparse, ids))


@computes("IdsInRange")
def _ids_in_range(values: Any, *, key: Any, number: Any, default: Any) -> Any:
    ids = np.asarray(values).astype(np.int64)
    wrong = (ids < 0) | (ids >= number)
    if default is not None:
        return np.where(wrong, default, ids)
    if wrong.any():
        raise InvalidArgumentError(
            f"Ids of column {key!r} must be at least 0 and less than num_buckets {number}; "
            f"got {ids[wrong][0]}. Give a default_value for those beyond."
        )
    return ids


@dataclass(frozen=True)
class _WeightedCategoricalColumn(CategoricalColumn):
    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: Any

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        weights = {self.weight_feature_key: VarLenFeature(as_dtype(self.dtype))}
        return {**self.categorical_column.parse_example_spec, **weights}

    @property
    def num_buckets(self) -> int:
        return self.categorical_column.num_buckets

    def ids_of(self, features: Features) -> Ids:
        ids = features.ids(self.categorical_column).ids
        weights = features.raw(self.weight_feature_key)
        if not isinstance(weights, SparseTensor):
            # A weight for each id: where the ids are, in their order.
            weights = _with_values(ids, gather_nd(weights, ids.indices))
        return Ids(ids, weights)


@dataclass(frozen=True)
class _CrossedColumn(CategoricalColumn):
    keys: tuple[Any, ...]
    hash_bucket_size: int
    hash_key: int

    @property
    def name(self) -> str:
        return "_X_".join(sorted(key if isinstance(key, str) else key.name for key in self.leaves))

    @property
    def leaves(self) -> tuple[Any, ...]:
        """The keys and columns that are crossed, those of crosses within included."""
        parts = [key.leaves if isinstance(key, _CrossedColumn) else (key,) for key in self.keys]
        return tuple(itertools.chain.from_iterable(parts))

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        for key in self.keys:
            spec.update({key: VarLenFeature("string")} if isinstance(key, str) else key.parse_example_spec)
        return spec

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    def ids_of(self, features: Features) -> Ids:
        parts = [
            features.sparse(key, whole=True) if isinstance(key, str) else features.ids(key).ids for key in self.leaves
        ]
        inputs = [node for part in parts for node in (part.indices, part.values, part.dense_shape)]
        options = {"hash_key": self.hash_key, "hash_bucket_size": self.hash_bucket_size}
        made = Node("SparseCross", inputs, attrs={"tuple": True, "stops_gradient": True, **options})
        return Ids(
            SparseTensor(
                tuple_item(made, 0, dtype="int64", shape=[None, 2]),
                tuple_item(made, 1, dtype="int64", shape=[None]),
                tuple_item(made, 2, dtype="int64", shape=[2]),
            )
        )


@computes("SparseCross")
def _cross(*arrays: Any, hash_key: Any, hash_bucket_size: Any) -> Any:
    rows = int(max(arrays[2][0], 0))
    hashes = [_by_row(rows, *arrays[at : at + 2]) for at in range(0, len(arrays), 3)]
    places, ids = [], []
    for row in range(rows):
        for column, chosen in enumerate(itertools.product(*(each[row] for each in hashes))):
            crossed = hash_key
            for one in chosen:
                crossed = _joined(crossed, one)
            places.append((row, column))
            ids.append(crossed % hash_bucket_size)
    width = max((column + 1 for _, column in places), default=0)
    return (
        np.array(places, np.int64).reshape(-1, 2), np.array(ids, np.int64), np.array([rows, width], np.int64)
    )  # fmt: skip


_FACTOR = 0xC6A4A7935BD1E995
_WORD = (1 << 64) - 1


def _shifted(value: int) -> int:
    return value ^ (value >> 47)


def _joined(first: int, second: int) -> int:
    """Give the fingerprint of two fingerprints, one after the other."""
    result = first ^ _FACTOR
    result ^= _shifted(second * _FACTOR & _WORD) * _FACTOR & _WORD
    result = result * _FACTOR & _WORD
    return _shifted(_shifted(result) * _FACTOR & _WORD)


def _by_row(rows: int, places: Any, values: Any) -> list[list[int]]:
    """Give the fingerprints of each row's values; those of integers are themselves."""
    fingerprints: list[list[int]] = [[] for _ in range(rows)]
    text = values.dtype == object
    for row, value in zip(places[:, 0], values, strict=True):
        fingerprints[row].append(fingerprint64(as_bytes(value)) if text else int(value) & _WORD)
    return fingerprints


def categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: DTypeLike = "string"
) -> CategoricalColumn:
    """Make the column whose ids are hashes of a feature.

    Args:
        key: Name of the feature.
        hash_bucket_size: How many ids there are.
        dtype: string, or an integer dtype.

    Raises:
        ValueError: For another dtype, or no ids.
    """
    if hash_bucket_size is None:
        raise ValueError(f"hash_bucket_size must be set. key: {key}")
    if hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be at least 1. hash_bucket_size: {hash_bucket_size}, key: {key}")
    require_discrete(dtype, key)
    return _HashedCategoricalColumn(require_key(key), hash_bucket_size, as_dtype(dtype).name)


def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> CategoricalColumn:
    """Make the column whose ids are a feature as it is.

    Args:
        key: Name of the feature, of integers.
        num_buckets: How many ids there are.
        default_value: The id of values that are below 0 or too large; None to have the run fail.

    Raises:
        ValueError: For no ids, or a default beyond them.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets {num_buckets} < 1, column_name {key}")
    if default_value is not None and not 0 <= default_value < num_buckets:
        raise ValueError(f"default_value {default_value} not in range [0, {num_buckets}), column_name {key}")
    return _IdentityCategoricalColumn(require_key(key), num_buckets, default_value)


def weighted_categorical_column(
    categorical_column: CategoricalColumn, weight_feature_key: str, dtype: DTypeLike = "float32"
) -> CategoricalColumn:
    """Make the column whose ids are another's, each with a weight that is a feature.

    Args:
        categorical_column: The column that gives the ids.
        weight_feature_key: Name of the feature that has a weight for each id.
        dtype: Floating dtype of the weights.

    Raises:
        ValueError: For a dtype that is neither floating nor of integers.
    """
    kind = as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype {kind.name} is not convertible to float.")
    return _WeightedCategoricalColumn(categorical_column, weight_feature_key, kind.name)


def crossed_column(keys: Sequence[Any], hash_bucket_size: int, hash_key: int | None = None) -> CategoricalColumn:
    """Make the column whose ids are hashes of values of several features together.

    Args:
        keys: At least two: names of features, or categorical columns that do not hash.
        hash_bucket_size: How many ids there are.
        hash_key: What the hash begins with; default that of TensorFlow.

    Raises:
        ValueError: For fewer keys, a column that hashes, or no ids.
    """
    if not hash_bucket_size or hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be > 1. hash_bucket_size: {hash_bucket_size}")
    if not keys or len(keys) < 2:
        raise ValueError(f"keys must be a list with length > 1. Given: {keys}")
    for key in keys:
        if not isinstance(key, (str, CategoricalColumn)):
            raise ValueError(
                f"Unsupported key type. All keys must be either string, or categorical column. Given: {key}"
            )
        if isinstance(key, _HashedCategoricalColumn):
            raise ValueError(
                "categorical_column_with_hash_bucket is not supported for crossing. Hashing before crossing will "
                f"increase probability of collision. Instead, use the feature name as a string. Given: {key}"
            )
    return _CrossedColumn(tuple(keys), hash_bucket_size, 0xDECAFCAFFE if hash_key is None else hash_key)

"""Columns whose ids are places in a vocabulary: a list, or a file, which is opened to count its lines.

Layer: tf1. Source: TensorFlow 1.15 `tf.feature_column`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.feature_columns.column import (
    CategoricalColumn,
    Features,
    Ids,
    KeyedColumn,
    require_discrete,
    require_key,
)
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.math_ops import cast
from globalstep.tf1.text.vocabularies import index_table_from_file, index_table_from_tensor


@dataclass(frozen=True)
class _VocabularyColumn(KeyedColumn):
    """See `categorical_column_with_vocabulary_list` and `categorical_column_with_vocabulary_file`."""

    vocabulary_list: tuple[Any, ...]
    vocabulary_file: str
    vocabulary_size: int
    dtype: Any
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        return self.vocabulary_size + self.num_oov_buckets

    @property
    def parsed_dtype(self) -> DType:
        return as_dtype(self.dtype)

    def ids_of(self, features: Features) -> Ids:
        sparse = self.values_of(features)
        keys = sparse.values if sparse.dtype.name == "string" else cast(sparse.values, "int64")
        name = f"{self.key}_lookup"
        if self.vocabulary_file:
            table = index_table_from_file(
                self.vocabulary_file, self.num_oov_buckets, self.vocabulary_size, self.default_value,
                key_dtype="string" if sparse.dtype.name == "string" else "int64", name=name,
            )  # fmt: skip
        else:
            words, kind = list(self.vocabulary_list), as_dtype(self.dtype)
            table = index_table_from_tensor(words, self.num_oov_buckets, self.default_value, dtype=kind, name=name)
        return Ids(SparseTensor(sparse.indices, table.lookup(keys), sparse.dense_shape))


class _VocabularyListCategoricalColumn(_VocabularyColumn):
    """One whose words are given."""


class _VocabularyFileCategoricalColumn(_VocabularyColumn):
    """One whose words are the lines of a file."""


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: DTypeLike | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> CategoricalColumn:
    """Make the column whose ids are places in a list.

    Args:
        key: Name of the feature.
        vocabulary_list: Words, or integers.
        dtype: Their dtype; default as they are.
        default_value: The id of other values; -1 counts for nothing.
        num_oov_buckets: How many ids after those of the list are given to other values, by their hash.

    Raises:
        ValueError: For an empty list, values that come twice, or both `default_value` and `num_oov_buckets`.
    """
    words = tuple(np.asarray(vocabulary_list).reshape(-1).tolist())
    if not words:
        raise ValueError(f"vocabulary_list {vocabulary_list} must be non-empty, column_name: {key}")
    if len(set(words)) != len(words):
        raise ValueError(f"Duplicate keys in vocabulary_list {vocabulary_list}, column_name: {key}")
    kind = as_dtype("string" if isinstance(words[0], (str, bytes)) else "int64") if dtype is None else as_dtype(dtype)
    require_discrete(kind, key)
    _require_one_way(key, default_value, num_oov_buckets)
    options = (words, "", len(words), kind.name, default_value, num_oov_buckets)
    return _VocabularyListCategoricalColumn(require_key(key), *options)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: DTypeLike = "string",
) -> CategoricalColumn:
    """Make the column whose ids are lines of a file.

    Args:
        key: Name of the feature.
        vocabulary_file: Path of a file with a word in each line.
        vocabulary_size: How many lines count; default all, which are counted now.
        num_oov_buckets: As for `categorical_column_with_vocabulary_list`.
        default_value: The same; default -1.
        dtype: string, or an integer dtype.

    Raises:
        ValueError: Without a file, or for both `default_value` and `num_oov_buckets`.
    """
    if not vocabulary_file:
        raise ValueError(f"Missing vocabulary_file in {key}.")
    if vocabulary_size is None:
        with open(vocabulary_file, "rb") as lines:
            vocabulary_size = sum(1 for _ in lines)
    if vocabulary_size < 1:
        raise ValueError(f"Invalid vocabulary_size in {key}.")
    require_discrete(dtype, key)
    missing = -1 if default_value is None else default_value
    _require_one_way(key, missing, num_oov_buckets)
    options = ((), str(vocabulary_file), vocabulary_size, as_dtype(dtype).name, missing, num_oov_buckets)
    return _VocabularyFileCategoricalColumn(require_key(key), *options)


def _require_one_way(key: str, default_value: int, num_oov_buckets: int) -> None:
    if num_oov_buckets and default_value != -1:
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    if num_oov_buckets < 0:
        raise ValueError(f"Invalid num_oov_buckets {num_oov_buckets} in {key}.")

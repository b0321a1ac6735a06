"""Columns that give numbers: features as they are, in buckets, ids as counts and as rows of tables.

Layer: tf1. Source: TensorFlow 1.15 `tf.feature_column`.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.feature_columns.column import (
    BucketColumn,
    CategoricalColumn,
    DenseColumn,
    Features,
    Ids,
    NumericFeature,
    SequenceDenseColumn,
    checked_numbers,
    sparse_of,
)
from globalstep.tf1.feature_columns.sequences import sequence_length_from_sparse_tensor
from globalstep.tf1.graph.graph import Node, add_to_collection, get_collection
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.embedding_ops import safe_embedding_lookup_sparse
from globalstep.tf1.ops.indexing_ops import one_hot
from globalstep.tf1.ops.init_ops import truncated_normal_initializer
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import cast
from globalstep.tf1.ops.parsing_ops import FixedLenFeature
from globalstep.tf1.ops.sparse_ops import sparse_reshape
from globalstep.tf1.variables.named_variables import get_variable


@dataclass(frozen=True)
class _NumericColumn(NumericFeature, DenseColumn):
    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: FixedLenFeature(list(self.shape), as_dtype(self.dtype), self.default_value)}

    def dense(self, features: Features, trainable: bool = True) -> Node:
        value = features.raw(self.key)
        if isinstance(value, SparseTensor):
            raise ValueError(
                f"The corresponding Tensor of numerical column must be a Tensor. SparseTensor is not supported. "
                f"key: {self.key}"
            )
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        return reshape(cast(value, "float32"), [-1, self.size])


@dataclass(frozen=True)
class _BucketizedColumn(BucketColumn):
    source_column: _NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.source_column.parse_example_spec

    @property
    def size(self) -> int:
        return (len(self.boundaries) + 1) * self.source_column.size

    @property
    def num_buckets(self) -> int:
        return self.size

    def _buckets(self, features: Features) -> Node:
        """Give the number of the bucket that each element is in, [batch, elements]."""
        source = self.source_column.dense(features)
        attrs = {"boundaries": np.array(self.boundaries, np.float32), "stops_gradient": True}
        return Node("Bucketize", (source,), dtype="int64", shape=source.shape, attrs=attrs)

    def dense(self, features: Features, trainable: bool = True) -> Node:
        return reshape(one_hot(self._buckets(features), len(self.boundaries) + 1), [-1, self.size])

    def ids_of(self, features: Features) -> Ids:
        steps = np.arange(self.source_column.size) * (len(self.boundaries) + 1)
        return Ids(sparse_of(self._buckets(features) + steps))


computes("Bucketize", lambda value, *, boundaries: np.searchsorted(boundaries, value, side="right").astype(np.int64))


class _OfIds(DenseColumn, SequenceDenseColumn):
    """A column that makes numbers of ids: of an example's ids, or of the ids of each step of a sequence."""

    categorical_column: CategoricalColumn

    @abc.abstractmethod
    def _made(self, entries: Ids, trainable: bool) -> Node:
        """Give the numbers for each row of ids, [rows, size]."""

    def _require(self, sequence: bool) -> None:
        if self.categorical_column.is_sequence != sequence:
            wanted = "be of type SequenceCategoricalColumn" if sequence else "not be of type SequenceCategoricalColumn"
            raise ValueError(
                f"In {self.name}: categorical_column must {wanted}: sequence_input_layer takes columns of sequences, "
                f"input_layer and linear_model others. Given: {self.categorical_column}"
            )

    def dense(self, features: Features, trainable: bool = True) -> Node:
        self._require(sequence=False)
        return self._made(features.ids(self.categorical_column), trainable)

    def sequence(self, features: Features, trainable: bool = True) -> tuple[Node, Node]:
        self._require(sequence=True)
        ids, weights = features.ids(self.categorical_column)
        sizes = ids.dense_shape
        # Each step is a row of its own.
        rows = concat([reshape(sizes[0] * sizes[1], [1]), [-1]], 0)
        parts = Ids(sparse_reshape(ids, rows), None if weights is None else sparse_reshape(weights, rows))
        numbers = reshape(self._made(parts, trainable), concat([cast(sizes[:2], "int32"), [self.size]], 0))
        numbers.set_shape([None, None, self.size])
        return numbers, sequence_length_from_sparse_tensor(ids)


@dataclass(frozen=True)
class _IndicatorColumn(_OfIds):
    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def size(self) -> int:
        return self.categorical_column.num_buckets

    def _made(self, entries: Ids, trainable: bool) -> Node:
        ids, weights = entries
        parts = (ids.indices, ids.values, ids.dense_shape, *([] if weights is None else [weights.values]))
        attrs = {"size": self.size, "stops_gradient": True}
        return Node("Indicator", parts, dtype="float32", shape=TensorShape([None, self.size]), attrs=attrs)


@computes("Indicator")
def _indicator(places: Any, numbers: Any, shape: Any, factors: Any = None, *, size: Any) -> Any:
    counts = np.zeros((int(shape[0]), size), np.float32)
    valid = (numbers >= 0) & (numbers < size)
    np.add.at(counts, (places[valid, 0], numbers[valid]), 1 if factors is None else factors[valid])
    return counts


@dataclass(frozen=True)
class _EmbeddingColumn(_OfIds):
    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    max_norm: float | None
    trainable: bool
    #: Name of the table that several columns share; "" for one of its own.
    shared: str

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_{'shared_' if self.shared else ''}embedding"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def scope_name(self) -> str:
        return self.shared or self.name

    @property
    def size(self) -> int:
        return self.dimension

    def _made(self, entries: Ids, trainable: bool) -> Node:
        shape = [self.categorical_column.num_buckets, self.dimension]
        options = {"initializer": self.initializer, "trainable": self.trainable and trainable}
        made = get_collection(self.shared) if self.shared else []
        table = made[0] if made else get_variable("embedding_weights", shape, "float32", **options)
        if self.shared and not made:
            add_to_collection(self.shared, table)
        rows = safe_embedding_lookup_sparse(
            table, *entries, self.combiner, name=f"{self.name}_weights", max_norm=self.max_norm
        )
        return reshape(rows, [-1, self.dimension])


class _SharedEmbeddingColumn(_EmbeddingColumn):
    """One of several with a table in common."""


def numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: Any = None,
    dtype: DTypeLike = "float32",
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> DenseColumn:
    """Make the column of a feature of numbers.

    Args:
        key: Name of the feature.
        shape: Shape of one example's: an int or ints.
        default_value: What `gs.parse_example` takes where an example has none.
        dtype: Dtype of the feature.
        normalizer_fn: Function of the feature's node, which gives the numbers.

    Raises:
        ValueError: For a dtype that is neither floating nor of integers, or a size that is not above 0.
        TypeError: If `normalizer_fn` cannot be called.
    """
    sizes, kind = checked_numbers(key, shape, dtype, normalizer_fn)
    default = None if default_value is None else tuple(np.broadcast_to(default_value, sizes).reshape(-1).tolist())
    return _NumericColumn(key, sizes, default, kind, normalizer_fn)


def bucketized_column(source_column: DenseColumn, boundaries: Sequence[float]) -> BucketColumn:
    """Make the column that says between which boundaries a number is; the lower one belongs to the bucket.

    Args:
        source_column: Made by `numeric_column`, of one dimension.
        boundaries: Ascending numbers.

    Raises:
        ValueError: For another column, or boundaries that do not ascend.
    """
    if not isinstance(source_column, _NumericColumn):
        raise ValueError(f"source_column must be a column generated with numeric_column(). Given: {source_column}")
    if len(source_column.shape) > 1:
        raise ValueError(f"source_column must be one-dimensional column. Given: {source_column}")
    ascending = all(low < high for low, high in itertools.pairwise(boundaries))
    if not len(boundaries) or not ascending:
        raise ValueError("boundaries must be a sorted list.")
    return _BucketizedColumn(source_column, tuple(boundaries))


def indicator_column(categorical_column: CategoricalColumn) -> DenseColumn:
    """Make the column that counts, for each id, how often an example has it; with weights, it adds them up.

    Args:
        categorical_column: The column that gives the ids.
    """
    return _IndicatorColumn(categorical_column)


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> DenseColumn:
    """Make the column that looks up ids in a table, a Variable "embedding_weights" in the scope of the column.

    Args:
        categorical_column: The column that gives the ids.
        dimension: How long a row of the table is.
        combiner: How the rows of one example become one: "mean", "sqrtn" or "sum".
        initializer: Initializer of the table; default a truncated normal one with deviation 1 / sqrt(dimension).
        ckpt_to_load_from: Must be None: use `gs.train.init_from_checkpoint`.
        tensor_name_in_ckpt: The same.
        max_norm: If given, rows with a larger 2-norm are scaled down to it.
        trainable: Whether the table is trained.

    Raises:
        ValueError: If `dimension` is not above 0, or a checkpoint is given.
    """
    return _EmbeddingColumn(
        categorical_column,
        _dimension(dimension, ckpt_to_load_from, tensor_name_in_ckpt),
        combiner,
        _initializer(initializer, dimension),
        max_norm,
        trainable,
        "",
    )


def shared_embedding_columns(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> list[DenseColumn]:
    """Make a column for each of several that give ids, with one table for all.

    Args:
        categorical_columns: The columns that give the ids, as many in each.
        dimension: How long a row of the table is.
        combiner: As for `embedding_column`.
        initializer: The same.
        shared_embedding_collection_name: Name of the table; default of the columns'.
        ckpt_to_load_from: Must be None.
        tensor_name_in_ckpt: Must be None.
        max_norm: As for `embedding_column`.
        trainable: The same.

    Raises:
        ValueError: If the columns have different numbers of ids.
    """
    if len({column.num_buckets for column in categorical_columns}) != 1:
        raise ValueError(
            "To use shared_embedding_column, all categorical_columns must have the same number of buckets."
        )
    names = "_".join(sorted(column.name for column in categorical_columns))
    chosen = _initializer(initializer, dimension)
    size = _dimension(dimension, ckpt_to_load_from, tensor_name_in_ckpt)
    shared = shared_embedding_collection_name or f"{names}_shared_embedding"
    options = (size, combiner, chosen, max_norm, trainable, shared)
    return [_SharedEmbeddingColumn(column, *options) for column in categorical_columns]


def _dimension(dimension: int, checkpoint: Any, tensor: Any) -> int:
    if dimension is None or dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if checkpoint is not None or tensor is not None:
        raise ValueError("ckpt_to_load_from is not supported: call gs.train.init_from_checkpoint for the table.")
    return int(dimension)


def _initializer(initializer: Any, dimension: int) -> Any:
    if initializer is not None and not callable(initializer):
        raise ValueError("initializer must be callable if specified.")
    return truncated_normal_initializer(0.0, 1 / math.sqrt(dimension)) if initializer is None else initializer

"""Columns of sequences, and the layer that takes them: for each step what other columns give for an example.

Layer: tf1. Source: TensorFlow 1.15 `feature_column/sequence_feature_column.py`, and `tf.contrib.feature_column`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.feature_columns import categorical, vocabulary
from globalstep.tf1.feature_columns.column import (
    CategoricalColumn,
    FeatureColumn,
    Features,
    Ids,
    NumericFeature,
    SequenceDenseColumn,
    checked_numbers,
)
from globalstep.tf1.feature_columns.layers import columns_in_order
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.array_ops import reshape, shape
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import cast
from globalstep.tf1.ops.parsing_ops import VarLenFeature, sparse_tensor_to_dense
from globalstep.tf1.ops.sparse_ops import sparse_reshape
from globalstep.tf1.variables.variable_scope import variable_scope


def sequence_length_from_sparse_tensor(sp_tensor: SparseTensor, num_elements: int = 1) -> Node:
    """Give how many steps each example of a SparseTensor has.

    Args:
        sp_tensor: [batch, steps, ...], or [batch, numbers].
        num_elements: How many numbers of the second dimension make a step.

    Returns:
        A node [batch], int64.
    """
    attrs = {"num_elements": num_elements, "stops_gradient": True}
    return Node("SequenceLength", (sp_tensor.indices, sp_tensor.dense_shape), dtype="int64", shape=[None], attrs=attrs)


@computes("SequenceLength")
def _length(places: Any, sizes: Any, *, num_elements: Any) -> Any:
    ends = np.zeros(int(sizes[0]), np.int64)
    np.maximum.at(ends, places[:, 0], places[:, 1] + 1)
    return -(-ends // num_elements)


@dataclass(frozen=True)
class _SequenceColumn(CategoricalColumn):
    """A column that gives ids for each step."""

    of_step: CategoricalColumn

    is_sequence = True

    @property
    def name(self) -> str:
        return self.of_step.name

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.of_step.parse_example_spec

    @property
    def num_buckets(self) -> int:
        return self.of_step.num_buckets

    def ids_of(self, features: Features) -> Ids:
        """Give the ids, [batch, steps, ids of a step]."""
        ids, weights = features.ids(self.of_step)

        def by_step(sparse: SparseTensor) -> SparseTensor:
            sizes = sparse.dense_shape
            return sparse_reshape(sparse, concat([sizes[:2], [-1]], 0))

        return Ids(by_step(ids), None if weights is None else by_step(weights))


@dataclass(frozen=True)
class _SequenceNumericColumn(NumericFeature, SequenceDenseColumn):
    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: VarLenFeature(as_dtype(self.dtype))}

    def sequence(self, features: Features, trainable: bool = True) -> tuple[Node, Node]:
        value = features.raw(self.key)
        if not isinstance(value, SparseTensor):
            raise ValueError(f"The feature {self.key} of a sequence must be a SparseTensor. Given: {value}")
        if self.normalizer_fn is not None:
            value = self.normalizer_fn(value)
        dense = sparse_tensor_to_dense(value, self.default_value)
        elements = self.size if dense.shape.ndims == 2 else 1
        steps = reshape(cast(dense, "float32"), concat([shape(dense)[:1], [-1, self.size]], 0))
        steps.set_shape([None, None, self.size])
        return steps, sequence_length_from_sparse_tensor(value, elements)


def sequence_categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: DTypeLike = "string"
) -> CategoricalColumn:
    """Make the column of sequences whose ids are hashes; see `categorical_column_with_hash_bucket`."""
    return _SequenceColumn(categorical.categorical_column_with_hash_bucket(key, hash_bucket_size, dtype))


def sequence_categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> CategoricalColumn:
    """Make the column of sequences whose ids are as they are; see `categorical_column_with_identity`."""
    return _SequenceColumn(categorical.categorical_column_with_identity(key, num_buckets, default_value))


def sequence_categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: DTypeLike | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> CategoricalColumn:
    """Make the column of sequences whose ids are places; see `categorical_column_with_vocabulary_list`."""
    return _SequenceColumn(
        vocabulary.categorical_column_with_vocabulary_list(key, vocabulary_list, dtype, default_value, num_oov_buckets)
    )


def sequence_categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: DTypeLike = "string",
) -> CategoricalColumn:
    """Make the column of sequences whose ids are lines; see `categorical_column_with_vocabulary_file`."""
    return _SequenceColumn(
        vocabulary.categorical_column_with_vocabulary_file(
            key, vocabulary_file, vocabulary_size, num_oov_buckets, default_value, dtype
        )
    )


def sequence_numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: float = 0.0,
    dtype: DTypeLike = "float32",
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> FeatureColumn:
    """Make the column of sequences of numbers.

    Args:
        key: Name of the feature, a SparseTensor.
        shape: Shape of one step's: an int or ints.
        default_value: What stands where a sequence has none.
        dtype: Dtype of the feature.
        normalizer_fn: Function of the SparseTensor.

    Raises:
        ValueError: For a dtype that is neither floating nor of integers, or a size that is not above 0.
        TypeError: If `normalizer_fn` cannot be called.
    """
    sizes, kind = checked_numbers(key, shape, dtype, normalizer_fn)
    return _SequenceNumericColumn(key, sizes, default_value, kind, normalizer_fn)


def sequence_input_layer(
    features: Mapping[Any, Any], feature_columns: Any, weight_collections: Any = None, trainable: bool = True
) -> tuple[Node, Node]:
    """Put what columns of sequences give side by side, in the order of their names.

    Args:
        features: Name of a feature -> SparseTensor, or node.
        feature_columns: Columns of sequences that give numbers.
        weight_collections: Accepted: tables are in the collections of `get_variable`.
        trainable: Whether tables are trained.

    Returns:
        A node [batch, steps, sum of sizes], and how many steps each example has, [batch].

    Raises:
        ValueError: For another column.
        InvalidArgumentError: In the run, if columns have different numbers of steps.

    >>> import globalstep as gs
    >>> words = gs.feature_column.sequence_categorical_column_with_identity("words", 3)
    >>> columns = [gs.feature_column.indicator_column(words)]
    >>> with gs.Graph().as_default(), gs.Session() as session:
    ...     given = gs.SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 0, 1], [2, 2])
    ...     print(*session.run(gs.contrib.feature_column.sequence_input_layer({"words": given}, columns)))
    [[[0. 0. 1.]
      [1. 0. 0.]]
    <BLANKLINE>
     [[0. 1. 0.]
      [0. 0. 0.]]] [2 1]
    """
    columns = columns_in_order(feature_columns)
    for column in columns:
        if not isinstance(column, SequenceDenseColumn):
            raise ValueError(
                "All feature_columns must be of type _SequenceDenseColumn. You can wrap a sequence_categorical_column "
                f"with an embedding_column or indicator_column. Given (type {type(column)}): {column}"
            )
    read, parts, lengths = Features(features), [], []
    with variable_scope(None, default_name="sequence_input_layer"):
        for column in columns:
            with variable_scope(None, default_name=column.scope_name):
                steps, length = column.sequence(read, trainable)
                parts.append(steps)
                lengths.append(length)
        return concat(parts, axis=-1), _all_equal(lengths)


def _all_equal(lengths: Sequence[Node]) -> Node:
    return Node("EqualLengths", tuple(lengths), name="Identity", dtype="int64", shape=lengths[0].shape)


@computes("EqualLengths")
def _equal(*values: Any) -> Any:
    if any(not np.array_equal(values[0], value) for value in values[1:]):
        raise InvalidArgumentError(f"The columns have different numbers of steps: {[v.tolist() for v in values]}")
    return values[0]

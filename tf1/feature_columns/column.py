"""Feature columns, and the features of a batch that columns read.

Layer: tf1. Source of names, texts and defaults: TensorFlow 1.15 `tf.feature_column`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.array_ops import expand_dims, reshape_like
from globalstep.tf1.ops.parsing_ops import VarLenFeature


class Ids(NamedTuple):
    """The ids of a batch, and what each weighs.

    Attributes:
        ids: int64; those below 0 count for nothing.
        weights: Floating, at the same places; None for 1.
    """

    ids: SparseTensor
    weights: SparseTensor | None = None

    @property
    def id_tensor(self) -> SparseTensor:
        """The ids, by TensorFlow's name."""
        return self.ids

    @property
    def weight_tensor(self) -> SparseTensor | None:
        """The weights, by TensorFlow's name."""
        return self.weights


class Features:
    """The features of a batch; what a column makes of them is made once.

    Args:
        given: Name of a feature -> node, array or SparseTensor.
    """

    def __init__(self, features: Mapping[Any, Any]) -> None:
        self._given = dict(features)
        self._made: dict[Any, Any] = {}

    def raw(self, key: str) -> Any:
        """Give a feature as a SparseTensor, or as a node of two dimensions or more.

        Raises:
            ValueError: If there is none, or it is a scalar.
        """
        if key not in self._given:
            raise ValueError(f"Feature {key} is not in features dictionary.")
        value = self._given[key]
        if isinstance(value, SparseTensor):
            return value
        node = as_node(value)
        if node.shape.ndims == 0:
            raise ValueError(f"Feature (key: {key}) cannot have rank 0. Given: {node}")
        if node.shape.ndims is None:
            return Node("ColumnOfVector", (node,), name="ExpandDims", dtype=node.dtype, shape=TensorShape(None))
        return expand_dims(node, -1) if node.shape.ndims == 1 else node

    def sparse(self, key: str, whole: bool = False) -> SparseTensor:
        """Give a feature as a SparseTensor: of a dense one all but "" and -1, or `whole`, those, too."""
        value = self.raw(key)
        return value if isinstance(value, SparseTensor) else sparse_of(value, whole)

    def ids(self, column: CategoricalColumn) -> Ids:
        """Give what a column makes of the features."""
        if column not in self._made:
            self._made[column] = column.ids_of(self)
        ids: Ids = self._made[column]
        return ids


computes("ColumnOfVector", lambda value: value[:, None] if value.ndim == 1 else value)
gradient_of("ColumnOfVector")(lambda node, grad: (reshape_like(grad, node.inputs[0]),))


def sparse_of(node: Node, whole: bool = False) -> SparseTensor:
    """Give the elements of a dense node that are not "" or -1; all of them if `whole`."""
    if node.dtype.is_floating or node.dtype.is_bool:
        raise ValueError(f"A categorical column takes strings or integers, not {node.dtype.name} of {node.name!r}.")
    rank = node.shape.ndims
    attrs = {"tuple": True, "stops_gradient": True, "whole": whole}
    parts = Node("PresentToSparse", (node,), name="DenseToSparse", attrs=attrs)
    return SparseTensor(
        tuple_item(parts, 0, dtype="int64", shape=[None, rank]),
        tuple_item(parts, 1, dtype=node.dtype, shape=[None]),
        tuple_item(parts, 2, dtype="int64", shape=[rank]),
    )


@computes("PresentToSparse")
def _present_to_sparse(feature: Any, *, whole: Any) -> Any:
    values = np.asarray(feature)
    if whole:
        present = np.ones(values.size, np.bool_)
    elif values.dtype == object:
        present = np.array([item not in (b"", "") for item in values.reshape(-1)], np.bool_)
    else:
        present = values.reshape(-1) != -1
    places = np.argwhere(present.reshape(values.shape)).astype(np.int64)
    return places, values.reshape(-1)[present], np.array(values.shape, np.int64)


#: TensorFlow's own name.
_LazyBuilder = Features


class FeatureColumn(abc.ABC):
    """An input that a model takes from the features of an example. Columns with equal arguments are equal."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Its name, by which columns are sorted."""

    @property
    @abc.abstractmethod
    def parse_example_spec(self) -> dict[str, Any]:
        """Name of a feature -> how `gs.parse_example` is to read it."""


class CategoricalColumn(FeatureColumn):
    """A column that gives ids.

    Attributes:
        is_sequence: Whether it gives them for each step of a sequence.
    """

    is_sequence = False

    @property
    @abc.abstractmethod
    def num_buckets(self) -> int:
        """The number of ids."""

    @abc.abstractmethod
    def ids_of(self, features: Features) -> Ids:
        """Give the ids of a batch."""

    # What programs use that look up ids by themselves, with a _LazyBuilder: a Features.
    @property
    def _num_buckets(self) -> int:
        return self.num_buckets

    def _get_sparse_tensors(self, inputs: Features, weight_collections: Any = None, trainable: Any = None) -> Ids:
        return inputs.ids(self)


@dataclass(frozen=True)
class KeyedColumn(CategoricalColumn):
    """A column that gives ids of one feature."""

    key: str

    @property
    def name(self) -> str:
        """See FeatureColumn."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """See FeatureColumn."""
        return {self.key: VarLenFeature(self.parsed_dtype)}

    @property
    def parsed_dtype(self) -> DType:
        """Dtype of the feature in an Example."""
        return as_dtype("int64")

    def values_of(self, features: Features) -> SparseTensor:
        """Give the feature, which must be of strings or of integers as the column is."""
        sparse, wanted = features.sparse(self.key), self.parsed_dtype.name
        if (sparse.dtype.name == "string") != (wanted == "string"):
            raise ValueError(
                f"Column dtype and SparseTensors dtype must be compatible. key: {self.key}, column dtype: {wanted}, "
                f"tensor dtype: {sparse.dtype.name}"
            )
        return sparse


class NumbersColumn(FeatureColumn):
    """A column that gives numbers, for each example or for each step of one."""

    @property
    def scope_name(self) -> str:
        """Name of the scope of its Variables."""
        return self.name

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many numbers it gives for each."""


@dataclass(frozen=True)
class NumericFeature(NumbersColumn):
    """A column that gives the numbers of one feature, as they are; see `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: Any
    normalizer_fn: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        """See FeatureColumn."""
        return self.key

    @property
    def size(self) -> int:
        """See NumbersColumn."""
        return math.prod(self.shape)


class DenseColumn(NumbersColumn):
    """A column that gives numbers, as many for each example."""

    @abc.abstractmethod
    def dense(self, features: Features, trainable: bool = True) -> Node:
        """Give the numbers of a batch, [batch, size]; Variables that it has are made in the current scope."""


class SequenceDenseColumn(NumbersColumn):
    """A column that gives numbers for each step of a sequence."""

    @abc.abstractmethod
    def sequence(self, features: Features, trainable: bool = True) -> tuple[Node, Node]:
        """Give the numbers of a batch, [batch, steps, size], and how many steps each example has, [batch]."""


class BucketColumn(DenseColumn, CategoricalColumn):
    """A column that says of numbers which bucket they are in, as marks or as ids."""


def require_key(key: Any) -> str:
    """Give a feature's name.

    Raises:
        ValueError: If it is no string.
    """
    if not isinstance(key, str):
        raise ValueError(f"key must be a string. Got: type {type(key)}. Given key: {key}.")
    return key


def require_discrete(dtype: DTypeLike, column: str) -> None:
    """Refuse a dtype that is neither of strings nor of integers."""
    kind = as_dtype(dtype)
    if not kind.is_integer and kind.name != "string":
        raise ValueError(f"dtype must be string or integer. dtype: {kind.name}, column_name: {column}")


def checked_numbers(key: str, shape: Any, dtype: DTypeLike, normalizer_fn: Any) -> tuple[tuple[int, ...], str]:
    """Give the shape and the name of the dtype of a feature of numbers; raises as `numeric_column`."""
    require_key(key)
    sizes, kind = tuple(int(size) for size in np.reshape(shape, -1)), as_dtype(dtype)
    if any(size < 1 for size in sizes):
        raise ValueError(f"shape dimensions must be greater than 0. shape: {shape}, key: {key}")
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {kind.name}, key: {key}")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise TypeError(f"normalizer_fn must be a callable. Given: {normalizer_fn}")
    return sizes, kind.name

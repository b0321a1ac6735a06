"""The layers that take columns: `input_layer` puts them side by side, `linear_model` weighs them.

Layer: tf1. Source of names of Variables, order and texts: TensorFlow 1.15 `tf.feature_column`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from globalstep.tf1.feature_columns.column import CategoricalColumn, DenseColumn, FeatureColumn, Features
from globalstep.tf1.graph.graph import GraphKeys, Node
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.embedding_ops import safe_embedding_lookup_sparse
from globalstep.tf1.ops.init_ops import zeros_initializer
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import add_n
from globalstep.tf1.ops.nn_ops import bias_add
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable
from globalstep.tf1.variables.variable_scope import variable_scope


def columns_in_order(feature_columns: Any) -> list[Any]:
    """Give columns by name.

    Raises:
        ValueError: If there are none, something is no column, or two have one name.
    """
    columns = list(feature_columns.values() if isinstance(feature_columns, Mapping) else _listed(feature_columns))
    if not columns:
        raise ValueError("feature_columns must not be empty.")
    for column in columns:
        if not isinstance(column, FeatureColumn):
            raise ValueError(
                f"Items of feature_columns must be a _FeatureColumn. Given (type {type(column)}): {column}."
            )
    names: dict[str, Any] = {}
    for column in columns:
        if column.name in names:
            raise ValueError(
                f"Duplicate feature column name found for columns: {column} and {names[column.name]}. This usually "
                "means that these columns refer to same base feature. Either one must be discarded or a duplicated "
                "but renamed item must be inserted in features dict."
            )
        names[column.name] = column
    return [names[name] for name in sorted(names)]


def _listed(feature_columns: Any) -> Iterable[Any]:
    return [feature_columns] if isinstance(feature_columns, FeatureColumn) else feature_columns


def _collections(weight_collections: Any) -> list[str]:
    return list({GraphKeys.GLOBAL_VARIABLES: None, **dict.fromkeys(weight_collections or ())})


def input_layer(
    features: Mapping[Any, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
    cols_to_output_tensors: dict[Any, Any] | None = None,
) -> Node:
    """Put what columns give side by side, in the order of their names.

    Args:
        features: Name of a feature -> node, array or SparseTensor.
        feature_columns: Dense columns.
        weight_collections: Accepted: tables are in the collections of `get_variable`.
        trainable: Whether tables are trained.
        cols_to_vars: If given, gets a list of Variables for each column.
        cols_to_output_tensors: If given, gets a node for each column.

    Returns:
        A node [batch, sum of sizes].

    Raises:
        ValueError: For a column that is not dense.

    >>> import globalstep as gs
    >>> price = gs.feature_column.numeric_column("price")
    >>> high = gs.feature_column.bucketized_column(price, [10.0])
    >>> with gs.Graph().as_default(), gs.Session() as session:
    ...     print(session.run(gs.feature_column.input_layer({"price": [[5.0], [12.0]]}, [price, high])))
    [[ 5.  1.  0.]
     [12.  0.  1.]]
    """
    columns = columns_in_order(feature_columns)
    for column in columns:
        if not isinstance(column, DenseColumn):
            raise ValueError(
                "Items of feature_columns must be a _DenseColumn. You can wrap a categorical column with an "
                f"embedding_column or indicator_column. Given: {column}"
            )
    read, parts = Features(features), []
    with variable_scope(None, default_name="input_layer") as whole:
        for column in columns:
            with variable_scope(None, default_name=column.scope_name):
                before = _variables(whole)
                node = reshape(column.dense(read, trainable), [-1, column.size])
                if cols_to_vars is not None:
                    cols_to_vars[column] = [each for each in _variables(whole) if each not in before]
                if cols_to_output_tensors is not None:
                    cols_to_output_tensors[column] = node
                parts.append(node)
        return concat(parts, axis=1)


def _parts(variable: Any) -> list[Any]:
    return [*variable] if isinstance(variable, PartitionedVariable) else [variable]


def _variables(scope: Any) -> list[Any]:
    return list(scope.global_variables())


def linear_model(
    features: Mapping[Any, Any],
    feature_columns: Any,
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
) -> Node:
    """Add up what columns give, each number and each id with a weight of its own, and a bias.

    Args:
        features: Name of a feature -> node, array or SparseTensor.
        feature_columns: Columns of any kind.
        units: How many sums.
        sparse_combiner: How the weights of one example's ids become one: "sum", "mean" or "sqrtn".
        weight_collections: Further collections that the weights are in.
        trainable: Whether the weights are trained.
        cols_to_vars: If given, gets a list of Variables for each column, and for "bias".

    Returns:
        A node [batch, units].
    """
    read, sums = Features(features), []
    options: dict[str, Any] = {
        "initializer": zeros_initializer(), "trainable": trainable, "collections": _collections(weight_collections)
    }  # fmt: skip
    with variable_scope(None, default_name="linear_model"):
        for column in columns_in_order(feature_columns):
            with variable_scope(None, default_name=column.name):
                if isinstance(column, CategoricalColumn):
                    ids, factors = read.ids(column)
                    weights = get_variable("weights", [column.num_buckets, units], "float32", **options)
                    sums.append(safe_embedding_lookup_sparse(weights, ids, factors, sparse_combiner))
                else:
                    dense = reshape(column.dense(read, trainable), [-1, column.size])
                    weights = get_variable("weights", [column.size, units], "float32", **options)
                    sums.append(matmul(dense, weights))
                if cols_to_vars is not None:
                    cols_to_vars[column] = _parts(weights)
        bias = get_variable("bias_weights", [units], "float32", **options)
        if cols_to_vars is not None:
            cols_to_vars["bias"] = _parts(bias)
        return bias_add(add_n([reshape(each, [-1, units]) for each in sums]), bias)


def make_parse_example_spec(feature_columns: Iterable[Any]) -> dict[str, Any]:
    """Give what `gs.parse_example` takes, for all features of some columns.

    Args:
        feature_columns: Columns of any kind.

    Raises:
        ValueError: For something else, or if columns want one feature in several ways.
    """
    spec: dict[str, Any] = {}
    for column in _checked(feature_columns):
        for key, wanted in column.parse_example_spec.items():
            if spec.setdefault(key, wanted) != wanted:
                raise ValueError(
                    f"feature_columns contain different parse_spec for key {key}. Given {wanted} and {spec[key]}"
                )
    return spec


def _checked(feature_columns: Iterable[Any]) -> Iterator[FeatureColumn]:
    for column in feature_columns:
        if not isinstance(column, FeatureColumn):
            raise ValueError(f"All feature_columns must be _FeatureColumn instances. Given: {column}")
        yield column

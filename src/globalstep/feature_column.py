"""`gs.feature_column`: columns of features, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.feature_columns.categorical": (
        "categorical_column_with_hash_bucket categorical_column_with_identity categorical_column_with_vocabulary_file "
        "categorical_column_with_vocabulary_list crossed_column weighted_categorical_column"
    ),
    "globalstep.tf1.feature_columns.dense": (
        "bucketized_column embedding_column indicator_column numeric_column shared_embedding_columns"
    ),
    "globalstep.tf1.feature_columns.layers": "input_layer linear_model make_parse_example_spec",
}

__all__ = namespace(
    __name__,
    _NAMES,
    absent=dict.fromkeys(
        ("sequence_categorical_column_with_hash_bucket", "sequence_categorical_column_with_identity",
         "sequence_categorical_column_with_vocabulary_file", "sequence_categorical_column_with_vocabulary_list",
         "sequence_numeric_column"),
        "pad sequences, and look them up with gs.nn.embedding_lookup.",
    ),
)  # fmt: skip

"""`gs.feature_column`: columns of features, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    absent=dict.fromkeys(
        ("sequence_categorical_column_with_hash_bucket", "sequence_categorical_column_with_identity",
         "sequence_categorical_column_with_vocabulary_file", "sequence_categorical_column_with_vocabulary_list",
         "sequence_numeric_column"),
        "pad sequences, and look them up with gs.nn.embedding_lookup.",
    ),
)  # fmt: skip

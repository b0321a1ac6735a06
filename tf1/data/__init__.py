"""Datasets as tf.data has them: pipelines of elements, and iterators that give them to the graph."""

#: Names of `gs.data.experimental` and `gs.contrib.data`, by module.
TRANSFORMATIONS = {
    "globalstep.tf1.data.transformations": (
        "AUTOTUNE batch_and_drop_remainder bucket_by_sequence_length group_by_window ignore_errors map_and_batch "
        "parallel_interleave shuffle_and_repeat unbatch"
    ),
    "globalstep.tf1.data.whole_files": "make_batched_features_dataset make_csv_dataset",
}

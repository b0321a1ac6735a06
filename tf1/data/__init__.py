"""Datasets as tf.data has them: pipelines of elements, and iterators that give them to the graph.

Layer: tf1.
"""

__all__ = ["DATASETS", "TRANSFORMATIONS"]

#: Names of `gs.data` and `gs.contrib.data`, by module.
DATASETS = {
    "globalstep.tf1.data.elements": "get_output_classes get_output_shapes get_output_types",
    "globalstep.tf1.data.files": "FixedLengthRecordDataset TFRecordDataset TextLineDataset",
    "globalstep.tf1.data.iterators": "Iterator",
    "globalstep.tf1.data.pipeline": "Dataset=Pipeline",
}
#: Names of `gs.data.experimental` and `gs.contrib.data`, by module.
TRANSFORMATIONS = {
    "globalstep.tf1.data.transformations": (
        "AUTOTUNE batch_and_drop_remainder ignore_errors map_and_batch parallel_interleave shuffle_and_repeat unbatch"
    ),
}

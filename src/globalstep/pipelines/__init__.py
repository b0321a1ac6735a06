"""Datasets as tf.data has them: pipelines of elements, and iterators that give them to the graph.

Layer: shared.
"""

__all__ = ["DATASETS", "TRANSFORMATIONS"]

#: Names of `gs.data` and `gs.contrib.data`, by module.
DATASETS = {
    "globalstep.pipelines.elements": "get_output_classes get_output_shapes get_output_types",
    "globalstep.pipelines.files": "FixedLengthRecordDataset TFRecordDataset TextLineDataset",
    "globalstep.pipelines.iterators": "Iterator",
    "globalstep.pipelines.pipeline": "Dataset=Pipeline",
}
#: Names of `gs.data.experimental` and `gs.contrib.data`, by module.
TRANSFORMATIONS = {
    "globalstep.pipelines.transformations": (
        "AUTOTUNE batch_and_drop_remainder ignore_errors map_and_batch parallel_interleave shuffle_and_repeat unbatch"
    ),
}

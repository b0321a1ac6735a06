"""`gs.io`: files and what is in them, as TensorFlow 1.15 groups the functions.

Layer: namespace.
"""

from globalstep.lazy import namespace, nested_namespace

_NAMES = {
    "globalstep.tf1.graph.write_graph": "write_graph",
    "globalstep.files.records": "TFRecordCompressionType TFRecordOptions TFRecordWriter tf_record_iterator",
    "globalstep.tf1.images.coding": (
        "decode_bmp decode_gif decode_image decode_jpeg decode_png encode_jpeg encode_png extract_jpeg_shape is_jpeg"
    ),
    "globalstep.tf1.ops.parsing_ops": (
        "decode_csv decode_raw FixedLenFeature FixedLenSequenceFeature parse_example parse_single_example "
        "SparseFeature VarLenFeature"
    ),
    "globalstep.tf1.ops.sequence_parsing": "parse_single_sequence_example",
    "globalstep.tf1.text.file_ops": "matching_files read_file write_file",
    "globalstep.tf1.text.string_ops": "decode_base64 encode_base64",
    "globalstep.tf1.inputs.inputs": "match_filenames_once",
    "globalstep.tf1.inputs.queues": "FIFOQueue PaddingFIFOQueue QueueBase RandomShuffleQueue",
}

__all__ = ["gfile", *namespace(__name__, _NAMES)]

gfile = nested_namespace(
    f"{__name__}.gfile",
    {
        "globalstep.tf1.gfile": (
            "GFile copy=Copy exists=Exists glob=Glob isdir=IsDirectory listdir=ListDirectory makedirs=MakeDirs "
            "mkdir=MkDir remove=Remove rename=Rename rmtree=DeleteRecursively stat=Stat walk=Walk"
        ),
    },
)

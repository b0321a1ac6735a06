"""`gs.python_io`: TFRecord files, read and written by the program itself.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.files.records": "TFRecordCompressionType TFRecordOptions TFRecordWriter tf_record_iterator",
}

__all__ = namespace(__name__, _NAMES)

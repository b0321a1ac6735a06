# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.files.records import TFRecordCompressionType as TFRecordCompressionType
from globalstep.files.records import TFRecordOptions as TFRecordOptions
from globalstep.files.records import TFRecordWriter as TFRecordWriter
from globalstep.files.records import tf_record_iterator as tf_record_iterator

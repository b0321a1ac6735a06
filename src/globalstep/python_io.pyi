# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.files.records import TFRecordCompressionType as TFRecordCompressionType
from globalstep.files.records import TFRecordOptions as TFRecordOptions
from globalstep.files.records import TFRecordWriter as TFRecordWriter
from globalstep.files.records import read_records as tf_record_iterator

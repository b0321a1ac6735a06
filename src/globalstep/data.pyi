# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.pipelines.elements import get_output_classes as get_output_classes
from globalstep.pipelines.elements import get_output_shapes as get_output_shapes
from globalstep.pipelines.elements import get_output_types as get_output_types
from globalstep.pipelines.files import FixedLengthRecordDataset as FixedLengthRecordDataset
from globalstep.pipelines.files import TFRecordDataset as TFRecordDataset
from globalstep.pipelines.files import TextLineDataset as TextLineDataset
from globalstep.pipelines.iterators import Iterator as Iterator
from globalstep.pipelines.pipeline import Pipeline as Dataset

# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.data.elements import get_output_classes as get_output_classes
from globalstep.tf1.data.elements import get_output_shapes as get_output_shapes
from globalstep.tf1.data.elements import get_output_types as get_output_types
from globalstep.tf1.data.files import FixedLengthRecordDataset as FixedLengthRecordDataset
from globalstep.tf1.data.files import TFRecordDataset as TFRecordDataset
from globalstep.tf1.data.files import TextLineDataset as TextLineDataset
from globalstep.tf1.data.iterators import Iterator as Iterator
from globalstep.tf1.data.pipeline import Pipeline as Dataset
from globalstep.tf1.data.iterators import make_initializable_iterator as make_initializable_iterator
from globalstep.tf1.data.iterators import make_one_shot_iterator as make_one_shot_iterator

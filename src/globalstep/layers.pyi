# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.models.convolution_layers import Conv1D as Conv1D
from globalstep.models.convolution_layers import Conv2D as Conv2D
from globalstep.models.core_layers import Dense as Dense
from globalstep.models.core_layers import Dropout as Dropout
from globalstep.models.core_layers import Flatten as Flatten
from globalstep.models.functional_layers import average_pooling1d as average_pooling1d
from globalstep.models.functional_layers import average_pooling2d as average_pooling2d
from globalstep.models.functional_layers import batch_normalization as batch_normalization
from globalstep.models.functional_layers import conv1d as conv1d
from globalstep.models.functional_layers import conv2d as conv2d
from globalstep.models.functional_layers import dense as dense
from globalstep.models.functional_layers import dropout as dropout
from globalstep.models.functional_layers import flatten as flatten
from globalstep.models.functional_layers import max_pooling1d as max_pooling1d
from globalstep.models.functional_layers import max_pooling2d as max_pooling2d
from globalstep.models.layer import InputSpec as InputSpec
from globalstep.models.layer import Layer as Layer
from globalstep.models.normalization_layers import BatchNormalization as BatchNormalization
from globalstep.models.pooling_layers import AveragePooling1D as AveragePooling1D
from globalstep.models.pooling_layers import AveragePooling2D as AveragePooling2D
from globalstep.models.pooling_layers import MaxPooling1D as MaxPooling1D
from globalstep.models.pooling_layers import MaxPooling2D as MaxPooling2D

"""`gs.layers`: layers that make their own Variables.

Layer: namespace.
"""

from globalstep.absent import ABSENT_IN_LAYERS
from globalstep.lazy import namespace

_NAMES = {
    "globalstep.models.convolution_layers": "Conv1D Conv2D",
    "globalstep.models.core_layers": "Dense Dropout Flatten",
    "globalstep.models.functional_layers": (
        "average_pooling1d average_pooling2d batch_normalization conv1d conv2d dense dropout flatten max_pooling1d "
        "max_pooling2d"
    ),
    "globalstep.models.layer": "InputSpec Layer",
    "globalstep.models.normalization_layers": "BatchNormalization",
    "globalstep.models.pooling_layers": "AveragePooling1D AveragePooling2D MaxPooling1D MaxPooling2D",
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_LAYERS)

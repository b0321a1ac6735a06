"""`gs.layers`: layers that make their own Variables.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.layers.convolution_layers": "Conv1D Conv2D Conv2DTranspose Conv3D Conv3DTranspose",
    "globalstep.tf1.layers.core_layers": "Dense Dropout Flatten",
    "globalstep.tf1.layers.functional_convolutions": (
        "average_pooling3d conv2d_transpose conv3d conv3d_transpose max_pooling3d separable_conv1d separable_conv2d"
    ),
    "globalstep.tf1.layers.functional_layers": (
        "average_pooling1d average_pooling2d batch_normalization conv1d conv2d dense dropout flatten max_pooling1d "
        "max_pooling2d"
    ),
    "globalstep.tf1.layers.layer": "InputSpec Layer",
    "globalstep.tf1.layers.normalization_layers": "BatchNormalization",
    "globalstep.tf1.layers.pooling_layers": (
        "AveragePooling1D AveragePooling2D AveragePooling3D MaxPooling1D MaxPooling2D MaxPooling3D"
    ),
    "globalstep.tf1.layers.separable_layers": "SeparableConv1D SeparableConv2D",
}

__all__ = namespace(__name__, _NAMES)

"""`gs.layers`: layers that make their own Variables.

Layer: namespace.
"""

from globalstep.absent import ABSENT_IN_LAYERS
from globalstep.lazy import namespace

_NAMES = {
    "globalstep.ops.layer_ops": "average_pooling2d batch_normalization conv2d dense dropout flatten max_pooling2d",
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_LAYERS)

"""`gs.losses`: the losses of TensorFlow's graphs.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

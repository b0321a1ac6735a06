"""`gs.math`: mathematical functions of nodes, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

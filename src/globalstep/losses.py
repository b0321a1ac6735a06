"""`gs.losses`: the losses of TensorFlow's graphs."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

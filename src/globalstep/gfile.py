"""`gs.gfile`: files by TensorFlow's names."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

"""`gs.gfile`: files by TensorFlow's names.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

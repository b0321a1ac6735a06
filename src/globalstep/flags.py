"""`gs.flags`: flags of the command line, as TensorFlow's programs define them.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

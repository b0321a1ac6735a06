"""`gs.flags`: flags of the command line, as TensorFlow's programs define them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

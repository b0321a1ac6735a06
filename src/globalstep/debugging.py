"""`gs.debugging`: checks of values and shapes, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

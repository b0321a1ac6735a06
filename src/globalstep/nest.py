"""`gs.nest`: nested tuples, lists and dicts, as TensorFlow 1.15 has them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

"""`gs.initializers`: initializers of Variables under their short names.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

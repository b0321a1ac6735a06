"""`gs.initializers`: initializers of Variables under their short names."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

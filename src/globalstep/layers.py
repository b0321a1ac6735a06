"""`gs.layers`: layers that make their own Variables."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

"""`gs.layers`: layers that make their own Variables.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

"""`gs.lookup`: lookup tables.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__, absent={"experimental": "use gs.contrib.lookup.MutableHashTable, or a Variable."})

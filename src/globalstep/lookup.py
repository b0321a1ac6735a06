"""`gs.lookup`: lookup tables."""

from globalstep.lazy import namespace

__all__ = namespace(__name__, absent={"experimental": "use gs.contrib.lookup.MutableHashTable, or a Variable."})

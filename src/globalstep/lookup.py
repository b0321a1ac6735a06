"""`gs.lookup`: lookup tables.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.text.lookup_tables": (
        "KeyValueTensorInitializer StaticHashTable=HashTable StaticVocabularyTable TextFileIndex TextFileInitializer"
    ),
}

__all__ = namespace(__name__, _NAMES, absent={"experimental": "use gs.contrib.lookup.MutableHashTable, or a Variable."})

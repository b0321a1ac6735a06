"""`gs.nest`: nested tuples, lists and dicts, as TensorFlow 1.15 has them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.graph.nest": ("assert_same_structure flatten is_nested=is_sequence map_structure pack_sequence_as")
}

__all__ = namespace(__name__, _NAMES)

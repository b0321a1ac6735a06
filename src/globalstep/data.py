"""`gs.data`: Datasets, and the iterators that give their elements to the graph."""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.absent import ABSENT_IN_DATA
from globalstep.tf1.data import TRANSFORMATIONS

__all__ = namespace(__name__, absent=ABSENT_IN_DATA)

#: An attribute, and a module that can be imported.
experimental = nested_namespace(f"{__name__}.experimental", TRANSFORMATIONS, absent=ABSENT_IN_DATA)

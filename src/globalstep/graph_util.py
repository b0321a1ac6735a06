"""`gs.graph_util`: frozen graphs, and parts of graphs."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

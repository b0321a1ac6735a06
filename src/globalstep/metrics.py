"""`gs.metrics`: metrics of a model over many batches, in local Variables."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

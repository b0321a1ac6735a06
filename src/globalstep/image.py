"""`gs.image`: functions of images."""

from globalstep.lazy import namespace
from globalstep.tf1.absent import ABSENT_IN_IMAGE

__all__ = namespace(__name__, absent=ABSENT_IN_IMAGE)

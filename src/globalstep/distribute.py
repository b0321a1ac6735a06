"""`gs.distribute`: the server of a task under its newer name; of strategies there are none."""

from globalstep.lazy import namespace
from globalstep.tf1.absent import ABSENT_IN_DISTRIBUTE

__all__ = namespace(__name__, absent=ABSENT_IN_DISTRIBUTE)

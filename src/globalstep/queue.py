"""`gs.queue`: queues, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__, absent={"PriorityQueue": "use gs.queue.FIFOQueue, or sort in Python."})

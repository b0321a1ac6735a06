"""`gs.queue`: queues, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {"globalstep.tf1.inputs.queues": "FIFOQueue PaddingFIFOQueue QueueBase RandomShuffleQueue"}

__all__ = namespace(__name__, _NAMES, absent={"PriorityQueue": "use gs.queue.FIFOQueue, or sort in Python."})

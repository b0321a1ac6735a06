# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.inputs.queues import FIFOQueue as FIFOQueue
from globalstep.tf1.inputs.queues import PaddingFIFOQueue as PaddingFIFOQueue
from globalstep.tf1.inputs.queues import QueueBase as QueueBase
from globalstep.tf1.inputs.queues import RandomShuffleQueue as RandomShuffleQueue

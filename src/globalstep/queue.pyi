# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.worker.inputs.queues import FIFOQueue as FIFOQueue
from globalstep.worker.inputs.queues import PaddingFIFOQueue as PaddingFIFOQueue
from globalstep.worker.inputs.queues import QueueBase as QueueBase
from globalstep.worker.inputs.queues import RandomShuffleQueue as RandomShuffleQueue

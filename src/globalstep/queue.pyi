# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.tf1.inputs.queues import FIFOQueue as FIFOQueue
from globalstep.tf1.inputs.queues import PaddingFIFOQueue as PaddingFIFOQueue
from globalstep.tf1.inputs.queues import QueueBase as QueueBase
from globalstep.tf1.inputs.queues import RandomShuffleQueue as RandomShuffleQueue

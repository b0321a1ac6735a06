"""`gs.train`: optimizers, schedules, sessions, hooks, savers, clusters and queues."""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.absent import ABSENT_IN_TRAIN

__all__ = namespace(__name__, absent=ABSENT_IN_TRAIN)

#: The module by which old programs reach these.
queue_runner = nested_namespace(
    f"{__name__}.queue_runner",
    {"globalstep.tf1.inputs.queue_runner": "QueueRunner add_queue_runner start_queue_runners"},
)

"""Batches that are ready before they are asked for: `tf.contrib.slim.prefetch_queue`.

Follows TensorFlow 1.15, contrib/slim/python/slim/data/prefetch_queue.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from globalstep.errors import CancelledError, OutOfRangeError
from globalstep.tf1.graph.graph import as_node, name_scope
from globalstep.tf1.inputs.inputs import fullness
from globalstep.tf1.inputs.queue_base import QueueBase
from globalstep.tf1.inputs.queue_runner import QueueRunner, add_queue_runner
from globalstep.tf1.inputs.queues import FIFOQueue, PaddingFIFOQueue
from globalstep.tf1.ops.summary_ops import scalar


def prefetch_queue(
    tensors: Any,
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """Make a queue that other threads keep filled with `tensors`, mostly batches; `dequeue` it.

    Args:
        tensors: A list or dict of nodes, or one node. The elements of the queue are such.
        capacity: Most elements that wait.
        num_threads: Threads that evaluate `tensors`; with more than one the order is not kept.
        dynamic_pad: Whether dimensions may vary, for `dequeue_many`, which then pads with zeros.
        shared_name: Queues of one graph with the same one are the same queue.
        name: Name of the scope; default "prefetch_queue".

    Returns:
        The queue. A dequeue when the input has ended raises OutOfRangeError.

    Raises:
        ValueError: With `dynamic_pad`, if the rank of a node is not known.
    """
    names = sorted(tensors) if isinstance(tensors, Mapping) else None
    items = [tensors[key] for key in names] if names is not None else tensors
    with name_scope(name, "prefetch_queue"):
        nodes = [as_node(item) for item in (items if isinstance(items, (list, tuple)) else [items])]
        kind = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        queue = kind(
            capacity,
            [node.dtype for node in nodes],
            [node.shape for node in nodes],
            names=names,
            shared_name=shared_name,
        )
        enqueue = queue.enqueue(nodes if names is None else dict(zip(names, nodes, strict=True)))
        ended = (OutOfRangeError, CancelledError)
        add_queue_runner(QueueRunner(queue, [enqueue] * num_threads, queue_closed_exception_types=ended))
        scalar(f"fraction_of_{capacity}_full", fullness(queue, capacity))
    return queue

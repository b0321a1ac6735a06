"""Queues as nodes: FIFOQueue, RandomShuffleQueue and PaddingFIFOQueue, of one process or shared by tasks.

A queue belongs to its graph and to this process: sessions on the graph share it. One with a shared_name, on the device
of a PS task, lives there, and all tasks share it (docs/inputs.md). Follows TensorFlow 1.15,
python/ops/data_flow_ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.inputs.queue_base import QueueBase, dtype_list, shape_list
from globalstep.tf1.inputs.queue_state import Made

__all__ = ["FIFOQueue", "PaddingFIFOQueue", "QueueBase", "RandomShuffleQueue"]


class FIFOQueue(QueueBase):
    """A queue that gives its elements in the order in which they came. Thread-safe.

    Args:
        capacity: Most elements that it holds; less than 0 for no limit.
        dtypes: Dtype of each component of an element.
        shapes: Shape of each component; needed for `dequeue_many`.
        names: Name of each component; elements are then dicts.
        shared_name: Queues of one graph with the same one are the same queue; on a PS task's device, those of all
            tasks.
        name: Name of the queue's node.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default():
    ...     queue = FIFOQueue(3, [gs.float32], shapes=[()])
    ...     feed, taken = queue.enqueue(1.5), queue.dequeue()
    >>> taken.name
    'fifo_queue_Dequeue:0'
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        super().__init__(Made("FIFOQueue", capacity), dtypes, shapes, names, shared_name, name)


class RandomShuffleQueue(QueueBase):
    """A queue that gives a random one of its elements. Thread-safe. The other arguments are those of FIFOQueue.

    Args:
        min_after_dequeue: Elements that stay inside, to be mixed with, as long as the queue is open.
        seed: Of the random choice; default the graph's seed, or another one each time.

    Raises:
        InvalidArgumentError: If `min_after_dequeue` is less than 0.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        if min_after_dequeue < 0:
            raise InvalidArgumentError(f"min_after_dequeue {min_after_dequeue} must be >= 0")
        chosen = seed if seed is not None else get_default_graph().seed
        made = Made("RandomShuffleQueue", capacity, True, min_after_dequeue, chosen)
        super().__init__(made, dtypes, shapes, names, shared_name, name)


class PaddingFIFOQueue(QueueBase):
    """A FIFOQueue whose batches are padded with zeros (or empty strings) to their largest element.

    Args:
        shapes: Shape of each component, of known rank; None for a dimension that may vary.

    Raises:
        ValueError: If a component has no shape or one of unknown rank.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        count = len(dtype_list(dtypes))
        if shapes is None:
            raise ValueError(f"Shapes must be provided for all components, but received {count} dtypes and 0 shapes.")
        if any(shape.ndims is None for shape in shape_list(shapes, count)):
            raise ValueError("Shapes must have a known rank.")
        super().__init__(Made("PaddingFIFOQueue", capacity), dtypes, shapes, names, shared_name, name)

    def _check_rows(self) -> None:
        """Any shape will do: rows are padded."""

    def _rows(self, index: int, column: Sequence[Any]) -> Any:
        if not column:
            return super()._rows(index, column)
        sizes = np.max([item.shape for item in column], axis=0).astype(int).tolist()
        if not sizes:
            return np.stack(column)
        dtype = self._dtypes[index]
        rows = np.full([len(column), *sizes], b"" if dtype.name == "string" else 0, dtype.as_numpy_dtype)
        for row, item in zip(rows, column, strict=True):
            row[tuple(slice(size) for size in item.shape)] = item
        return rows

"""Batching: queues between the threads that prepare examples and the loop that trains on batches.

Follows TensorFlow 1.15, python/training/input.py. A SparseTensor of an example of rank r becomes one of rank r + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import CancelledError, OutOfRangeError
from globalstep.tf1.graph.graph import Node, as_node, name_scope
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.inputs.inputs import fullness
from globalstep.tf1.inputs.queue_base import QueueBase, common_shape
from globalstep.tf1.inputs.queue_runner import QueueRunner, add_queue_runner
from globalstep.tf1.inputs.queues import FIFOQueue, PaddingFIFOQueue, RandomShuffleQueue
from globalstep.tf1.inputs.sparse_examples import Kind, kind_of, restored, stored
from globalstep.tf1.ops.summary_ops import scalar

#: The tensors of one example: a node or a SparseTensor, a list of those, or a dict of them.
Example = Any


def batch(
    tensors: Example,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make batches of `tensors`, prepared by other threads.

    Args:
        tensors: A value of one example: a list or dict of nodes, or one node.
        batch_size: Examples in a batch.
        num_threads: Threads that evaluate `tensors`; with more than one the order is not kept.
        capacity: Most examples that wait.
        enqueue_many: Whether `tensors` are batches themselves, whose rows are the examples.
        shapes: Shapes of an example, where `tensors` do not tell.
        dynamic_pad: Whether dimensions may vary; batches are padded with zeros.
        allow_smaller_final_batch: Whether the last batch may be smaller; else what is left is dropped.
        shared_name: Queues of one graph with the same one are the same queue.
        name: Name of the scope; default "batch".

    Returns:
        Nodes of batches, structured as `tensors`; of a list of one, the node itself. A SparseTensor becomes one whose
        first dimension is the batch. Running one when the input has ended raises OutOfRangeError.

    Raises:
        ValueError: If a shape is not known.
    """
    return maybe_batch(
        tensors, True, batch_size, num_threads, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
        shared_name, name,
    )  # fmt: skip


def maybe_batch(
    tensors: Example,
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make batches of `batch_size` of those `tensors` for which `keep_input` is true; see `batch`.

    `keep_input` is a bool, or a bool node; with `enqueue_many` it may have one for each row.
    """
    how = _BatchQueue(batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name)
    return _batch([tensors], how, name, num_threads, keep_input)


def batch_join(
    tensors_list: Sequence[Example],
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make batches of `batch_size` examples of several sources, each evaluated by a thread of its own; see `batch`.

    `tensors_list` has what `batch` takes, once for each thread; the batches are structured as one of it.
    """
    return maybe_batch_join(
        tensors_list, True, batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
        shared_name, name,
    )  # fmt: skip


def maybe_batch_join(
    tensors_list: Sequence[Example],
    keep_input: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make batches of those examples of `tensors_list` for which `keep_input` is true.

    See `batch_join` (`batch_size` too), and `maybe_batch` for `keep_input`, one for all sources.
    """
    how = _BatchQueue(batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name)
    return _batch(list(tensors_list), how, name or "batch_join", None, keep_input)


def shuffle_batch(
    tensors: Example,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make batches of `batch_size` `tensors` in random order, prepared by other threads; see `batch`.

    `min_after_dequeue` examples stay behind, to be mixed with; `capacity` is more than those. `seed` is of the order.
    """
    return maybe_shuffle_batch(
        tensors, batch_size, capacity, min_after_dequeue, True, num_threads, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name,
    )  # fmt: skip


def maybe_shuffle_batch(
    tensors: Example,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make shuffled batches of those `tensors` for which `keep_input` is true.

    See `shuffle_batch` (`batch_size`, `capacity`, `min_after_dequeue`), and `maybe_batch` for `keep_input`.
    """
    order = (min_after_dequeue, seed)
    how = _BatchQueue(batch_size, capacity, enqueue_many, shapes, False, allow_smaller_final_batch, shared_name, order)
    return _batch([tensors], how, name or "shuffle_batch", num_threads, keep_input)


def shuffle_batch_join(
    tensors_list: Sequence[Example],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make shuffled batches of several sources, each evaluated by a thread of its own.

    See `shuffle_batch` (`batch_size`, `capacity`, `min_after_dequeue`), and `batch_join` for `tensors_list`.
    """
    return maybe_shuffle_batch_join(
        tensors_list, batch_size, capacity, min_after_dequeue, True, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name,
    )  # fmt: skip


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Example],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Make shuffled batches of those examples of `tensors_list` for which `keep_input` is true.

    See `shuffle_batch` (`batch_size`, `capacity`, `min_after_dequeue`), and `maybe_batch_join` for `keep_input`.
    """
    order = (min_after_dequeue, seed)
    how = _BatchQueue(batch_size, capacity, enqueue_many, shapes, False, allow_smaller_final_batch, shared_name, order)
    return _batch(list(tensors_list), how, name or "shuffle_batch_join", None, keep_input)


@dataclass(frozen=True)
class _BatchQueue:
    """The queue between examples and batches, and how batches leave it.

    Attributes:
        batch_size: Examples of a batch.
        capacity: Of the queue.
        enqueue_many: Whether each source gives many examples at a time.
        shapes: Of the examples; None where the sources' are known.
        dynamic_pad: Whether examples of different shapes are padded.
        allow_smaller: Whether the last batch may be smaller.
        shared_name: Of the queue.
        shuffled: How many elements stay in a queue that gives them at random, and its seed; None for one in order.
    """

    batch_size: Any
    capacity: int
    enqueue_many: bool
    shapes: Any
    dynamic_pad: bool
    allow_smaller: bool
    shared_name: str | None
    shuffled: tuple[int, int | None] | None = None

    def queue(self, dtypes: Sequence[DType], elements: list[Any]) -> QueueBase:
        """Make the queue, with a summary of how full it is."""
        if self.shuffled is not None:
            least, seed = self.shuffled
            shuffling = RandomShuffleQueue(
                self.capacity, least, dtypes, elements, seed=seed, shared_name=self.shared_name
            )
            free = max(self.capacity - least, 1)
            scalar(f"fraction_over_{least}_of_{free}_full", fullness(shuffling, self.capacity, least))
            return shuffling
        kind = PaddingFIFOQueue if self.dynamic_pad else FIFOQueue
        queue = kind(self.capacity, dtypes, elements, shared_name=self.shared_name)
        scalar(f"fraction_of_{self.capacity}_full", fullness(queue, self.capacity))
        return queue


def _batch(
    sources: list[Example], batching: _BatchQueue, name: str | None, num_threads: int | None, keep_input: Any = True
) -> Any:
    if not sources:
        raise ValueError("Expected at least one set of tensors")
    if any(isinstance(source, Mapping) and {*source} != {*sources[0]} for source in sources[1:]):
        raise ValueError("All dictionaries in tensors_list must have the same keys")
    with name_scope(name, "batch") as scope:
        items = [[_component(item) for item in _items_of(source)] for source in sources]
        kinds = [kind_of(item) for item in items[0]]
        for others in items[1:]:
            other_kinds = [kind_of(item) for item in others]
            if other_kinds != kinds:
                raise TypeError(f"Expected types to be consistent: {_shown(other_kinds)} vs {_shown(kinds)}")
        flat = [[stored(item, batching.enqueue_many) for item in some] for some in items]
        dtypes = [node.dtype for node in flat[0]]
        shapes = batching.shapes
        if shapes is not None:
            shapes = [() if sparse else shape for shape, (_, sparse) in zip(shapes, kinds, strict=True)]
        queue = batching.queue(dtypes, _element_shapes(flat, shapes, batching.enqueue_many))
        ops = [_enqueue(queue, nodes, keep_input, batching.enqueue_many) for nodes in flat]
        if num_threads is not None:
            ops = ops * num_threads
        add_queue_runner(QueueRunner(queue, ops, queue_closed_exception_types=(OutOfRangeError, CancelledError)))
        take = queue.dequeue_up_to if batching.allow_smaller else queue.dequeue_many
        values = take(batching.batch_size, name=scope)
        batches = [
            restored(node, kind, item, batching.enqueue_many)
            for node, kind, item in zip(values if isinstance(values, list) else [values], kinds, items[0], strict=True)
        ]
        return _structured(sources[0], batches)


def _component(item: Any) -> Node | SparseTensor:
    if isinstance(item, (SparseTensor, SparseTensorValue)):
        return SparseTensor.from_value(item)
    return as_node(item)


def _shown(kinds: Sequence[Kind]) -> list[str]:
    return [f"SparseTensor of {dtype.name}" if sparse else dtype.name for dtype, sparse in kinds]


def _enqueue(queue: QueueBase, nodes: list[Node], keep_input: Any, enqueue_many: bool) -> Node:
    if keep_input is True:
        return queue.enqueue_many(nodes) if enqueue_many else queue.enqueue(nodes)
    # What is kept goes in as the rows of a batch, which may have none.
    keep = as_node(keep_input, "bool", name="keep_input")
    if keep.shape.ndims is None:
        raise ValueError("`keep_input` dimensions must be known at graph construction.")
    if keep.shape.ndims > enqueue_many:
        wrong = "must be 0 or 1 dimensions" if enqueue_many else "cannot be a vector when `enqueue_many=False`"
        raise ValueError(f"`keep_input` {wrong}.")
    rows_kept = []
    for node in nodes:
        static = node.shape
        sizes = None if static.ndims is None else static.as_list()
        batched = None if sizes is None else [None, *(sizes[1:] if enqueue_many else sizes)]
        attrs = {"many": enqueue_many}
        rows_kept.append(Node("KeepInput", [node, keep], dtype=node.dtype, shape=TensorShape(batched), attrs=attrs))
    return queue.enqueue_many(rows_kept)


@computes("KeepInput")
def _kept(value: Any, wanted: Any, *, many: bool) -> Any:
    array = np.asarray(value, object if isinstance(value, bytes | str) else None)
    array = array if many else array[None]
    mask = np.broadcast_to(np.asarray(wanted, dtype=bool), array.shape[:1])
    return array[mask]


def _items_of(source: Example) -> list[Any]:
    if isinstance(source, Mapping):
        return [source[key] for key in sorted(source)]
    return list(source) if isinstance(source, (list, tuple)) else [source]


def _structured(source: Example, values: list[Node | SparseTensor]) -> Any:
    if isinstance(source, Mapping):
        return dict(zip(sorted(source), values, strict=True))
    # As in TensorFlow, a list of one gives what is in it.
    return values[0] if len(values) == 1 else values


def _element_shapes(flat: list[list[Node]], shapes: Any, enqueue_many: bool) -> list[TensorShape]:
    """Give the shapes of an example, as far as all sources agree."""
    if shapes is not None:
        return [TensorShape(shape) for shape in shapes]
    example_shapes = []
    for column in zip(*flat, strict=True):
        merged = common_shape([node.shape for node in column])
        if enqueue_many and merged.ndims is not None:
            if merged.ndims == 0:
                raise ValueError(f"Node {column[0].name!r} is a scalar, but enqueue_many needs rows.")
            merged = merged[1:]
        example_shapes.append(merged)
    return example_shapes

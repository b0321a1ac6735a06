"""Input producers: queues that give file names, numbers or slices, epoch after epoch.

Follows TensorFlow 1.15, python/training/input.py. Epochs are counted in this process, not in a local
Variable: `local_variables_initializer` is not needed and does no harm.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph, name_scope
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.inputs.queue_base import QueueBase
from globalstep.tf1.inputs.queue_runner import QueueRunner, add_queue_runner
from globalstep.tf1.inputs.queues import FIFOQueue
from globalstep.tf1.ops.summary_ops import scalar

_NO_STRINGS = "string_input_producer requires a non-null input tensor"


class _Epochs:
    """Counts how often an input was given, up to a limit. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Guards _given; a leaf.
        self._lock = threading.Lock()
        self._given = 0

    def count(self, value: Any) -> Any:
        with self._lock:
            if self._given >= self._limit:
                raise OutOfRangeError(f"Reached limit of {self._limit}")
            self._given += 1
        return value

    def restart(self) -> None:
        with self._lock:
            self._given = 0


class _Shuffler:
    """Puts rows into another order each time. Thread-safe."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        # Guards _rng; a leaf.
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)

    def shuffle(self, rows: Any) -> Any:
        with self._lock:
            return np.asarray(rows)[self._rng.permutation(len(rows))]

    def restart(self) -> None:
        with self._lock:
            self._rng = np.random.default_rng(self._seed)


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Node:
    """Give `tensor` at most `num_epochs` times.

    Args:
        tensor: Any node or value.
        num_epochs: How many runs get it; None for no limit.
        name: Name of the scope; default "limit_epochs".

    Returns:
        A node with the value of `tensor`.

    Raises:
        ValueError: If `num_epochs` is not positive.
        OutOfRangeError: When run once too often.
    """
    return _limited(as_node(tensor), num_epochs, name)[0]


def _limited(node: Node, num_epochs: int | None, name: str | None = None) -> tuple[Node, _Epochs | None]:
    if num_epochs is None:
        return node, None
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    epochs = _Epochs(num_epochs)
    with name_scope(name, "limit_epochs"):
        limited = Node(
            "CountUpTo", [node], fn=epochs.count, name="epochs", dtype=node.dtype, shape=node.shape,
            attrs={"limit": num_epochs}, stateful=True,
        )  # fmt: skip
    return limited, epochs


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Node | None = None,
) -> QueueBase:
    """Make a queue of the rows of `input_tensor`, and the QueueRunner that fills it.

    Args:
        input_tensor: What to give, row by row.
        element_shape: Shape of a row, where `input_tensor` does not tell.
        num_epochs: How often each row is given; None for no end. Then the queue is closed.
        shuffle: Whether each epoch has its own order.
        seed: Of that order; default the graph's seed, or another one each time.
        capacity: Most rows that wait.
        shared_name: Queues of one graph with the same one are the same queue.
        summary_name: Name of a scalar summary of how full the queue is; None for none.
        name: Name of the scope and the queue; default "input_producer".
        cancel_op: Operation that cancels the queue.

    Returns:
        The queue.

    Raises:
        ValueError: If the shape of a row is not known, or `num_epochs` is not positive.
    """
    with name_scope(name, "input_producer") as scope:
        rows = as_node(input_tensor, name="input_tensor")
        shape = rows.shape
        element = TensorShape(None) if shape.ndims is None else shape[1:]
        if element_shape is not None:
            if not element.is_compatible_with(element_shape):
                raise ValueError(f"Shapes {element} and {TensorShape(element_shape)} are not compatible")
            element = TensorShape(element_shape)
        if not element.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be specified"
            )
        dtype = rows.dtype
        restarts: list[Any] = []
        if shuffle:
            shuffler = _Shuffler(get_default_graph().seed if seed is None else seed)
            restarts.append(shuffler)
            rows = Node("RandomShuffle", [rows], fn=shuffler.shuffle, dtype=dtype, shape=shape, stateful=True)
        rows, epochs = _limited(rows, num_epochs)
        queue = FIFOQueue(capacity, [dtype], shapes=[element], shared_name=shared_name, name=scope)
        for part in (*restarts, epochs):
            if part is not None:
                queue.on_restart(part.restart)
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            scalar(summary_name, fullness(queue, capacity))
    return queue


def fullness(queue: QueueBase, capacity: int, least: int = 0) -> Node:
    """Make the float32 node of how full a queue is, from 0 to 1, not counting `least` elements."""
    attrs = {"least": least, "span": max(capacity - least, 1)}
    return Node("QueueFullness", [queue.size()], name="fullness", dtype="float32", shape=(), attrs=attrs)


computes("QueueFullness", lambda n, *, least, span: np.float32(max(int(n) - least, 0) / span))


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Node | None = None,
) -> QueueBase:
    """Make a queue of strings, for example of file names for a reader.

    Args:
        string_tensor: The strings: a list, or a 1-D node.
        num_epochs: How often each is given; None for no end.
        shuffle: Whether each epoch has its own order.
        seed: Of that order.
        capacity: Most strings that wait.
        shared_name: Queues of one graph with the same one are the same queue.
        name: Name of the scope and the queue; default "input_producer".
        cancel_op: Operation that cancels the queue.

    Returns:
        The queue. Its QueueRunner and a summary of how full it is are in their collections.

    Raises:
        ValueError: If there are no strings.
        InvalidArgumentError: When run, if a node turns out to be empty.
    """
    is_node = isinstance(string_tensor, Node)
    if not is_node and np.size(string_tensor) == 0:
        raise ValueError(_NO_STRINGS)
    with name_scope(name, "input_producer") as scope:
        strings = as_node(string_tensor, "string", name="strings")
        if is_node:
            strings = Node("AssertStrings", [strings], name="Assert", dtype="string", shape=strings.shape)
        return input_producer(
            strings, (), num_epochs, shuffle, seed, capacity, shared_name,
            f"fraction_of_{capacity}_full", scope, cancel_op,
        )  # fmt: skip


@computes("AssertStrings")
def _require_strings(strings: Any) -> Any:
    if np.size(strings) == 0:
        raise InvalidArgumentError(_NO_STRINGS)
    return strings


def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """Make a queue of the numbers from 0 to `limit - 1`, a number or a scalar node; see `string_input_producer`."""
    with name_scope(name, "input_producer") as scope:
        numbers = Node("NumbersBelow", [as_node(limit, name="limit")], name="range", dtype="int32", shape=[None])
        return input_producer(
            numbers, (), num_epochs, shuffle, seed, capacity, shared_name,
            f"fraction_of_{capacity}_full", scope,
        )  # fmt: skip


computes("NumbersBelow", lambda end: np.arange(int(end), dtype=np.int32))


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Node]:
    """Make nodes of one row of each of `tensor_list`, values with as many rows each; see `string_input_producer`.

    Returns:
        One node for each of `tensor_list`, without its first dimension; all of the same row.

    Raises:
        ValueError: If the list is empty.
    """
    if not tensor_list:
        raise ValueError("Expected at least one tensor in slice_input_producer().")
    with name_scope(name, "input_producer"):
        tensors = [as_node(tensor, name="tensor") for tensor in tensor_list]
        count = Node("RowCount", [tensors[0]], dtype="int32", shape=())
        index = range_input_producer(count, num_epochs, shuffle, seed, capacity, shared_name).dequeue()
        return [_row(tensor, index) for tensor in tensors]


def _row(tensor: Node, index: Node) -> Node:
    shape = tensor.shape
    return Node("Row", [tensor, index], dtype=tensor.dtype, shape=None if shape.ndims is None else shape[1:])


computes("RowCount", lambda rows: np.int32(len(rows)))
computes("Row", lambda rows, number: np.asarray(rows)[int(number)])


def match_filenames_once(pattern: str | Sequence[str], name: str | None = None) -> Node:
    """Make the node of the names of the files that match, looked up once.

    Args:
        pattern: A glob pattern, or several.
        name: Name of the node; default "matching_filenames".

    Returns:
        A 1-D string node: the names, sorted.
    """
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    # Guards matches; file systems are asked under it, so that it happens once.
    lock = threading.Lock()
    matches: list[Any] = []

    def fn() -> Any:
        with lock:
            if not matches:
                names = sorted({os.fsencode(path) for each in patterns for path in glob.glob(each)})
                matches.append(np.array(names, dtype=object))
            return matches[0]

    return Node("MatchingFiles", fn=fn, name=name or "matching_filenames", dtype=as_dtype("string"),
                shape=[None], stateful=True)  # fmt: skip

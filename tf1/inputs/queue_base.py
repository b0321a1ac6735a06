"""Base of all queues: their nodes, and the dtypes, shapes and names of their elements.

Follows TensorFlow 1.15, python/ops/data_flow_ops.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph, name_scope, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.inputs.queue_state import Made, QueueState
from globalstep.tf1.inputs.shared_queue import SharedQueue, shared_place

if TYPE_CHECKING:
    from globalstep.worker.client.queue_calls import QueueCalls


_log = logging.getLogger("globalstep")

#: A queue's element or batch as programs give and get it: one component, a list, or a dict by name.
Components = Any
#: What holds a queue's elements: this process, or a PS task.
Held = QueueState | SharedQueue


class QueueBase:
    """Base class of queues.

    Args:
        made: Its kind, its capacity, and how it chooses.
        dtypes: Dtype of each component of an element.
        shapes: Shape of each component; None where elements may differ.
        names: Name of each component; elements are then dicts.
        shared_name: Queues of one graph with the same one are the same queue; those on a PS task, of all tasks.
        name: Name of the queue's node.

    Attributes:
        state: What it holds in this process, outside of any graph.
    """

    def __init__(self, made: Made, dtypes: Any, shapes: Any, names: Any, shared_name: str | None, name: str) -> None:
        self._dtypes = dtype_list(dtypes)
        self._shapes = shape_list(shapes, len(self._dtypes))
        self._names = _name_list(names, len(self._dtypes))
        graph = get_default_graph()
        # What outlives a session: the states of the graph's queues, by shared name or alone.
        states: dict[Any, QueueState] = graph.extras.setdefault(__name__, {})
        self._ref = Node(f"{made.kind}V2", name=name, dtype="string", shape=(), attrs={"queue": self})
        key: Any = shared_name or self._ref
        if key not in states:
            states[key] = made.state(f"_{len(states)}_{self._ref.op_name}")
        self.state: QueueState = states[key]
        self._restarts: list[Callable[[], None]] = []
        self._shared = None
        if shared_name:
            self._shared = shared_place(
                self._ref.device,
                pb.QueueAttributes(
                    name=shared_name,
                    kind=made.kind,
                    capacity=made.capacity,
                    dtypes=[dtype.name for dtype in self._dtypes],
                    shapes=[str(shape) for shape in self._shapes],
                    min_after_dequeue=made.min_after_dequeue,
                    seed=made.seed,
                ),
            )
        elif "/job:ps" in self._ref.device:
            _log.warning(
                "Queue %r is placed on %s, but without a shared_name it is this process's own, as in TensorFlow: other "
                "tasks do not see what is put in.",
                self._ref.op_name,
                self._ref.device,
            )

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """Make the queue that is queues[index] in each run.

        Args:
            index: Number of the queue, an integer or an integer node.
            queues: What it is one of; their dtypes and names are the same.

        Returns:
            A queue whose operations are those of the one that a run chooses.

        Raises:
            TypeError: If `queues` is not a list of queues, or their dtypes or names differ.
            InvalidArgumentError: When run, if there is no queue of that number.
        """
        if not queues or not isinstance(queues, list) or not all(isinstance(queue, QueueBase) for queue in queues):
            raise TypeError("A list of queues expected")
        if any(queue.dtypes != queues[0].dtypes for queue in queues):
            raise TypeError("Queues do not have matching component dtypes.")
        if any(queue.names != queues[0].names for queue in queues):
            raise TypeError("Queues do not have matching component names.")
        return _ChosenQueue(index, queues)

    def held(self, calls: QueueCalls) -> Held:
        """Give what holds its elements in a run of a session.

        Args:
            calls: The session's calls to queues on PS tasks.

        Raises:
            InvalidArgumentError: If it is on a PS task that the cluster does not have.
        """
        shared = None if self._shared is None else self._shared.queue(calls)
        return self.state if shared is None else shared

    @property
    def queue_ref(self) -> Node:
        """The node that stands for the queue."""
        return self._ref

    @property
    def name(self) -> str:
        """The name of its node."""
        return self._ref.op_name

    @property
    def dtypes(self) -> list[DType]:
        """The dtype of each component."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """The shape of each component."""
        return list(self._shapes)

    @property
    def names(self) -> list[str] | None:
        """The name of each component, if they have any."""
        return self._names

    def enqueue(self, vals: Components, name: str | None = None) -> Node:
        """Make the operation that appends one element, waiting while the queue is full.

        Args:
            vals: A value, a list of a value for each component, or a dict of them.
            name: Name of the operation.

        Raises:
            CancelledError: When run, if the queue is closed.
            InvalidArgumentError: When run, if a shape does not fit.
        """
        nodes = self._nodes_of(vals, self._shapes)

        def fn(state: Held, *values: Any) -> None:
            state.enqueue([self._element(values)])

        return self._operation("QueueEnqueueV2", "enqueue", fn, nodes, name)

    def enqueue_many(self, vals: Components, name: str | None = None) -> Node:
        """Make the operation that appends the rows of its arguments as elements, waiting while the queue is full.

        Args:
            vals: As for `enqueue`, each with one dimension more in front.
            name: Name of the operation.

        Raises:
            CancelledError: When run, if the queue is closed.
            InvalidArgumentError: When run, if a shape does not fit.
        """
        nodes = self._nodes_of(vals, [_batched(shape, None) for shape in self._shapes])

        def fn(state: Held, *values: Any) -> None:
            columns = [self._array(index, value) for index, value in enumerate(values)]
            if any(column.ndim == 0 for column in columns):
                raise InvalidArgumentError(f"Queue {self.name!r}: enqueue_many needs arguments with rows.")
            for index, column in enumerate(columns):
                if len(column) != len(columns[0]):
                    raise InvalidArgumentError(
                        "All input tensors must have the same size in the 0th dimension. Component "
                        f"{index} has {len(column)}, and should have {len(columns[0])}"
                    )
                self._check_shape(index, column.shape[1:])
            state.enqueue(list(zip(*(_elements(column) for column in columns), strict=True)))

        return self._operation("QueueEnqueueManyV2", "EnqueueMany", fn, nodes, name)

    def dequeue(self, name: str | None = None) -> Any:
        """Make the node of one element, taken from the queue; waits until there is one.

        Returns:
            A node; a list of nodes for several components; a dict where they have names.

        Raises:
            OutOfRangeError: When run, if the queue is closed and empty.
        """

        def fn(state: Held) -> Any:
            return state.dequeue(1)[0]

        return self._values("QueueDequeueV2", "Dequeue", fn, [], self._shapes, name)

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Make the node of `n` elements, one row each; waits until there are as many.

        Args:
            n: How many; a number or an int node.
            name: Name of the node.

        Returns:
            A node; a list of nodes for several components; a dict where they have names.

        Raises:
            OutOfRangeError: When run, if the queue is closed and has fewer.
            InvalidArgumentError: When run, if the components' shapes are not known.
        """
        return self._dequeue_rows("DequeueMany", n, name, allow_fewer=False)

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """Make the node of `n` elements, or of those left (at least one) when the queue is closed.

        Args:
            n: How many at most; a number or an int node.
            name: Name of the node.

        Returns:
            A node; a list of nodes for several components; a dict where they have names.

        Raises:
            OutOfRangeError: When run, if the queue is closed and empty.
            InvalidArgumentError: When run, if the components' shapes are not known.
        """
        return self._dequeue_rows("DequeueUpTo", n, name, allow_fewer=True)

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """Make the operation that closes the queue: no more elements come in, those inside stay.

        Args:
            cancel_pending_enqueues: Whether to cancel enqueues that wait for space (CancelledError); else they
                are let in first.
            name: Name of the operation.
        """

        def fn(state: Held) -> None:
            state.close(cancel_pending_enqueues)

        attrs = {"cancel_pending_enqueues": cancel_pending_enqueues}
        return self._operation("QueueCloseV2", "Close", fn, [], name, attrs)

    def size(self, name: str | None = None) -> Node:
        """Make the int32 node of how many elements it holds."""
        return self._reading("QueueSizeV2", "Size", lambda state: np.int32(state.size()), "int32", name)

    def is_closed(self, name: str | None = None) -> Node:
        """Make the bool node of whether it is closed."""
        return self._reading("QueueIsClosedV2", "IsClosed", lambda state: state.is_closed(), "bool", name)

    def on_restart(self, action: Callable[[], None]) -> None:
        """Have `action` called whenever the queue starts anew: its input goes back to the beginning."""
        self._restarts.append(action)

    def restart(self) -> None:
        """Open it again, empty, with its input at the beginning."""
        for action in self._restarts:
            action()
        self.state.restart()

    def _dequeue_rows(self, what: str, n: Any, name: str | None, allow_fewer: bool) -> Any:
        count = as_node(n, "int32", name="n")
        fixed = None if allow_fewer or count.op_type != "Const" else int(count.attrs["value"])

        def fn(state: Held, wanted: Any) -> Any:
            self._check_rows()
            elements = state.dequeue(int(wanted), allow_fewer)
            columns = list(zip(*elements, strict=True)) if elements else [()] * len(self._dtypes)
            return tuple(self._rows(index, column) for index, column in enumerate(columns))

        shapes = [_batched(shape, fixed) for shape in self._shapes]
        return self._values(f"Queue{what}V2", what, fn, [count], shapes, name)

    def _check_rows(self) -> None:
        if not all(shape.is_fully_defined() for shape in self._shapes):
            raise InvalidArgumentError(
                f"{type(self).__name__}'s DequeueMany and DequeueUpTo require the components to have "
                f"specified shapes; queue {self.name!r} has {self._shapes}."
            )

    def _rows(self, index: int, column: Sequence[Any]) -> Any:
        if not column:
            sizes = [size or 0 for size in self._shapes[index].as_list()]
            return np.zeros([0, *sizes], self._dtypes[index].as_numpy_dtype)
        return np.stack(column)

    def _element(self, values: Sequence[Any]) -> tuple[Any, ...]:
        arrays = tuple(self._array(index, value) for index, value in enumerate(values))
        for index, array in enumerate(arrays):
            self._check_shape(index, array.shape)
        return arrays

    def _array(self, index: int, value: Any) -> Any:
        # A copy: what was fed may be changed by its owner while it waits here.
        return np.array(value, dtype=self._dtypes[index].as_numpy_dtype)

    def _check_shape(self, index: int, shape: tuple[int, ...]) -> None:
        if not self._shapes[index].is_compatible_with(shape):
            raise InvalidArgumentError(
                f"Shape mismatch in tuple component {index} of queue {self.name!r}. Expected "
                f"{self._shapes[index]}, got {list(shape)}"
            )

    def _nodes_of(self, vals: Components, shapes: Sequence[TensorShape]) -> list[Node]:
        if isinstance(vals, Mapping):
            if self._names is None:
                raise ValueError("Queue must have names to enqueue a dictionary")
            if sorted(vals) != sorted(self._names):
                raise ValueError(
                    "Keys in dictionary to enqueue do not match names of Queue.  Dictionary: "
                    f"({','.join(sorted(map(str, vals)))}), Queue: ({','.join(sorted(self._names))})"
                )
            items = [vals[name] for name in self._names]
        elif self._names is not None:
            raise ValueError("You must enqueue a dictionary in a Queue with names")
        else:
            items = list(vals) if isinstance(vals, (list, tuple)) else [vals]
        if len(items) != len(self._dtypes):
            raise ValueError(f"Queue {self.name!r} has elements of {len(self._dtypes)} components, got {len(items)}.")
        nodes = []
        for index, (item, dtype, shape) in enumerate(zip(items, self._dtypes, shapes, strict=True)):
            node = as_node(item, dtype, name=f"component_{index}")
            node.shape.assert_is_compatible_with(shape)
            nodes.append(node)
        return nodes

    def _operation(
        self,
        op_type: str,
        what: str,
        fn: Callable[..., None],
        inputs: Sequence[Node],
        name: str | None,
        attrs: dict[str, Any] | None = None,
    ) -> Node:
        return Node(
            op_type, [self._ref, *inputs], fn=fn, name=name or f"{self._own_name()}_{what}", attrs=attrs,
            operation=True, stateful=True,
        )  # fmt: skip

    def _reading(self, op_type: str, what: str, fn: Callable[..., Any], dtype: str, name: str | None) -> Node:
        own = name or f"{self._own_name()}_{what}"
        return Node(op_type, [self._ref], fn=fn, name=own, dtype=dtype, shape=(), stateful=True)

    def _values(
        self,
        op_type: str,
        what: str,
        fn: Callable[..., Any],
        inputs: Sequence[Node],
        shapes: Sequence[TensorShape],
        name: str | None,
    ) -> Any:
        own = name or f"{self._own_name()}_{what}"
        single = len(self._dtypes) == 1
        node = Node(
            op_type, [self._ref, *inputs], fn=(lambda *args: fn(*args)[0]) if single else fn, name=own,
            dtype=self._dtypes[0] if single else None, shape=shapes[0] if single else None, stateful=True,
        )  # fmt: skip
        items = [node]
        if not single:
            with name_scope(f"{node.op_name}/"):
                items = [
                    tuple_item(node, index, name=f"component_{index}", dtype=dtype, shape=shape)
                    for index, (dtype, shape) in enumerate(zip(self._dtypes, shapes, strict=True))
                ]
        if self._names is not None:
            return dict(zip(self._names, items, strict=True))
        return items[0] if single else items

    def _own_name(self) -> str:
        return self.name.rpartition("/")[2]


class _ChosenQueue(QueueBase):
    """One of several queues, chosen in each run; see `QueueBase.from_list`. It has no elements of its own."""

    def __init__(self, index: Any, queues: Sequence[QueueBase]) -> None:
        self._dtypes = queues[0].dtypes
        self._names = queues[0].names
        self._shapes = [common_shape(shapes) for shapes in zip(*(queue.shapes for queue in queues), strict=True)]
        inputs = [as_node(index, name="index"), *(queue.queue_ref for queue in queues)]
        self._ref = Node("ChosenQueue", inputs, name="Gather", dtype="string", shape=(), stateful=True)


@computes("ChosenQueue")
def _chosen(number: Any, *held: Held) -> Held:
    if not 0 <= number < len(held):
        raise InvalidArgumentError(f"indices = {number} is not in [0, {len(held)}): the list of queues.")
    return held[int(number)]


def common_shape(shapes: Sequence[TensorShape]) -> TensorShape:
    """Give the shape that all of `shapes` are compatible with: sizes in which they differ are unknown."""
    if any(shape.ndims is None or shape.ndims != shapes[0].ndims for shape in shapes):
        return TensorShape(None)
    sizes = zip(*(shape.as_list() for shape in shapes), strict=True)
    return TensorShape([column[0] if len(set(column)) == 1 else None for column in sizes])


def _elements(column: Any) -> list[Any]:
    """Give the rows of an array; strings stay arrays of objects, which numpy takes no zeros from."""
    return [column[at, ...] for at in range(len(column))]


def _batched(shape: TensorShape, count: int | None) -> TensorShape:
    return TensorShape(None) if shape.ndims is None else TensorShape([count, *shape.as_list()])


def dtype_list(dtypes: Any) -> list[DType]:
    """Give the dtypes of a queue's components, however they were written."""
    return [as_dtype(dtype) for dtype in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])]


def shape_list(shapes: Any, count: int) -> list[TensorShape]:
    """Give the shapes of a queue's `count` components, however they were written.

    Raises:
        ValueError: If there are not as many.
    """
    if shapes is None:
        return [TensorShape(None)] * count
    listed = list(shapes) if isinstance(shapes, (list, tuple)) else [shapes]
    # The shape of a single component may come bare, as in `shapes=[28, 28]` or `shapes=()`.
    if count == 1 and all(size is None or isinstance(size, int) for size in listed) and listed != [None]:
        listed = [shapes]
    if len(listed) != count:
        raise ValueError(
            f"Queue shapes must have the same length as dtypes, received {len(listed)} shapes, {count} dtypes"
        )
    return [TensorShape(shape) for shape in listed]


def _name_list(names: Any, count: int) -> list[str] | None:
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else list(names)
    if len(listed) != count:
        raise ValueError(
            "Queue names must have the same length as the number of components, "
            f"received {len(listed)} names, {count} dtypes"
        )
    return listed

"""The graph: lazy nodes, their names and the collections that hold them.

A `Node` is one value (or effect) to be computed later. `Session.run` walks from the fetched nodes to
their inputs and calls each node's `fn` once a run. Nodes know nothing of servers: what changes a
Variable is a `Mutation` node (`globalstep.tf1.graph.mutations`), which the executor turns into a push.

Layer: tf1. Threads: a graph is built by one thread at a time; running it only reads it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from globalstep.cluster.program import UniqueNames
from globalstep.dtypes import DType, DTypeLike, as_dtype, string_array
from globalstep.tf1.graph.definition import describe_place, place_of_program
from globalstep.tf1.graph.device import apply_device_scopes
from globalstep.tf1.graph.graph_keys import GraphKeys
from globalstep.tf1.graph.kernels import computes, function_of, kernel_of
from globalstep.tf1.graph.node_operators import Operators
from globalstep.tf1.graph.shapes import Dimension, TensorShape

__all__ = [
    "Graph",
    "GraphKeys",
    "Node",
    "Operation",
    "add_to_collection",
    "add_to_collections",
    "as_node",
    "colocate_with",
    "container",
    "control_dependencies",
    "device",
    "get_collection",
    "get_collection_ref",
    "get_default_graph",
    "name_scope",
    "op_scope",
    "reset_default_graph",
    "tuple_item",
]

_T = TypeVar("_T")
_NO_SESSION = (
    "Cannot run a node: no default session is registered. Use `with sess.as_default()` or pass an explicit session."
)
_VALID_NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\-/]*$")


class Operation:
    """The operation behind a node, as `node.op`: TensorFlow's names for what a node already knows.

    Args:
        node: The node that this is the operation of.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def name(self) -> str:
        """The name without an output number."""
        return self._node.op_name

    @property
    def type(self) -> str:
        """The kind of operation, e.g. "MatMul"."""
        return self._node.op_type

    @property
    def graph(self) -> Graph:
        """The graph it is in."""
        return self._node.graph

    @property
    def device(self) -> str:
        """The device string it was placed on; "" for none."""
        return self._node.device

    @property
    def inputs(self) -> list[Node]:
        """Its data inputs."""
        return list(self._node.inputs)

    @property
    def control_inputs(self) -> list[Operation]:
        """The operations that run before it without giving it a value."""
        return [node.op for node in self._node.control_inputs]

    @property
    def outputs(self) -> list[Node]:
        """Its outputs: the node, unless it has no value."""
        return [] if self._node.is_operation else [self._node]

    @property
    def node_def(self) -> Any:
        """Its NodeDef in a GraphDef, with name, op, input, device and attr. Made anew each time."""
        # That knows the classes of nodes, which import this module.
        from globalstep.tf1.graph.graph_def import node_def

        return node_def(self._node)

    def run(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> None:
        """Run it in `session`, or in the default session."""
        self._node.run(feed_dict, session)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and other._node is self._node

    def __hash__(self) -> int:
        return hash((Operation, id(self._node)))

    def __repr__(self) -> str:
        return f"<gs.Operation {self.name!r} type={self.type}>"


class Node(Operators):
    """One lazy value: `fn` of the values of `inputs`.

    Its operators (`+`, `@`, `[...]`, ...) are those of `globalstep.tf1.graph.node_operators`.

    Args:
        op_type: Kind, in TensorFlow's spelling ("MatMul").
        inputs: Nodes whose values `fn` gets, in order.
        fn: A function of the program, from the input values to the value (`py_func`). Default: that of the kind's
            kernel (`globalstep.tf1.graph.kernels`); none for what the executor itself knows (placeholders, Variables,
            mutations).
        name: Wanted name; made unique in the graph and put under the current name scope.
            Default: `op_type`.
        dtype: Static dtype where known: nothing evaluates a node to find it out.
        shape: Static shape where known.
        attrs: Static attributes, for the executor, `write_graph` and lowering to expressions.
        operation: True for a node without a value (TensorFlow's Operation): running it gives None.
        stateful: True when `fn` has effects or draws random numbers.
        control_inputs: Nodes to run first, besides those of the current `control_dependencies`.
        graph: The graph to add it to; default the current one.
        device: Overrides the device of the current `device` scopes.

    Attributes:
        op_name: Unique name in the graph, without ":0".
        device: Device string, "" for none, e.g. "/job:ps/task:1".
        own_fn: The function of the program that computes it; None where a kernel does.
        is_read: Whether a file gave it: nothing of it is evaluated but in a run.
    """

    is_read = False
    own_fn: Callable[..., Any] | None = None
    _kernel_fn: Callable[..., Any] | None = None
    __array_priority__ = 1000  # numpy arrays leave `array + node` to us
    __array_ufunc__ = None  # the same, for ufuncs

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[Node] = (),
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        shape: Any = None,
        attrs: dict[str, Any] | None = None,
        operation: bool = False,
        stateful: bool = False,
        control_inputs: Sequence[Node] = (),
        graph: Graph | None = None,
        device: str | None = None,
    ) -> None:
        self.op_name: str
        self.graph = graph if graph is not None else get_default_graph()
        for node in inputs:
            if node.graph is not self.graph:
                raise ValueError(f"Node {node.op_name!r} is not an element of this graph.")
        self.op_type = op_type
        self.inputs: tuple[Node, ...] = tuple(inputs)
        self.own_fn = fn
        self.attrs: dict[str, Any] = attrs or {}
        self.is_operation = operation
        self.stateful = stateful
        self._dtype: DType | None = None if dtype is None else as_dtype(dtype)
        self._shape: TensorShape | None = None if shape is None else TensorShape(shape)
        self.op_name = self.graph.unique_name(name or op_type)
        self.control_inputs: tuple[Node, ...] = tuple(
            dict.fromkeys((*control_inputs, *self.graph.current_control_inputs()))
        )
        self.device = self.graph.device_for(self) if device is None else device
        self._place = place_of_program()
        self.graph.add_node(self)

    @property
    def fn(self) -> Callable[..., Any] | None:
        """The function of the input values to the value; None for what only the executor knows."""
        if self.own_fn is not None:
            return self.own_fn
        if self._kernel_fn is None:
            self._kernel_fn = function_of(self)
        return self._kernel_fn

    @property
    def defined_at(self) -> str:
        """The program's line that made it, "train.py:12, in build"; "" where there was none."""
        return describe_place(self._place)

    @property
    def name(self) -> str:
        """TensorFlow's name: with ":0" for a value, without for an operation."""
        return self.op_name if self.is_operation else f"{self.op_name}:0"

    @property
    def op(self) -> Operation:
        """The operation that makes this value."""
        return Operation(self)

    @property
    def dtype(self) -> DType:
        """Dtype of the value.

        Raises:
            ValueError: If it is not known before the node runs.
        """
        if self._dtype is None:
            raise ValueError(f"The dtype of {self.name!r} ({self.op_type}) is not known before it runs.")
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """Static shape of the value; dimensions that depend on feeds are None, or all of it is unknown."""
        if self._shape is None:
            self._shape = TensorShape(None)
        return self._shape

    def get_shape(self) -> TensorShape:
        """The static shape (TensorFlow's older spelling)."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """State what more is known of the shape.

        Raises:
            ValueError: If it does not go with what is known.
        """
        self._shape = self.shape.merge_with(shape)

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Give the value, run in `session` or in the default session."""
        return session_or_default(session).run(self, feed_dict)

    def run(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> None:
        """Run for the effect, in `session` or in the default session."""
        session_or_default(session).run(self, feed_dict)

    # Identity, as in TensorFlow 1.x: nodes are keys of feeds. Object's own are the fastest for plans.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __bool__(self) -> bool:
        raise TypeError(
            "Using a `gs.Node` as a Python `bool` is not allowed. Use `if t is not None:` instead of "
            "`if t:` to test whether one is defined; its value exists only in Session.run."
        )

    def __iter__(self) -> Iterator[Node]:
        rows = self.shape.as_list()[0] if self.shape.ndims else None
        if rows is None:
            raise TypeError(f"Node {self.name!r} is not iterable: its first dimension is not known.")
        return (self[i] for i in range(rows))

    def __repr__(self) -> str:
        return f"<gs.Node {self.name!r} op={self.op_type}>"


def session_or_default(session: Any, why_not: str = _NO_SESSION) -> Any:
    """Give a session, or the default session in place of None; a ValueError, with a text, without either."""
    chosen = session if session is not None else _stack.sessions[-1] if _stack.sessions else None
    if chosen is None:
        raise ValueError(why_not)
    return chosen


class Graph:
    """Nodes, their unique names, and the collections they are in."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.seed: int | None = None
        self.finalized = False
        self._by_name: dict[str, Node] = {}
        self.names = UniqueNames()
        self._scope = ""
        self._control: list[tuple[Node, ...]] = []
        self._devices: list[Any] = []
        self._gradients: dict[str, str] = {}
        self._collections: dict[str, list[Any]] = {}
        #: Other modules' per-graph state, keyed by their module name (variable scopes, ...).
        self.extras: dict[str, Any] = {}

    def add_node(self, node: Node) -> None:
        """Take in a node.

        Raises:
            RuntimeError: If the graph is finalized.
        """
        if self.finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")
        self.nodes.append(node)
        self._by_name[node.op_name] = node
        if node.op_type in self._gradients:
            node.attrs["_gradient_op_type"] = self._gradients[node.op_type]

    def finalize(self) -> None:
        """Refuse any more nodes, so that a training loop cannot grow the graph."""
        self.finalized = True

    @property
    def version(self) -> int:
        """The number of nodes; it grows whenever the graph changes."""
        return len(self.nodes)

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the default graph of the thread within a `with` block."""
        _stack.graphs.append(self)
        try:
            yield self
        finally:
            _stack.graphs.remove(self)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """Give `name` under the current scope, with `_1`, `_2`, ... appended if it is taken.

        A name that ends in "/" is taken as a full name, as in TensorFlow.

        Raises:
            ValueError: If the name has characters that TensorFlow does not allow.
        """
        if name.endswith("/"):
            return name[:-1]
        full = f"{self._scope}/{name}" if self._scope else name
        if not name or not _VALID_NAME.match(full):
            raise ValueError(f"'{name}' is not a valid scope name")
        return self.names.unique(full, mark_as_used)

    @contextlib.contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Put the names made within the block under `name`; yields the scope with a final "/"."""
        old = self._scope
        if not name:
            self._scope = ""
        elif name.endswith("/"):
            self._scope = name[:-1]
        else:
            self._scope = self.unique_name(name)
        try:
            yield f"{self._scope}/" if self._scope else ""
        finally:
            self._scope = old

    def get_name_scope(self) -> str:
        """Give the current name scope, without a final "/"; "" at the root."""
        return self._scope

    @contextlib.contextmanager
    def control_dependencies(self, control_inputs: Sequence[Any] | None) -> Iterator[None]:
        """Make the nodes created within the block run after `control_inputs`; None clears outer ones."""
        old = self._control
        if control_inputs is None:
            self._control = []
        else:
            self._control = [*old, tuple(self.as_graph_element(item) for item in control_inputs)]
        try:
            yield
        finally:
            self._control = old

    def current_control_inputs(self) -> tuple[Node, ...]:
        """The nodes that a node created now must wait for."""
        return tuple(node for group in self._control for node in group)

    @contextlib.contextmanager
    def gradient_override_map(self, op_type_map: dict[str, str]) -> Iterator[None]:
        """Give the nodes created within the block the gradients of other op types; see `gs.RegisterGradient`."""
        old = self._gradients
        self._gradients = {**old, **op_type_map}
        try:
            yield
        finally:
            self._gradients = old

    @contextlib.contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Place the nodes created within the block: a device string, a function of the node, or None."""
        old = self._devices
        self._devices = [] if device_name_or_function is None else [*old, device_name_or_function]
        try:
            yield
        finally:
            self._devices = old

    def device_for(self, node: Node) -> str:
        """The device that the current scopes give to `node`: inner scopes win, part by part."""
        return apply_device_scopes(node, self._devices) if self._devices else ""

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append `value` to the collection `name`."""
        if self.finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")
        self._collections.setdefault(name, []).append(value)

    def get_collection_ref(self, name: str) -> list[Any]:
        """The collection itself, made if need be: changes to it last."""
        return self._collections.setdefault(name, [])

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """A copy of the collection; with `scope`, only items whose name matches it from the start."""
        items = self._collections.get(name, [])
        if scope is None:
            return list(items)
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_all_collection_keys(self) -> list[str]:
        """The names of the collections that hold something."""
        return [name for name, items in self._collections.items() if items]

    def clear_collection(self, name: str) -> None:
        """Empty the collection `name`."""
        self._collections.pop(name, None)

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The graph as a GraphDef, always whole and with shapes; `gs.import_graph_def` reads it."""
        # That knows the classes of nodes, which import this module.
        from globalstep.tf1.exporting.graph_files import portable_graph_def

        return portable_graph_def(self)

    def get_operations(self) -> list[Operation]:
        """All operations, in order of creation."""
        return [node.op for node in self.nodes]

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation named `name` (no ":0")."""
        return self._find(name, "operation").op

    def get_tensor_by_name(self, name: str) -> Node:
        """The value named `name`, with its output number: "loss:0"."""
        if not name.endswith(":0"):
            raise ValueError(
                f"The name {name!r} refers to an Operation, not a Tensor. Tensor names must be of the "
                'form "<op_name>:<output_index>".'
            )
        return self._find(name[:-2], "tensor")

    def _find(self, name: str, what: str) -> Node:
        node = self._by_name.get(name)
        if node is None:
            raise KeyError(
                f"The name {name!r} refers to a {what} which does not exist in the graph of {len(self.nodes)} nodes."
            )
        return node

    def as_graph_element(self, obj: Any) -> Node:
        """The node that `obj` (a Node, Operation, name, or something with `__node__`) stands for.

        Raises:
            TypeError: If `obj` cannot stand for a node.
            ValueError: If it is a node of another graph.
            KeyError: If no node has that name.
        """
        if isinstance(obj, str):
            return self._find(obj[:-2] if obj.endswith(":0") else obj, "node")
        node = obj._node if isinstance(obj, Operation) else obj
        if not isinstance(node, Node) and hasattr(node, "__node__"):
            node = node.__node__()
        if not isinstance(node, Node):
            raise TypeError(f"Can not convert a {type(obj).__name__} into a Tensor or Operation.")
        if node.graph is not self:
            raise ValueError(f"Tensor {node.name!r} is not an element of this graph.")
        return node


def closure_of(roots: Iterable[_T], sources: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """Give some nodes and all that they need, where `sources` gives what one needs itself."""
    reached: set[_T] = set()
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting.extend(sources(one))
    return reached


class _Stack(threading.local):
    """The thread's default graphs and sessions, innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.sessions: list[Any] = []


_stack = _Stack()
# The default graph outside any `as_default`, shared by all threads, as in TensorFlow.
_root = [Graph()]


def get_default_graph() -> Graph:
    """The graph that new nodes go to: the innermost `as_default` of the thread, or the global one."""
    return _stack.graphs[-1] if _stack.graphs else _root[0]


def reset_default_graph() -> None:
    """Start the global default graph anew.

    Raises:
        AssertionError: Inside a `with graph.as_default()` block, as in TensorFlow.
    """
    if _stack.graphs:
        raise AssertionError("Do not use gs.reset_default_graph() to clear nested graphs.")
    _root[0] = Graph()


def default_sessions() -> list[Any]:
    """The thread's stack of default sessions, innermost last; sessions push and pop themselves."""
    return _stack.sessions


def as_node(value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Node:
    """Give the node for a value: a Node as it is, anything else as a constant.

    Args:
        value: Node, Variable, object with `__node__`, array, number, string or nested list.
        dtype: Dtype of a constant; default float32 for Python floats, int32 for Python ints.
        name: Name of the constant.

    Returns:
        A node.

    Raises:
        ValueError: If a node's dtype is not the asked one.
    """
    if isinstance(value, Node):
        if dtype is not None and value.dtype != as_dtype(dtype):
            raise ValueError(
                f"Tensor conversion requested dtype {as_dtype(dtype).name} for Tensor with dtype "
                f"{value.dtype.name}: {value!r}"
            )
        return value
    if hasattr(value, "__node__"):
        return as_node(value.__node__(), dtype)
    if isinstance(value, (list, tuple)) and any(_holds_node(item) for item in value):
        from globalstep.tf1.ops.joining_ops import stack
        from globalstep.tf1.ops.math_ops import cast

        if dtype is None:
            # What is plain takes the dtype of the nodes beside it.
            return stack(value)
        # Unlike a node, a list of nodes becomes the dtype that is asked for.
        parts = [
            cast(as_node(item), dtype)
            if _holds_node(item) and not isinstance(item, (list, tuple))
            else as_node(item, dtype)
            for item in value
        ]
        return stack(parts)
    array = constant_array(value, dtype)
    return Node("Const", name=name or "Const", dtype=array.dtype, shape=array.shape, attrs={"value": array})


computes("Const", lambda *, value: value)


def tuple_item(
    node: Node, index: int, *, name: str | None = None, dtype: DTypeLike | None = None, shape: Any = None
) -> Node:
    """Give one value of a node whose `fn` returns a tuple.

    Args:
        node: The node with several values.
        index: Which of them.
        name: Name of the new node; default the name of `node`.
        dtype: Its dtype, where known.
        shape: Its static shape, where known.

    Returns:
        A node.
    """
    return Node(
        "TupleItem", (node,), name=name or node.op_name.rsplit("/", 1)[-1], dtype=dtype, shape=shape,
        attrs={"index": index},
    )  # fmt: skip


@kernel_of("TupleItem")
def _item(node: Node) -> Callable[[Any], Any]:
    return itemgetter(node.attrs["index"])


def _holds_node(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_node(item) for item in value)
    return isinstance(value, Node) or hasattr(value, "__node__")


def constant_array(value: Any, dtype: DTypeLike | None = None) -> np.ndarray[Any, Any]:
    """The array of a constant with TensorFlow's default dtypes (float32, int32, bool, string).

    It is a copy: what the program does to an array of its own later does not change the graph.

    >>> constant_array([1.5, 2]).dtype, constant_array(3).dtype
    (dtype('float32'), dtype('int32'))
    """
    if hasattr(value, "dense_shape") and not isinstance(value, tuple):
        raise TypeError(
            f"Failed to convert object of type {type(value).__name__} to Tensor. Contents: {value}. A sparse value "
            "is not a tensor: sparse_tensor_to_dense makes it one."
        )
    if value is None:
        raise ValueError("None values not supported.")
    if dtype is not None:
        kind, wanted = as_dtype(dtype), as_dtype(dtype).as_numpy_dtype
        plain = np.empty(0) if isinstance(value, (np.ndarray, np.generic)) or not kind.is_integer else np.array(value)
        if plain.size and plain.dtype.kind == "f":
            raise TypeError(f"Expected {kind.name}, got {value} of type 'float' instead.")
        return np.array(string_array(value) if wanted is object else value, dtype=wanted)
    typed = isinstance(value, (np.ndarray, np.generic))
    try:
        array = np.array(value)
    except UnicodeDecodeError:
        # Bytes and text in one list.
        array = np.array(value, dtype=object)
    if array.dtype.kind == "O":
        array = _sizes_as_numbers(array)
    if array.dtype.kind in "OUS":
        # numpy's own strings lose the zeros at their end.
        return np.array(string_array(array if typed else value))
    if not typed and array.dtype == np.float64:
        return array.astype(np.float32)
    if not typed and array.dtype == np.int64 and (array.size == 0 or np.all(np.abs(array) < 2**31)):
        return array.astype(np.int32)
    return array


def _sizes_as_numbers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an array that has Dimensions as one of integers."""
    items = array.reshape(-1).tolist()
    if not any(isinstance(item, Dimension) for item in items):
        return array
    if any(isinstance(item, Dimension) and item.value is None for item in items):
        raise ValueError("Cannot convert an unknown Dimension to a Tensor: ?")
    return np.array([int(item) for item in items], np.int64).reshape(array.shape)


def name_scope(name: str | None, default_name: str | None = None, values: Any = None) -> Any:
    """Open a name scope on the default graph; see Graph.name_scope. `values` is accepted, not needed."""
    return get_default_graph().name_scope(name if name is not None else default_name)


def op_scope(values: Any, name: str | None, default_name: str | None = None) -> Any:
    """Open a name scope by TensorFlow's older name; see `name_scope`."""
    return name_scope(name, default_name, values)


def control_dependencies(control_inputs: Sequence[Any] | None) -> Any:
    """Order what is created in the block after `control_inputs`; see Graph.control_dependencies."""
    return get_default_graph().control_dependencies(control_inputs)


def device(device_name_or_function: Any) -> Any:
    """Place what is created in the block; see Graph.device."""
    return get_default_graph().device(device_name_or_function)


def container(container_name: str) -> contextlib.AbstractContextManager[None]:
    """Accept a container for what is created in the block; all Variables and queues of a PS task are in one."""
    return contextlib.nullcontext()


def colocate_with(op: Any, ignore_existing: bool = False) -> Any:
    """Place what is created in the block where `op` is.

    Args:
        op: A node, a Variable or an operation.
        ignore_existing: Accepted: the device of `op` goes before those of outer blocks anyway.
    """
    graph = get_default_graph()
    place = graph.as_graph_element(op).device
    return graph.device(place) if place else contextlib.nullcontext()


def add_to_collection(name: str, value: Any) -> None:
    """Append to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Sequence[str] | str | None, value: Any) -> None:
    """Append to several collections of the default graph, to each once."""
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names or ()))
    for name in wanted:
        get_default_graph().add_to_collection(name, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """A copy of a collection of the default graph; see Graph.get_collection."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """A collection of the default graph itself."""
    return get_default_graph().get_collection_ref(key)

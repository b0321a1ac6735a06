"""A graph as a GraphDef that can be imported again.

The GraphDef is the one that TensorBoard draws (`globalstep.tf1.graph.graph_def`); each node has an attribute more,
`_globalstep`, with what it is here (`globalstep.tf1.exporting.values`): data alone. What computes it is the kernel of
its op. What a file cannot hold (a function of the program, a queue) becomes a node that refuses to run, and says so; it
can still be fed.

Layer: tf1. Threads: graphs are read and built by one thread at a time.
"""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.errors import FailedPreconditionError
from globalstep.files.tensorboard_protos import DATA_TYPES, GraphDef, NodeDef
from globalstep.tf1.exporting.values import NotWritableError, SharedObjects, ValueReader, ValueWriter
from globalstep.tf1.graph.graph import Graph, Node, Operation, get_default_graph
from globalstep.tf1.graph.graph_def import graph_def as drawn
from globalstep.tf1.graph.graph_def import tensor_proto
from globalstep.tf1.graph.kernels import has_kernel
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.text.lookup_tables import LookupTable
from globalstep.tf1.variables.variables import Variable

#: The attribute of a NodeDef that says what the node is here.
PAYLOAD = "_globalstep"
_CLASSES: dict[str, type[Node]] = {"Node": Node, "Variable": Variable, "Mutation": Mutation}
#: What a file may say of a node, besides what computes it, and of what kind that is.
_STATE: dict[str, Any] = {
    "_dtype": DType | None, "_shape": TensorShape | None, "aliases": list, "control_inputs": tuple, "inputs": tuple,
    "is_operation": bool, "op_type": str, "stateful": bool,
}  # fmt: skip
_STATE_OF: dict[type[Node], dict[str, Any]] = {
    Node: _STATE,
    Variable: _STATE
    | {"_initial_value": Node, "_initializer": Mutation, "is_local": bool, "is_own": bool, "is_step": bool}
    | {"optimizer_name": str, "primary": Variable | None, "save_slice_info": object, "slot_name": str}
    | {"trainable": bool},
    Mutation: _STATE
    | {"after_increment": bool, "guards": tuple, "increments": tuple, "parts": tuple, "uses": tuple}
    | {"value_of": Variable | None},
}
#: What reading a damaged or hostile value raises.
DAMAGED = (
    *(NotWritableError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError),
    *(SyntaxError, OverflowError, MemoryError),
)
#: The function of `custom_gradient`, which is the program's.
_NOT_ATTRS = {"gradient"}
#: Packages of the ops that a file may name.
_KERNELS = (
    *("contrib", "distributions", "feature_columns", "gradients", "graph", "images", "inputs", "layers", "loops"),
    *("metrics", "ops", "optimizers", "rnn", "text", "variables"),
)
_NAMES = {number: name for name, number in DATA_TYPES.items()}

_NOT_OURS = (
    "{what} was not written by globalstep: its {count} nodes ({kinds}) are TensorFlow's operations, which only "
    "TensorFlow computes. Build the graph with the model's own code, and restore the Variables: gs.train.Saver reads "
    "checkpoints that `globalstep checkpoint import` has converted."
)


def portable_graph_def(graph: Graph, clear_devices: bool = False) -> GraphDef:
    """Give a graph as a GraphDef that `import_graph_def` reads.

    Args:
        graph: The graph.
        clear_devices: Whether to leave out on which devices nodes are placed.

    Returns:
        A GraphDef with all constants.
    """
    graph_def = drawn(graph, whole=True)
    nodes = {node.op_name: node for node in graph.nodes}
    for written in graph_def.node:
        node = nodes.get(written.name)
        if node is not None:
            written.attr[PAYLOAD].s = json.dumps(_payload(node), separators=(",", ":")).encode()
        if clear_devices:
            written.device = ""
    return graph_def


def _payload(node: Node) -> dict[str, Any]:
    kind = next((name for name, kind in _CLASSES.items() if type(node) is kind), None)
    try:
        if kind is None:
            raise NotWritableError(f"it is a {type(node).__name__}, made of what belongs to one program")
        if node.own_fn is not None:
            raise NotWritableError(node.attrs.get("missing", "its function is the program's"))
        writer = ValueWriter(node.graph)
        if node.op_type == "Const":
            texts = node.attrs["value"].dtype == object and all(isinstance(i, str) for i in node.attrs["value"].flat)
            return {"const": "text" if texts else "value", "state": _state(node, writer, ("control_inputs",))}
        written: dict[str, Any] = {"class": kind, "state": _state(node, writer)}
        written["computed"] = has_kernel(node.op_type)
        written["attrs"] = {name: writer.write(item) for name, item in node.attrs.items() if name not in _NOT_ATTRS}
    except NotWritableError as error:
        writer = ValueWriter(node.graph)
        names = ("op_type", "is_operation", "stateful", "_dtype", "_shape", "inputs", "control_inputs")
        return {"class": "Node", "state": _state(node, writer, names), "missing": str(error)}
    return written


def _state(node: Node, writer: ValueWriter, names: Iterable[str] | None = None) -> dict[str, Any]:
    chosen = [name for name in vars(node) if name in _STATE_OF[type(node)]] if names is None else names
    return {name: writer.write(getattr(node, name)) for name in chosen}


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Give the array of a TensorProto, as `globalstep.tf1.graph.graph_def` and TensorFlow write it."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    name = _NAMES.get(tensor.dtype, "")
    if name == "string":
        array = np.empty(len(tensor.string_val), object)
        array[:] = list(tensor.string_val)
        return array.reshape(shape)
    if not name:
        raise NotWritableError(f"a constant of TensorFlow's type {tensor.dtype}")
    dtype = np.dtype(as_dtype(name).as_numpy_dtype)
    if len(tensor.tensor_content) != dtype.itemsize * int(np.prod(shape)):
        raise NotWritableError(f"a constant of {len(tensor.tensor_content)} bytes, which no {name}{shape} takes")
    return np.frombuffer(tensor.tensor_content, dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def constant_def(name: str, value: np.ndarray[Any, Any], device: str = "") -> NodeDef:
    """Give the NodeDef of a constant, as `portable_graph_def` has it."""
    written = NodeDef(name=name, op="Const", device=device)
    written.attr["dtype"].type = DATA_TYPES[as_dtype(value.dtype).name]
    written.attr["value"].tensor.CopyFrom(tensor_proto(value))
    written.attr[PAYLOAD].s = json.dumps({"const": "value", "state": {"control_inputs": {"tuple": []}}}).encode()
    return written


def named_nodes(written: NodeDef) -> set[str]:
    """Give the names of the nodes that one needs: its inputs, and what else it is computed from."""
    names = {item.removeprefix("^").partition(":")[0] for item in written.input}
    if PAYLOAD in written.attr:
        payload = json.loads(written.attr[PAYLOAD].s)
        _collect([payload.get("state"), payload.get("attrs")], names)
    return names


def _collect(written: Any, names: set[str]) -> None:
    waiting = [written]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "node" in item and isinstance(item["node"], str):
                names.add(item["node"])
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def import_nodes(
    written: GraphDef,
    graph: Graph,
    scope: str = "",
    input_map: Mapping[str, Node] | None = None,
    clear_devices: bool = False,
    what: str = "The GraphDef",
) -> tuple[dict[str, Node], SharedObjects]:
    """Add the nodes of a GraphDef to a graph: all, or none if one cannot be.

    Args:
        written: What `portable_graph_def` gave, whole or in part.
        graph: Where to.
        scope: What their names begin with, "" or with a final "/".
        input_map: Name in the GraphDef -> node of the graph to use in its place.
        clear_devices: Whether to place them on no device.
        what: What the GraphDef is, for errors.

    Returns:
        Name in the GraphDef -> node; and what the nodes share.

    Raises:
        ValueError: If it is not globalstep's, or damaged, or a name is taken.
    """
    if written.node and not any(PAYLOAD in node.attr for node in written.node):
        kinds = sorted({node.op for node in written.node})
        shown = ", ".join(kinds[:5]) + (", ..." if len(kinds) > 5 else "")
        raise ValueError(_NOT_OURS.format(what=what, count=len(written.node), kinds=shown))
    ours = [node for node in written.node if PAYLOAD in node.attr]
    _load_kernels()
    for node in ours:
        if scope + node.name in graph._by_name:
            raise ValueError(
                f"Node name '{scope + node.name}' already exists in the graph: import into an empty one "
                "(gs.reset_default_graph(), or with gs.Graph().as_default()), or under a name or import_scope."
            )
    try:
        reading = _GraphReading(graph, scope, dict(input_map or {}), clear_devices)
        for node in ours:
            reading.begin(node)
        for node in ours:
            reading.fill(node)
    except DAMAGED as error:
        raise ValueError(
            f"{what} is damaged, or of a version of globalstep that this one cannot read: {error}"
        ) from error
    for made in reading.made.values():
        graph.add_node(made)
        _use_name(graph, made.op_name)
    for item in reading.shared.values():
        if isinstance(item, LookupTable):
            item.name = graph.names.unique(item.name)
    return reading.made, reading.shared


@functools.cache
def _load_kernels() -> None:
    """Import the modules whose ops a file may name: each registers its kernels."""
    for package in _KERNELS:
        home = importlib.import_module(f"globalstep.tf1.{package}")
        for module in pkgutil.iter_modules(home.__path__, f"{home.__name__}."):
            importlib.import_module(module.name)


def _use_name(graph: Graph, name: str) -> None:
    """Let later nodes and scopes of that name, and of the scopes that it is in, get numbers."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        graph.names.mark_as_used("/".join(parts[:end]))


class _GraphReading:
    """One import: nodes come into being empty, by their classes, and are filled once all are there."""

    def __init__(self, graph: Graph, scope: str, input_map: dict[str, Node], clear_devices: bool) -> None:
        self._graph = graph
        self._scope = scope
        self._input_map = input_map
        self._clear_devices = clear_devices
        self._payloads: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, Node] = {}
        self.made: dict[str, Node] = {}
        self.shared: SharedObjects = {}

    def begin(self, written: NodeDef) -> None:
        payload = json.loads(written.attr[PAYLOAD].s)
        node = object.__new__(_CLASSES[payload.get("class", "Node")])
        node.graph = self._graph
        node.op_name = self._scope + written.name
        node.device = "" if self._clear_devices else written.device
        node._place = None
        node.op_type = written.op
        node.is_read = True
        self._payloads[written.name] = payload
        self.made[written.name] = node

    def fill(self, written: NodeDef) -> None:
        node, payload = self.made[written.name], self._payloads[written.name]
        reader = ValueReader(self._graph, self._node, self.shared, self._scope)
        node.inputs, node.control_inputs, node.is_operation, node.stateful = (), (), False, False
        node.attrs, node._dtype, node._shape = {}, None, None
        for name, item in payload["state"].items():
            if name not in _STATE_OF[type(node)]:
                raise NotWritableError(f"a {type(node).__name__} has no {name!r}")
            value = reader.read(item)
            sources = value if name in ("inputs", "control_inputs") else ()
            if not isinstance(value, _STATE_OF[type(node)][name]) or not all(isinstance(one, Node) for one in sources):
                raise NotWritableError(f"it has a {type(value).__name__} as {name!r} of a {type(node).__name__}")
            setattr(node, name, value)
        if (node.op_type == "Const") != ("const" in payload):
            raise NotWritableError(f"{node.op_name!r} is and is not a constant")
        if "const" in payload:
            _fill_constant(node, array_of(written.attr["value"].tensor), payload["const"] == "text")
        elif "missing" in payload:
            _refuse(node, payload["missing"])
        elif "computed" not in payload:
            raise NotWritableError("an earlier version wrote it; write it anew with this one")
        else:
            self._fill_attributes(node, payload, reader)
        if isinstance(node, Variable):
            node.constraint = None
            node.is_own = node.is_local and bool(node.optimizer_name)
            if node.optimizer_name:
                node.optimizer_name = self._scope + node.optimizer_name

    def _fill_attributes(self, node: Node, payload: dict[str, Any], reader: ValueReader) -> None:
        try:
            if payload["computed"] is not has_kernel(node.op_type):
                raise NotWritableError(f"this version of globalstep does not compute {node.op_type} as the file says")
            node.attrs = {name: reader.read(item) for name, item in payload["attrs"].items()}
        except NotWritableError as error:
            _refuse(node, str(error))

    def _node(self, name: str) -> Node:
        if name in self._input_map:
            return self._input_map[name]
        if name in self.made:
            return self.made[name]
        # Left out of a part of a graph: only what names it in an error, or by a Variable's slot, still refers to it.
        if name not in self._absent:
            self._absent[name] = _absent(self._graph, self._scope + name)
        return self._absent[name]


def _fill_constant(node: Node, array: np.ndarray[Any, Any], texts: bool) -> None:
    if texts:
        array = np.array([item.decode() for item in array.reshape(-1)], object).reshape(array.shape)
    node.attrs = {"value": array}
    node._dtype, node._shape = as_dtype(array.dtype), TensorShape(array.shape)


def _refuse(node: Node, why: str) -> None:
    name, kind = node.op_name, node.op_type

    def refuse(*values: Any) -> Any:
        raise FailedPreconditionError(
            f"{name!r} ({kind}) was imported without what computes it: {why}. Feed it a value, or build this part of "
            "the graph in the program."
        )

    node.own_fn = refuse
    node.attrs = {"missing": why}


def _absent(graph: Graph, name: str) -> Node:
    node = object.__new__(Node)
    node.graph, node.op_name, node.op_type, node.device, node._place = graph, name, "Absent", "", None
    node.inputs, node.control_inputs, node.is_operation, node.stateful = (), (), False, True
    node._dtype, node._shape = None, None
    _refuse(node, "it was left out when a part of the graph was written")
    return node


def import_graph_def(
    graph_def: GraphDef,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
    op_dict: Any = None,
    producer_op_list: Any = None,
) -> list[Any] | None:
    """Add the nodes of a GraphDef to the default graph.

    Args:
        graph_def: What `Graph.as_graph_def` gave in globalstep, whole, or a part of it such as a frozen one.
        input_map: Name in the GraphDef ("x:0") -> value to use in its place.
        return_elements: Names of what to give back: "x:0" for a value, "x" for an operation.
        name: Name scope of the nodes; default "import", "" for none.
        op_dict: Accepted as in TensorFlow.
        producer_op_list: Accepted as in TensorFlow.

    Returns:
        What `return_elements` names, in its order; None without it.

    Raises:
        TypeError: If `graph_def` is no GraphDef.
        ValueError: If it is not globalstep's, or a name is taken or not there.

    Source: TensorFlow 1.15 `tf.import_graph_def`.
    """
    if not isinstance(graph_def, GraphDef):
        raise TypeError(f"graph_def must be a GraphDef proto, got {type(graph_def).__name__}.")
    graph = get_default_graph()
    by_name = {str(key).partition(":")[0].removeprefix("^"): item for key, item in (input_map or {}).items()}
    names = {node.name for node in graph_def.node}
    unknown = [key for key in by_name if key not in names]
    wanted = list(return_elements or ())
    missing = [item for item in wanted if item.partition(":")[0] not in names]
    if unknown:
        raise ValueError(f"Attempted to map inputs that were not found in graph_def: [{', '.join(sorted(unknown))}]")
    if missing:
        raise ValueError(f"Requested return_element {missing[0]!r} not found in graph_def.")
    with graph.name_scope("import" if name is None else name) as scope:
        mapped = {key: graph.as_graph_element(item) if not isinstance(item, np.ndarray) else _constant(item)
                  for key, item in by_name.items()}  # fmt: skip
        made, _ = import_nodes(graph_def, graph, scope, mapped)
    if return_elements is None:
        return None
    return [_element(made[item.partition(":")[0]], ":" in item) for item in wanted]


def _element(node: Node, as_value: bool) -> Node | Operation:
    return node if as_value else node.op


def _constant(value: Any) -> Node:
    from globalstep.tf1.graph.graph import as_node

    return as_node(value)

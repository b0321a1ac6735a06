"""A graph as a GraphDef: what TensorBoard's Graphs tab draws and `write_graph` writes.

Every node becomes one NodeDef of the same name. A `Mutation`, which is one node here, is spread out as
TensorFlow has it: an apply op for each Variable, under that Variable's name and on its PS; a group of
them; and the increment of the step, which waits for the group. TensorFlow's conventions hold for
inputs: "name" for the value of a node, "^name" for one that only has to run first.

Layer: tf1. The protocol buffers are those of the tensorboard package.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.files.tensorboard_protos import DATA_TYPES, AttrValue, GraphDef, NodeDef, TensorProto, TensorShapeProto
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.mutations import Mutation, MutationPart
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind

#: Constants larger than this are drawn without their value: TensorBoard would not show it anyway.
MAX_CONST_BYTES = 4096

_ASSIGN_TYPES = {OpKind.ASSIGN: "Assign", OpKind.ASSIGN_ADD: "AssignAdd", OpKind.ASSIGN_SUB: "AssignSub"}
#: Rules whose op has another name in TensorFlow than their words put together.
_RULE_NAMES = {"rmsprop": "RMSProp", "rms_prop": "RMSProp", "centered_rmsprop": "CenteredRMSProp"}


def graph_def(graph: Graph, where: Mapping[str, int] | None = None, whole: bool = False) -> GraphDef:
    """Give a graph as a GraphDef.

    Args:
        graph: The graph.
        where: Variable name to PS task, for Variables that the program placed nowhere.
        whole: Whether large constants are in it, too.

    Returns:
        A GraphDef with every node's op, inputs, device, and its dtype and shape where they are known.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default() as graph:
    ...     total = gs.add(gs.constant(1.0, name="a"), gs.constant(2.0, name="b"), name="total")
    >>> [(node.name, list(node.input)) for node in graph_def(graph).node]
    [('a', []), ('b', []), ('total', ['a', 'b'])]
    """
    return _Builder(graph, where or {}, whole).build()


def node_def(node: Node) -> NodeDef:
    """Give what the GraphDef of its graph says of one node, large constants included.

    Args:
        node: The node. Of a mutation that is spread out, the operation of its name.
    """
    builder = _Builder(node.graph, {}, whole=True)
    builder.add(node)
    return builder.named(node.op_name)


class _Builder:
    def __init__(self, graph: Graph, where: Mapping[str, int], whole: bool) -> None:
        self._graph = graph
        self._whole = whole
        self._where = where
        self._def = GraphDef()

    @functools.cached_property
    def _names(self) -> set[str]:
        return {node.op_name for node in self._graph.nodes}

    def build(self) -> GraphDef:
        for node in self._graph.nodes:
            self.add(node)
        return self._def

    def add(self, node: Node) -> None:
        """Add one node, with all that it is spread out into."""
        if isinstance(node, Mutation):
            self._add_mutation(node)
        else:
            self._add_plain(node)

    def named(self, name: str) -> NodeDef:
        return next(written for written in self._def.node if written.name == name)

    def _add_plain(self, node: Node) -> None:
        written = self._add(node.op_name, node.op_type, node.inputs, node.control_inputs, self._device(node))
        for name, value in node.attrs.items():
            attr = _plain_attr(value)
            if attr is not None:
                written.attr[name].CopyFrom(attr)
        if node.op_type == "Const" and (self._whole or node.attrs["value"].nbytes <= MAX_CONST_BYTES):
            written.attr["value"].tensor.CopyFrom(tensor_proto(node.attrs["value"]))
        self._describe(written, node)

    def _add_mutation(self, node: Mutation) -> None:
        assigns = not any(part.optimizer for part in node.parts)
        if assigns and len(node.parts) == 1 and not node.increments:
            self._add_part(node, node.parts[0], node.op_name, node.op_type)
        elif len(node.increments) == 1 and not node.parts:
            self._add_increment(node, node.op_name, *node.increments[0], node.control_inputs)
        else:
            self._add_update(node)

    def _add_update(self, node: Mutation) -> None:
        own = node.op_name.rpartition("/")[2]
        done: list[str] = []
        for part in node.parts:
            op_type = _part_type(part)
            done.append(self._fresh(f"{part.variable.op_name}/{own}/{op_type}"))
            self._add_part(node, part, done[-1], op_type)
        before: list[Node | str] = list(done or node.control_inputs)
        if node.increments and done:
            group = self._fresh(f"{node.op_name}/update")
            self._add(group, "NoOp", (), before, node.device)
            before = [group]
        for step, by in node.increments[1:]:
            name = self._fresh(f"{step.op_name}/{own}/AssignAdd")
            self._add_increment(node, name, step, by, before)
            before = [*before, name]
        if node.increments:
            self._add_increment(node, node.op_name, *node.increments[0], before)
        else:
            self._add(node.op_name, "NoOp", (), before, node.device)

    def _add_part(self, node: Mutation, part: MutationPart, name: str, op_type: str) -> None:
        variable, rule = part.variable, part.optimizer
        inputs: list[Node | str] = [variable]
        if rule is not None:
            inputs += [*rule.slots.get(variable, ()), *rule.scalars]
            inputs += [value for value in rule.hypers.values() if isinstance(value, Node)]
        operand = part.operand if part.operand is not None else part.source
        if operand is None and part.declare:
            operand = variable.initial_value
        if operand is None:
            operand_name = self._fresh(f"{name}/value")
            self._add_const(operand_name, np.asarray(part.fill, dtype=variable.dtype.as_numpy_dtype))
            inputs.append(operand_name)
        else:
            inputs.append(operand)
        if part.indices is not None:
            inputs.append(part.indices)
        written = self._add(name, op_type, inputs, node.control_inputs, self._device(variable))
        written.attr["_class"].list.s.append(f"loc:@{variable.op_name}".encode())
        if rule is not None:
            written.attr["use_locking"].b = rule.use_locking
            for key, value in rule.hypers.items():
                if isinstance(value, (int, float)):
                    written.attr[key].f = value
        self._describe(written, variable)

    def _add_increment(self, node: Mutation, name: str, step: Variable, by: int, before: Iterable[Node | str]) -> None:
        amount = self._fresh(f"{name}/value")
        self._add_const(amount, np.asarray(by, dtype=step.dtype.as_numpy_dtype))
        written = self._add(name, "AssignAdd", (step, amount), before, self._device(step))
        written.attr["_class"].list.s.append(f"loc:@{step.op_name}".encode())
        self._describe(written, step)

    def _add_const(self, name: str, value: np.ndarray[Any, Any]) -> None:
        written = self._add(name, "Const", (), (), "")
        written.attr["dtype"].type = DATA_TYPES[value.dtype.name]
        written.attr["value"].tensor.CopyFrom(tensor_proto(value))

    def _add(
        self, name: str, op_type: str, inputs: Iterable[Node | str], before: Iterable[Node | str], device: str
    ) -> NodeDef:
        names = [item if isinstance(item, str) else item.op_name for item in inputs]
        names += [f"^{item if isinstance(item, str) else item.op_name}" for item in before]
        node: NodeDef = self._def.node.add(name=name, op=op_type, input=names, device=device)
        return node

    def _fresh(self, name: str) -> str:
        chosen, count = name, 0
        while chosen in self._names:
            count += 1
            chosen = f"{name}_{count}"
        self._names.add(chosen)
        return chosen

    def _device(self, node: Node) -> str:
        if not node.device and node.op_name in self._where:
            return f"/job:ps/task:{self._where[node.op_name]}"
        return node.device

    def _describe(self, written: NodeDef, node: Node) -> None:
        # What is not known before a run is drawn without.
        if node.is_operation or node._dtype is None:
            return
        dtype, shape = node._dtype, node.shape
        key = "dtype" if written.op in ("Const", "Placeholder", "VariableV2") else "T"
        written.attr[key].type = DATA_TYPES[dtype.name]
        if written.op in ("Placeholder", "VariableV2"):
            written.attr["shape"].shape.CopyFrom(shape_proto(shape))
        written.attr["_output_shapes"].list.shape.append(shape_proto(shape))


def _part_type(part: MutationPart) -> str:
    if part.optimizer is None:
        return _ASSIGN_TYPES[part.kind]
    kind = part.optimizer.kind
    rule = _RULE_NAMES.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
    return f"{'Apply' if part.indices is None else 'SparseApply'}{rule}"


def _plain_attr(value: Any) -> AttrValue | None:
    if isinstance(value, bool):
        return AttrValue(b=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AttrValue(i=value)
    if isinstance(value, float):
        return AttrValue(f=value)
    if isinstance(value, (str, bytes)):
        return AttrValue(s=value.encode() if isinstance(value, str) else value)
    if isinstance(value, DType):
        return AttrValue(type=DATA_TYPES[value.name])
    return None


def shape_proto(shape: TensorShape) -> TensorShapeProto:
    """Give a static shape as a TensorShapeProto."""
    if shape.ndims is None:
        return TensorShapeProto(unknown_rank=True)
    sizes = [-1 if size is None else size for size in shape.as_list()]
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def tensor_proto(value: np.ndarray[Any, Any]) -> TensorProto:
    """Give an array as a TensorProto."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in value.shape])
    if value.dtype.kind == "O":
        items = [item.encode() if isinstance(item, str) else bytes(item) for item in value.reshape(-1)]
        return TensorProto(dtype=DATA_TYPES["string"], tensor_shape=shape, string_val=items)
    little = value.astype(value.dtype.newbyteorder("<"))
    return TensorProto(dtype=DATA_TYPES[value.dtype.name], tensor_shape=shape, tensor_content=little.tobytes())

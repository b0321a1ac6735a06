"""A part of a graph as an ONNX model (opset 18), which onnxruntime and others serve.

The nodes between the outputs and the inputs are translated one by one (`globalstep.tf1.exporting.onnx_ops`); Variables
become initializers. What the model does is what `Session.run` does, but for dropout: a served model has none.

Layer: tf1. Threads: a Translation belongs to one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.exporting.onnx_messages import DATA_TYPES, Attribute, Model, Tensor, ValueInfo
from globalstep.tf1.graph.graph import Node, closure_of
from globalstep.tf1.variables.variables import Variable

#: The opset and the IR version: what onnxruntime has read since 2023, and all that is needed here.
OPSET, IR_VERSION = 18, 8
#: So many nodes an error names.
_NAMED = 5
_OPERATOR_TYPES = {float: 1, int: 2, bytes: 3}


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a Variable's bytes in a file beside the model."""

    file: str
    offset: int
    nbytes: int


class UntranslatableError(Exception):
    """A node that ONNX has nothing for; its text says why."""


#: Gives the names of a node's values in the model.
Translator = Callable[["Translation", Node], str | list[str]]


class Translation:
    """One translation.

    Args:
        translators: Op type -> its translator.
        variables: Name of a Variable -> its value.
        stored: Name of a Variable -> where its bytes are; others are in the model itself.
    """

    def __init__(
        self,
        translators: Mapping[str, Translator],
        variables: Mapping[str, np.ndarray[Any, Any]],
        stored: Mapping[str, Stored],
    ) -> None:
        self.model = Model(ir_version=IR_VERSION, producer_name="globalstep")
        self.model.opset_import.add(domain="", version=OPSET)
        self._translators = translators
        self._variables = variables
        self._stored = stored
        self._values: dict[Node, str | list[str]] = {}
        self._constants: dict[Any, str] = {}
        self._node: Node | None = None
        self._count = 0

    def give(self, node: Node, name: str) -> None:
        """Say that a node's value is the one named `name`."""
        self._values[node] = name

    def of(self, node: Node) -> str:
        """Give the name of a node's value."""
        value = self._values[node]
        if not isinstance(value, str):
            raise UntranslatableError("several values at once are not taken together")
        return value

    def items(self, node: Node) -> list[str]:
        """Give the names of the values of a node that has several."""
        value = self._values[node]
        if isinstance(value, str):
            raise UntranslatableError("one value is not taken apart")
        return value

    def add(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> Any:
        """Add a node of ONNX; give the name of its output, or the list of names if there are more."""
        base = self._node.op_name if self._node is not None else op_type
        self._count += 1
        written = self.model.graph.node.add(op_type=op_type, name=f"{base}/{op_type}_{self._count}", input=inputs)
        written.output.extend([f"{written.name}:{at}" for at in range(outputs)])
        for name, value in attributes.items():
            written.attribute.append(_attribute(name, value))
        return written.output[0] if outputs == 1 else list(written.output)

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Give the name of a constant; equal small ones are one."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= 256 and array.dtype != object else None
        if key is None or key not in self._constants:
            self._count += 1
            name = f"constant_{self._count}"
            self.model.graph.initializer.append(_tensor(name, array))
            if key is None:
                return name
            self._constants[key] = name
        return self._constants[key]

    def ints(self, node: Node) -> str:
        """Give a node's integers as int64, which ONNX wants shapes and places in."""
        if node.op_type == "Const":
            return self.constant(np.asarray(node.attrs["value"]).astype(np.int64))
        return self.of(node) if node.dtype.name == "int64" else self.cast(self.of(node), "int64")

    def cast(self, value: str, dtype: Any) -> str:
        """Give a value in another dtype."""
        name: str = self.add("Cast", [value], to=type_number(as_dtype(dtype)))
        return name

    def translate(self, node: Node) -> None:
        """Translate a node whose sources are translated.

        Raises:
            UntranslatableError: If ONNX has nothing for it.
        """
        self._node = node
        if isinstance(node, Variable):
            self._values[node] = self._variable(node)
            return
        translator = self._translators.get(node.op_type)
        if translator is None:
            raise UntranslatableError("ONNX has no operation for it that globalstep knows")
        self._values[node] = translator(self, node)

    def _variable(self, node: Variable) -> str:
        value, at = self._variables[node.op_name], self._stored.get(node.op_name)
        if at is None:
            self.model.graph.initializer.append(_tensor(node.name, value))
        else:
            tensor = self.model.graph.initializer.add(name=node.name, data_type=type_number(node.dtype))
            tensor.dims.extend(value.shape)
            tensor.data_location = 1
            for key, item in (("location", at.file), ("offset", at.offset), ("length", at.nbytes)):
                tensor.external_data.add(key=key, value=str(item))
        return node.name


def type_number(dtype: DType) -> int:
    """Give ONNX's number of a dtype.

    Raises:
        UntranslatableError: If it has none.
    """
    if dtype.name not in DATA_TYPES:
        raise UntranslatableError(f"ONNX has no dtype {dtype.name}")
    return DATA_TYPES[dtype.name]


def variables_between(inputs: Sequence[Node], outputs: Sequence[Node]) -> list[Variable]:
    """Give the Variables that outputs need, where inputs are given."""
    return [node for node in _between(inputs, outputs) if isinstance(node, Variable)]


def onnx_model(
    inputs: Mapping[str, Node],
    outputs: Mapping[str, Node],
    variables: Mapping[str, np.ndarray[Any, Any]],
    stored: Mapping[str, Stored] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Give the part of a graph from inputs to outputs as an ONNX model.

    Args:
        inputs: Name in the model -> node that is fed.
        outputs: Name in the model -> node that is wanted.
        variables: Name of a Variable -> its value: of those of `variables_between`.
        stored: Name of a Variable -> where its bytes are; the bytes of the others are in the model itself.
        metadata: What the model says of itself.

    Returns:
        The model.

    Raises:
        InvalidArgumentError: If a placeholder is not among the inputs, or ONNX has nothing for a node; the text names
            the first of these nodes.
    """
    from globalstep.tf1.exporting.onnx_ops import TRANSLATORS

    translation = Translation(TRANSLATORS, variables, stored or {})
    graph = translation.model.graph
    graph.name = "globalstep"
    wrong: dict[str, str] = {}
    for name, node in inputs.items():
        graph.input.append(_value_info(name, node))
        translation.give(node, name)
    for node in _between(list(inputs.values()), list(outputs.values())):
        if node.op_type == "Placeholder":
            wrong[f"the placeholder {node.op_name!r}"] = "it is not among the inputs: make it one, or a constant"
            continue
        try:
            translation.translate(node)
        except KeyError:
            continue  # of what comes from a node that was refused
        except UntranslatableError as error:
            where = f", defined at {node.defined_at}" if node.defined_at else ""
            wrong[f"{node.op_name!r} ({node.op_type}{where})"] = str(error)
    if wrong:
        raise InvalidArgumentError(
            f"The outputs {', '.join(outputs)} cannot be exported to ONNX: "
            + "; ".join(f"{what}: {why}" for what, why in list(wrong.items())[:_NAMED])
            + (f"; and {len(wrong) - _NAMED} more nodes" if len(wrong) > _NAMED else "")
            + ". Build the graph for serving without these nodes, or give the values that they make as inputs; "
            "onnx=False writes the model for gs.saved_model.loader only."
        )
    translation._node = None
    for name, node in outputs.items():
        graph.node.add(op_type="Identity", name=f"output {name}", input=[translation.of(node)], output=[name])
        graph.output.append(_value_info(name, node))
    for key, value in (metadata or {}).items():
        translation.model.metadata_props.add(key=key, value=value)
    data: bytes = translation.model.SerializeToString()
    return data


def _between(inputs: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """The nodes that outputs need besides inputs, in order of creation."""
    from globalstep.tf1.exporting.onnx_ops import sources_of

    ends = set(inputs)
    needed = closure_of(outputs, lambda node: () if node in ends or isinstance(node, Variable) else sources_of(node))
    position = {node: at for at, node in enumerate(outputs[0].graph.nodes)} if outputs else {}
    return sorted(needed - ends, key=lambda node: position.get(node, -1))


def _value_info(name: str, node: Node) -> Any:
    info = ValueInfo(name=name)
    info.type.tensor_type.elem_type = type_number(node.dtype)
    if node.shape.dims is not None:
        info.type.tensor_type.shape.SetInParent()
        for axis, size in enumerate(node.shape.as_list()):
            if size is None:
                info.type.tensor_type.shape.dim.add(dim_param="batch" if axis == 0 else f"{name}_{axis}")
            else:
                info.type.tensor_type.shape.dim.add(dim_value=size)
    return info


def _tensor(name: str, array: np.ndarray[Any, Any]) -> Any:
    kind = as_dtype(array.dtype)
    tensor = Tensor(name=name, data_type=type_number(kind))
    tensor.dims.extend(array.shape)
    if kind.name == "string":
        tensor.string_data.extend([i.encode() if isinstance(i, str) else bytes(i) for i in array.reshape(-1)])
    else:
        tensor.raw_data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return tensor


def _attribute(name: str, value: Any) -> Any:
    written = Attribute(name=name)
    if isinstance(value, np.ndarray):
        written.t.CopyFrom(_tensor("", value))
        written.type = 4
        return written
    if isinstance(value, str):
        value = value.encode()
    many = isinstance(value, (list, tuple))
    kind = type(value[0]) if many else int if isinstance(value, (bool, np.integer)) else type(value)
    number = _OPERATOR_TYPES[kind]
    if many:
        getattr(written, {1: "floats", 2: "ints", 3: "strings"}[number]).extend(value)
    else:
        setattr(written, {1: "f", 2: "i", 3: "s"}[number], value)
    written.type = number + 5 if many else number
    return written

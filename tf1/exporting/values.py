"""Attributes of nodes as JSON, and back: numbers, arrays, shapes, other nodes, objects of this package; no functions.

Numbers, texts, None and lists are themselves; anything else is an object with one key that says what it is. Objects
that may be held twice are counted in the order in which they begin, and named by their number the second time.

A file names classes from one closed list, and of their objects the attributes that stand there. It names no code:
reading one runs no function, method, property or constructor that the file chooses.

Layer: tf1. Threads: a ValueWriter and a ValueReader belong to one call each.
"""

from __future__ import annotations

import base64
import enum
import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.mutations import OptimizerSpec
from globalstep.tf1.graph.shapes import Dimension, TensorShape
from globalstep.tf1.ops.random_ops import Generator
from globalstep.tf1.text.lookup_tables import LookupTable

#: Classes whose objects a file may hold -> the attributes that such an object has.
_OBJECTS = {
    "globalstep.tf1.graph.mutations:MutationPart": (
        *("declare", "fill", "indices", "kind", "operand", "optimizer", "source", "unique", "variable"),
    ),
    "globalstep.tf1.graph.mutations:OptimizerSpec": (
        *("hypers", "is_local", "kind", "name", "scalars", "slots", "use_locking"),
    ),
    "globalstep.tf1.images.box_sampling:_Limits": ("area", "aspect", "attempts", "whole_image"),
    "globalstep.tf1.loops.body:Body": (
        *("captures", "control_inputs", "has_effects", "nodes", "parameters", "place", "results", "within"),
    ),
    "globalstep.tf1.ops.parsing_ops:FixedLenFeature": ("default_value", "dtype", "shape"),
    "globalstep.tf1.ops.parsing_ops:FixedLenSequenceFeature": ("allow_missing", "default_value", "dtype", "shape"),
    "globalstep.tf1.ops.parsing_ops:SparseFeature": ("already_sorted", "dtype", "index_key", "size", "value_key"),
    "globalstep.tf1.ops.parsing_ops:VarLenFeature": ("dtype",),
    "globalstep.tf1.rnn.fused_lstm:LSTMOptions": (
        *("cell_clip", "forget_bias", "peepholes", "proj_clip", "projected", "units"),
    ),
    "globalstep.tf1.text.lookup_tables:HashTable": (
        *("_content", "_default", "init", "key_dtype", "name", "value_dtype"),
    ),
    "globalstep.tf1.text.lookup_tables:IdTableWithHashBuckets": (
        *("_buckets", "_table", "key_dtype", "name", "value_dtype"),
    ),
    "globalstep.tf1.text.lookup_tables:KeyValueTensorInitializer": ("key_dtype", "keys", "value_dtype", "values"),
    "globalstep.tf1.text.lookup_tables:StaticVocabularyTable": (
        *("_buckets", "_table", "key_dtype", "name", "value_dtype"),
    ),
    "globalstep.tf1.text.lookup_tables:TextFileInitializer": (
        *("_delimiter", "_filename", "_key_index", "_size", "_value_index", "key_dtype", "value_dtype"),
    ),
    "globalstep.tf1.variables.partitioned_variables:SaveSliceInfo": (
        "full_name",
        "full_shape",
        "var_offset",
        "var_shape",
    ),
    "globalstep.wire.expressions:Expr": ("args", "name", "op", "value"),
}
_ENUMS = ("globalstep.wire.declarations:OpKind",)


class NotWritableError(Exception):
    """A value that a file cannot hold; its text says why."""


#: What nodes of one file share, by class and name.
SharedObjects = dict[tuple[type, str], OptimizerSpec | LookupTable]


class ValueWriter:
    """Turns what one node holds into JSON.

    Args:
        graph: The graph whose nodes may be named.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._seen: dict[int, tuple[int, Any]] = {}

    def write(self, value: Any) -> Any:
        """Give a value as JSON.

        Raises:
            NotWritableError: If a file cannot hold it.
        """
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        for kind, write in _WRITERS:
            if isinstance(value, kind):
                return write(self, value)
        if id(value) in self._seen:
            return {"ref": self._seen[id(value)][0]}
        return self._write_counted(value)

    def _write_counted(self, value: Any) -> Any:
        self._seen[id(value)] = (len(self._seen), value)
        if type(value) is list:
            return [self.write(item) for item in value]
        if type(value) is dict:
            return {"dict": [[self.write(key), self.write(item)] for key, item in value.items()]}
        if type(value) in (set, frozenset):
            return {"set" if type(value) is set else "frozenset": [self.write(item) for item in value]}
        place = _place_of(type(value), _OBJECTS)
        return {"object": [place, [[name, self.write(getattr(value, name))] for name in _OBJECTS[place]]]}

    def _node(self, node: Node) -> Any:
        if node.graph is not self._graph:
            raise NotWritableError(f"{node.op_name!r} is a node of another graph")
        return {"node": node.op_name}

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        if type(value) is not tuple:
            _place_of(type(value), ())
        return {"tuple": [self.write(item) for item in value]}

    def _graph_itself(self, graph: Graph) -> Any:
        if graph is not self._graph:
            raise NotWritableError("another graph")
        return {"graph": None}

    def _generator(self, generator: Generator) -> Any:
        entropy = generator._random.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        return {"generator": [int(item) for item in entropy] if isinstance(entropy, (list, tuple)) else None}


def _written_array(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind in "OSU":
        items = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1).tolist()]
        if not all(isinstance(item, bytes) for item in items):
            raise NotWritableError(f"an array of {array.dtype}")
        texts = [base64.b64encode(item).decode() for item in items]
        return {"strings": [list(array.shape), texts]}
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"array": [array.dtype.name, list(array.shape), base64.b64encode(little.tobytes()).decode()]}


def _place_of(kind: type, allowed: Iterable[str]) -> str:
    place = f"{kind.__module__}:{kind.__qualname__}"
    if place not in allowed:
        raise NotWritableError(f"a graph file cannot hold a {kind.__module__}.{kind.__qualname__}")
    return place


_WRITERS: list[tuple[Any, Callable[[ValueWriter, Any], Any]]] = [
    (Node, ValueWriter._node),
    (Graph, ValueWriter._graph_itself),
    (Generator, ValueWriter._generator),
    (np.ndarray, lambda writer, value: _written_array(value)),
    (np.generic, lambda writer, value: {"scalar": _written_array(np.asarray(value))}),
    (enum.Enum, lambda writer, value: {"enum": [_place_of(type(value), _ENUMS), value.name]}),
    (int, lambda writer, value: int(value)),
    (tuple, ValueWriter._tuple),
    (bytes, lambda writer, value: {"bytes": base64.b64encode(value).decode()}),
    (slice, lambda writer, value: {"slice": [writer.write(item) for item in (value.start, value.stop, value.step)]}),
    (range, lambda writer, value: {"range": [value.start, value.stop, value.step]}),
    (type(Ellipsis), lambda writer, value: {"ellipsis": None}),
    (DType, lambda writer, value: {"dtype": value.name}),
    (np.dtype, lambda writer, value: {"numpy dtype": value.str}),
    (TensorShape, lambda writer, value: {"shape": None if value.dims is None else value.as_list()}),
    (Dimension, lambda writer, value: {"dimension": value.value}),
    (complex, lambda writer, value: {"complex": [value.real, value.imag]}),
]


class ValueReader:
    """Turns JSON back into what a node holds.

    Args:
        graph: The graph that nodes are read into.
        node_named: Gives the node of a name.
        shared: (class, name) -> optimizer or lookup table, of those read before; it grows. Nodes share them.
        scope: What names begin with, "" or with a final "/".
    """

    def __init__(self, graph: Graph, node_named: Callable[[str], Node], shared: SharedObjects, scope: str = "") -> None:
        self._graph = graph
        self._node_named = node_named
        self._shared = shared
        self._scope = scope
        self._counted: list[Any] = []

    def read(self, written: Any) -> Any:
        """Give the value.

        Raises:
            NotWritableError: If it names what this version does not have, or no file may name.
        """
        if isinstance(written, list):
            items: list[Any] = []
            self._counted.append(items)
            items.extend(self.read(item) for item in written)
            return items
        if not isinstance(written, dict):
            return written
        ((kind, content),) = written.items()
        read = _READERS.get(kind)
        if read is None:
            raise NotWritableError(f"it holds a {kind!r}, which this version of globalstep does not know")
        return read(self, content)

    def _seen_before(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._counted):
            raise NotWritableError(f"it names its object {number!r} before that is there")
        return self._counted[number]

    def _pairs(self, pairs: list[Any]) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        self._counted.append(mapping)
        for key, item in pairs:
            name = self.read(key)
            mapping[name] = self.read(item)
        return mapping

    def _set(self, items: list[Any]) -> Any:
        members: set[Any] = set()
        self._counted.append(members)
        members.update([self.read(item) for item in items])
        return members

    def _frozenset(self, items: list[Any]) -> Any:
        at = len(self._counted)
        self._counted.append(None)
        self._counted[at] = frozenset([self.read(item) for item in items])
        return self._counted[at]

    def _object(self, written: list[Any]) -> Any:
        place = str(written[0])
        kind = _class_named(place, _OBJECTS)
        value: Any = object.__new__(kind)
        at = len(self._counted)
        self._counted.append(value)
        for name, item in written[1]:
            if name not in _OBJECTS[place]:
                raise NotWritableError(f"a {kind.__name__} has no {name!r}")
            object.__setattr__(value, name, self.read(item))
        if issubclass(kind, (OptimizerSpec, LookupTable)):
            if type(value.name) is not str:
                raise NotWritableError(f"the name of a {kind.__name__} is no text")
            object.__setattr__(value, "name", self._scope + value.name)
            value = self._counted[at] = self._shared.setdefault((kind, value.name), value)
        return value

    def _enum(self, written: list[Any]) -> Any:
        kind: Any = _class_named(written[0], _ENUMS)
        if written[1] not in kind.__members__:
            raise NotWritableError(f"{written[0]} has no {written[1]}")
        return kind[written[1]]

    def _generator(self, entropy: list[int] | None) -> Generator:
        generator = Generator(None)
        generator._random = np.random.default_rng(entropy)
        return generator


def _class_named(place: Any, allowed: Iterable[str]) -> type:
    if place not in allowed:
        raise NotWritableError(f"a graph file may not make objects of {place}")
    module, _, name = str(place).partition(":")
    kind: type = vars(importlib.import_module(module))[name]
    return kind


def _size(written: Any) -> int | None:
    if written is not None and not (type(written) is int and 0 <= written < 1 << 63):
        raise NotWritableError(f"{written!r} is not a size")
    return written


def _array_in(written: Any) -> np.ndarray[Any, Any]:
    ((kind, content),) = written.items()
    if kind == "strings":
        return _read_strings(content)
    if kind != "array":
        raise NotWritableError(f"a {kind!r} is not an array")
    name, shape, data = content
    dtype = as_dtype(name).as_numpy_dtype
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)


def _read_strings(written: Any) -> np.ndarray[Any, Any]:
    shape, texts = written
    array = np.empty(len(texts), object)
    array[:] = [base64.b64decode(item) for item in texts]
    return array.reshape(shape)


_READERS: dict[str, Callable[[ValueReader, Any], Any]] = {
    "float": lambda reader, content: float(content),
    "ref": ValueReader._seen_before,
    "dict": ValueReader._pairs,
    "set": ValueReader._set,
    "frozenset": ValueReader._frozenset,
    "object": ValueReader._object,
    "node": lambda reader, content: reader._node_named(content),
    "tuple": lambda reader, content: tuple([reader.read(item) for item in content]),
    "graph": lambda reader, content: reader._graph,
    "generator": ValueReader._generator,
    "array": lambda reader, content: _array_in({"array": content}),
    "strings": lambda reader, content: _array_in({"strings": content}),
    "scalar": lambda reader, content: _array_in(content)[()],
    "enum": ValueReader._enum,
    "bytes": lambda reader, content: base64.b64decode(content),
    "slice": lambda reader, content: slice(*(reader.read(item) for item in content)),
    "range": lambda reader, content: range(*content),
    "ellipsis": lambda reader, content: Ellipsis,
    "dtype": lambda reader, content: as_dtype(content),
    "numpy dtype": lambda reader, content: np.dtype(str(content)),
    "shape": lambda reader, content: TensorShape(None if content is None else [_size(item) for item in content]),
    "dimension": lambda reader, content: Dimension(_size(content)),
    "complex": lambda reader, content: complex(*content),
}  # fmt: skip

"""What nodes hold, as JSON and back: numbers, arrays, shapes, other nodes, functions, and objects of this package.

Numbers, texts, None and lists are themselves; anything else is an object with one key that says what it is. Objects
that may be held twice are counted in the order in which they begin, and named by their number the second time.

Layer: shared. Threads: a ValueWriter and a ValueReader belong to one call each.
"""

from __future__ import annotations

import base64
import enum
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from operator import itemgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.exporting.functions import (
    NotWritableError,
    code_named,
    global_named,
    is_known_module,
    name_of_code,
    name_of_global,
)
from globalstep.graph.graph import Graph, Node
from globalstep.graph.mutations import OptimizerSpec
from globalstep.graph.shapes import Dimension, TensorShape
from globalstep.ops.random_ops import Generator

__all__ = ["ValueReader", "ValueWriter"]

_NUMPY = ("autograd.numpy", "numpy")
_BUILTINS = {kind.__name__: kind for kind in (bool, bytes, complex, float, int, object, str)}


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
        named = name_of_global(value)
        if named is not None:
            return {"global": named}
        if isinstance(value, type) and (value in _BUILTINS.values() or issubclass(value, np.generic)):
            return {"type": value.__name__ if value in _BUILTINS.values() else f"numpy.{value.__name__}"}
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
        if isinstance(value, FunctionType):
            return {"function": self._function(value)}
        if isinstance(value, MethodType):
            return {"method": [value.__name__, self.write(value.__self__)]}
        return {"object": [self._class(value), self._state(value)]}

    def _function(self, function: FunctionType) -> dict[str, Any]:
        place, fingerprint = name_of_code(function)
        written: dict[str, Any] = {"code": place, "fingerprint": fingerprint}
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:
            raise NotWritableError(f"{function.__qualname__} closes over a name that has no value") from None
        if cells:
            written["cells"] = [self.write(item) for item in cells]
        if function.__defaults__:
            written["defaults"] = [self.write(item) for item in function.__defaults__]
        if function.__kwdefaults__:
            written["kwdefaults"] = [[key, self.write(item)] for key, item in function.__kwdefaults__.items()]
        if function.__dict__:
            written["attributes"] = [[key, self.write(item)] for key, item in function.__dict__.items()]
        return written

    def _class(self, value: Any) -> str:
        kind = type(value)
        if not is_known_module(kind.__module__) or "<locals>" in kind.__qualname__:
            raise NotWritableError(f"a graph file cannot hold a {kind.__module__}.{kind.__qualname__}")
        return f"{kind.__module__}:{kind.__qualname__}"

    def _state(self, value: Any) -> list[Any]:
        state = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    state[name] = getattr(value, name)
        return [[name, self.write(item)] for name, item in state.items()]

    def _node(self, node: Node) -> Any:
        if node.graph is not self._graph:
            raise NotWritableError(f"{node.op_name!r} is a node of another graph")
        return {"node": node.op_name}

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        items = [self.write(item) for item in value]
        return {"tuple": items} if type(value) is tuple else {"named tuple": [self._class(value), items]}

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


def _written_module(module: ModuleType) -> Any:
    if module.__name__ not in _NUMPY:
        raise NotWritableError(f"the module {module.__name__}")
    return {"module": module.__name__}


def _read_module(name: str) -> ModuleType:
    if name not in _NUMPY:
        raise NotWritableError(f"a graph file may not name the module {name}")
    return importlib.import_module(name)


_WRITERS: list[tuple[Any, Callable[[ValueWriter, Any], Any]]] = [
    (Node, ValueWriter._node),
    (Graph, ValueWriter._graph_itself),
    (Generator, ValueWriter._generator),
    (np.ndarray, lambda writer, value: _written_array(value)),
    (np.generic, lambda writer, value: {"scalar": _written_array(np.asarray(value))}),
    (enum.Enum, lambda writer, value: {"enum": [writer._class(value), value.name]}),
    (int, lambda writer, value: int(value)),
    (tuple, ValueWriter._tuple),
    (bytes, lambda writer, value: {"bytes": base64.b64encode(value).decode()}),
    (slice, lambda writer, value: {"slice": [writer.write(item) for item in (value.start, value.stop, value.step)]}),
    (range, lambda writer, value: {"range": [value.start, value.stop, value.step]}),
    (itemgetter, lambda writer, value: {"items": [writer.write(item) for item in value.__reduce__()[1]]}),
    (type(Ellipsis), lambda writer, value: {"ellipsis": None}),
    (DType, lambda writer, value: {"dtype": value.name}),
    (np.dtype, lambda writer, value: {"numpy dtype": value.str}),
    (TensorShape, lambda writer, value: {"shape": None if value.dims is None else value.as_list()}),
    (Dimension, lambda writer, value: {"dimension": value.value}),
    (ModuleType, lambda writer, value: _written_module(value)),
    (complex, lambda writer, value: {"complex": [value.real, value.imag]}),
]


class ValueReader:
    """Turns JSON back into what a node holds.

    Args:
        graph: The graph that nodes are read into.
        node_named: Gives the node of a name.
        optimizers: Name -> optimizer, of those read before; it grows. Nodes share them.
        scope: What names begin with, "" or with a final "/".
    """

    def __init__(
        self,
        graph: Graph,
        node_named: Callable[[str], Node],
        optimizers: dict[str, OptimizerSpec],
        scope: str = "",
    ) -> None:
        self._graph = graph
        self._node_named = node_named
        self._optimizers = optimizers
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

    def _pairs(self, pairs: list[Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        self._counted.append(found)
        for key, item in pairs:
            name = self.read(key)
            found[name] = self.read(item)
        return found

    def _set(self, items: list[Any]) -> Any:
        found: set[Any] = set()
        self._counted.append(found)
        found.update([self.read(item) for item in items])
        return found

    def _frozenset(self, items: list[Any]) -> Any:
        at = len(self._counted)
        self._counted.append(None)
        self._counted[at] = frozenset([self.read(item) for item in items])
        return self._counted[at]

    def _function(self, written: Mapping[str, Any]) -> Any:
        module, code = code_named(written["code"], written["fingerprint"])
        cells = tuple(CellType() for _ in written.get("cells", ()))
        if len(cells) != len(code.co_freevars):
            raise NotWritableError(f"{written['code']} closes over {len(code.co_freevars)} values, not {len(cells)}")
        function = FunctionType(code, vars(sys.modules[module]), code.co_name, None, cells)
        function.__module__ = module
        function.__qualname__ = code.co_qualname
        self._counted.append(function)
        for cell, item in zip(cells, written.get("cells", ()), strict=True):
            cell.cell_contents = self.read(item)
        if "defaults" in written:
            function.__defaults__ = tuple(self.read(item) for item in written["defaults"])
        if "kwdefaults" in written:
            function.__kwdefaults__ = {str(key): self.read(item) for key, item in written["kwdefaults"]}
        for key, item in written.get("attributes", ()):
            function.__dict__[str(key)] = self.read(item)
        return function

    def _method(self, written: list[Any]) -> Any:
        at = len(self._counted)
        self._counted.append(None)
        owner = self.read(written[1])
        kind = type(owner)
        if not is_known_module(kind.__module__) or isinstance(owner, (Node, Graph, FunctionType)):
            raise NotWritableError(f"a graph file may not name a method of {kind.__name__}")
        self._counted[at] = getattr(owner, str(written[0]))
        return self._counted[at]

    def _object(self, written: list[Any]) -> Any:
        kind = _class_named(written[0])
        value: Any = object.__new__(kind)
        at = len(self._counted)
        self._counted.append(value)
        for name, item in written[1]:
            object.__setattr__(value, str(name), self.read(item))
        if isinstance(value, OptimizerSpec):
            object.__setattr__(value, "name", self._scope + value.name)
            value = self._counted[at] = self._optimizers.setdefault(value.name, value)
        return value

    def _named_tuple(self, written: list[Any]) -> Any:
        kind = _class_named(written[0])
        if not issubclass(kind, tuple):
            raise NotWritableError(f"{written[0]} is no named tuple")
        return tuple.__new__(kind, [self.read(item) for item in written[1]])

    def _enum(self, written: list[Any]) -> Any:
        kind = _class_named(written[0])
        if not issubclass(kind, enum.Enum) or written[1] not in kind.__members__:
            raise NotWritableError(f"{written[0]} has no {written[1]}")
        return kind[written[1]]

    def _generator(self, entropy: list[int] | None) -> Generator:
        generator = Generator(None)
        generator._random = np.random.default_rng(entropy)
        return generator


def _type_named(name: str) -> type:
    kind: type = _BUILTINS[name] if name in _BUILTINS else np.dtype(name.removeprefix("numpy.")).type
    return kind


def _class_named(place: str) -> type:
    kind = global_named(place)
    if not isinstance(kind, type) or not is_known_module(kind.__module__) or issubclass(kind, (Node, Graph)):
        raise NotWritableError(f"a graph file may not make objects of {place}")
    return kind


def _read_array(written: Any) -> np.ndarray[Any, Any]:
    name, shape, data = written
    dtype = as_dtype(name).as_numpy_dtype
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)


def _read_strings(written: Any) -> np.ndarray[Any, Any]:
    shape, texts = written
    array = np.empty(len(texts), object)
    array[:] = [base64.b64decode(item) for item in texts]
    return array.reshape(shape)


_READERS: dict[str, Callable[[ValueReader, Any], Any]] = {
    "float": lambda reader, content: float(content),
    "global": lambda reader, content: global_named(content),
    "type": lambda reader, content: _type_named(content),
    "ref": lambda reader, content: reader._counted[content],
    "dict": ValueReader._pairs,
    "set": ValueReader._set,
    "frozenset": ValueReader._frozenset,
    "function": ValueReader._function,
    "method": ValueReader._method,
    "object": ValueReader._object,
    "node": lambda reader, content: reader._node_named(content),
    "tuple": lambda reader, content: tuple([reader.read(item) for item in content]),
    "named tuple": ValueReader._named_tuple,
    "graph": lambda reader, content: reader._graph,
    "generator": ValueReader._generator,
    "array": lambda reader, content: _read_array(content),
    "strings": lambda reader, content: _read_strings(content),
    "scalar": lambda reader, content: reader.read(content)[()],
    "enum": ValueReader._enum,
    "bytes": lambda reader, content: base64.b64decode(content),
    "slice": lambda reader, content: slice(*(reader.read(item) for item in content)),
    "range": lambda reader, content: range(*content),
    "items": lambda reader, content: itemgetter(*(reader.read(item) for item in content)),
    "ellipsis": lambda reader, content: Ellipsis,
    "dtype": lambda reader, content: as_dtype(content),
    "numpy dtype": lambda reader, content: np.dtype(str(content)),
    "shape": lambda reader, content: TensorShape(content),
    "dimension": lambda reader, content: Dimension(content),
    "module": lambda reader, content: _read_module(content),
    "complex": lambda reader, content: complex(*content),
}  # fmt: skip

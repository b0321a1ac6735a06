"""Lookup tables: from keys to values, both strings or numbers.

A table's content belongs to the process, not to a session: one that was initialized stays so in the sessions that
follow.

Layer: tf1. Threads: a table may be used by several. Source: TensorFlow 1.15 `python/ops/lookup_ops.py`.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.tf1.gfile import GFile
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection, as_node, get_default_graph, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.building import is_node
from globalstep.tf1.text.fingerprints import fingerprint64
from globalstep.tf1.text.string_ops import as_bytes


def _plain(item: Any) -> Any:
    """Give a key or a value as a dict holds it."""
    return as_bytes(item) if isinstance(item, (bytes, str)) else item.item() if hasattr(item, "item") else item


def _array(values: list[Any], dtype: Any, shape: Any) -> Any:
    array = np.empty(len(values), dtype=as_dtype(dtype).as_numpy_dtype)
    array[:] = values
    return array.reshape(shape)


class TextFileIndex:
    """Which part of a vocabulary file's line is key or value: its number, the whole line, or a column (0, 1, ...)."""

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class KeyValueTensorInitializer:
    """Keys and values that are there already.

    Args:
        keys: 1-D node or array.
        values: Another, as long.
        key_dtype: Dtype of the keys, where they are given as Python values.
        value_dtype: Dtype of the values.
        name: Accepted as in TensorFlow.
    """

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: DTypeLike | None = None,
        value_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        self.keys = as_node(keys, None if is_node(keys) else key_dtype)
        self.values = as_node(values, None if is_node(values) else value_dtype)
        self.key_dtype, self.value_dtype = self.keys.dtype, self.values.dtype

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it is made of."""
        return self.keys, self.values

    def items(self, keys: Any, values: Any) -> list[tuple[Any, Any]]:
        """Give pairs of keys and values, for the values of `inputs`."""
        if np.size(keys) != np.size(values):
            raise InvalidArgumentError(f"Number of keys and values differ: {np.size(keys)} and {np.size(values)}.")
        pairs = zip(np.asarray(keys).reshape(-1), np.asarray(values).reshape(-1), strict=True)
        return [(_plain(key), _plain(value)) for key, value in pairs]


class TextFileInitializer:
    """Keys and values that the lines of a file hold.

    Args:
        filename: Path: a string, or a scalar string node.
        key_dtype: int64 or string.
        key_index: What of a line is the key; see TextFileIndex.
        value_dtype: int64, float32 or string.
        value_index: What of a line is the value.
        vocab_size: How many lines count; None for all.
        delimiter: Between columns.
        name: Accepted as in TensorFlow.
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: DTypeLike,
        key_index: int,
        value_dtype: DTypeLike,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
    ) -> None:
        if not is_node(filename) and not filename:
            raise ValueError("Filename required for tables from files.")
        for what, index, dtype in (("Key", key_index, key_dtype), ("Value", value_index, value_dtype)):
            if index < TextFileIndex.WHOLE_LINE:
                raise ValueError(f"Invalid {what.lower()} index {index}.")
            if index == TextFileIndex.LINE_NUMBER and as_dtype(dtype).name != "int64":
                raise ValueError(f"Signature mismatch. {what}s must be dtype int64, got {as_dtype(dtype).name}.")
            if index == TextFileIndex.WHOLE_LINE and not (
                as_dtype(dtype).name == "string" or as_dtype(dtype).is_integer
            ):
                raise ValueError(f"Signature mismatch. {what}s must be integer or string, got {as_dtype(dtype).name}.")
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"Invalid vocab_size {vocab_size}.")
        self._filename = as_node(filename, name="asset_filepath")
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self._key_index, self._value_index = key_index, value_index
        self._size, self._delimiter = vocab_size, delimiter
        if self._filename.op_type == "Const":
            add_to_collection("asset_filepaths", self._filename)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it is made of."""
        return (self._filename,)

    def items(self, filename: Any) -> list[tuple[Any, Any]]:
        """Give pairs of keys and values, for the path."""
        path = as_bytes(np.asarray(filename, dtype=object).reshape(-1)[0]).decode()
        with GFile(path, "rb") as file:
            lines = file.read().split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        lines = [line.removesuffix(b"\r") for line in lines]
        if self._size is not None:
            if len(lines) < self._size:
                raise InvalidArgumentError(f"Invalid vocab_size in {path}: expected {self._size} but got {len(lines)}")
            lines = lines[: self._size]
        return [
            (
                self._part(number, line, self._key_index, self.key_dtype, path),
                self._part(number, line, self._value_index, self.value_dtype, path),
            )
            for number, line in enumerate(lines)
        ]

    def _part(self, number: int, line: bytes, index: int, dtype: Any, path: str) -> Any:
        if index == TextFileIndex.LINE_NUMBER:
            return number
        text = line
        if index != TextFileIndex.WHOLE_LINE:
            columns = line.split(self._delimiter.encode())
            if index >= len(columns):
                raise InvalidArgumentError(
                    f"Invalid number of columns in {path} line {number} ({line.decode('utf-8', 'replace')}) : "
                    f"expected at least {index + 1} got {len(columns)}"
                )
            text = columns[index]
        try:
            return text if dtype.name == "string" else int(text) if dtype.is_integer else float(text)
        except ValueError:
            raise InvalidArgumentError(
                f"Field {text.decode('utf-8', 'replace')} in line {number} is not a valid {dtype.name}."
            ) from None


class LookupTable(abc.ABC):
    """Base class of lookup tables.

    Args:
        key_dtype: Dtype of the keys.
        value_dtype: Dtype of the values.
        name: Its name.

    Attributes:
        key_dtype: As given.
        value_dtype: As given.
        name: Its name in the graph.
    """

    def __init__(self, key_dtype: DTypeLike, value_dtype: DTypeLike, name: str) -> None:
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self.name = get_default_graph().unique_name(name)

    def size(self, name: str | None = None) -> Node:
        """Give how many keys it has, a scalar int64 node."""
        return Node(
            "LookupTableSizeV2", (), name=name or f"{self._base}_Size", dtype="int64", shape=[], stateful=True,
            attrs={"table": self, "stops_gradient": True},
        )  # fmt: skip

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """Give the values of keys.

        Args:
            keys: Node, array or SparseTensor of keys.
            name: Name of the node.

        Returns:
            A node of their shape; a SparseTensor for a SparseTensor.

        Raises:
            TypeError: If the keys have another dtype than the table's.
            FailedPreconditionError: In the run, if the table is not initialized.
        """
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        node = as_node(keys, None if is_node(keys) else self.key_dtype)
        if node.dtype != self.key_dtype:
            raise TypeError(f"Signature mismatch. Keys must be dtype {self.key_dtype.name}, got {node.dtype.name}.")
        return Node(
            "LookupTableFindV2", (node,), name=name or f"{self._base}_Lookup", dtype=self.value_dtype,
            shape=node.shape.concatenate(self._value_shape), stateful=True,
            attrs={"table": self, "stops_gradient": True},
        )  # fmt: skip

    @property
    def _value_shape(self) -> tuple[int, ...]:
        return ()

    def _values_of(self, keys: Any) -> Any:
        return _array(self._found([_plain(item) for item in keys.reshape(-1)]), self.value_dtype, keys.shape)

    @property
    def _base(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @abc.abstractmethod
    def _found(self, keys: list[Any]) -> list[Any]:
        """Give the values of keys."""

    @abc.abstractmethod
    def _count(self) -> int:
        """Give how many keys there are."""


computes("LookupTableSizeV2", lambda *, table: np.asarray(table._count(), np.int64))
computes("LookupTableFindV2", lambda asked, *, table: table._values_of(np.asarray(asked)))


class HashTable(LookupTable):
    """A table that is filled once, by its `init` operation, which is in TABLE_INITIALIZERS.

    Args:
        initializer: A KeyValueTensorInitializer or TextFileInitializer.
        default_value: The value of keys that it does not have.
        shared_name: Accepted; each worker has a table of its own.
        name: Its name; default "hash_table".

    >>> import globalstep as gs
    >>> table = gs.contrib.lookup.HashTable(gs.contrib.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
    >>> with gs.Session() as sess:
    ...     sess.run(gs.tables_initializer())
    ...     print(sess.run(table.lookup(gs.constant(["b", "x"]))))
    [ 2 -1]
    """

    def __init__(
        self, initializer: Any, default_value: Any, shared_name: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype, name or "hash_table")
        self._default = _plain(as_node(default_value, self.value_dtype).attrs["value"][()])
        # Replaced as a whole, by the initializing operation.
        self._content: Mapping[Any, Any] | None = None
        #: The operation that fills it.
        self.init = Node(
            "LookupTableInit", initializer.inputs, name=f"{self._base}_init", operation=True, stateful=True,
            attrs={"table": self, "initializer": initializer},
        )  # fmt: skip
        add_to_collection(GraphKeys.TABLE_INITIALIZERS, self.init)

    @property
    def initializer(self) -> Node:
        """The operation that fills it."""
        return self.init

    @property
    def default_value(self) -> Any:
        """The value of keys that it does not have."""
        return self._default

    def _ready(self) -> Mapping[Any, Any]:
        if self._content is None:
            raise FailedPreconditionError(
                f"Table not initialized. Run gs.tables_initializer() before {self.name!r} is used."
            )
        return self._content

    def _found(self, keys: list[Any]) -> list[Any]:
        content, default = self._ready(), self._default
        return [content.get(key, default) for key in keys]

    def _count(self) -> int:
        return len(self._ready())


@computes("LookupTableInit")
def _fill(*values: Any, table: Any, initializer: Any) -> None:
    content: dict[Any, Any] = {}
    for key, value in initializer.items(*values):
        if content.setdefault(key, value) != value:
            raise InvalidArgumentError(f"HashTable has different value for same key. Key {key!r}")
    table._content = content


class MutableHashTable(LookupTable):
    """A table that changes while the program runs; each worker has its own, and no checkpoint holds it.

    Args:
        key_dtype: Dtype of the keys.
        value_dtype: Dtype of the values.
        default_value: The value of keys that it does not have: a scalar, or a vector where values are such.
        shared_name: Accepted; each worker has a table of its own.
        name: Its name; default "MutableHashTable".
        checkpoint: Accepted; no checkpoint holds it.
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        super().__init__(key_dtype, value_dtype, name)
        self._default = np.asarray(as_node(default_value, self.value_dtype).attrs["value"])
        # Guards _content; a leaf: nothing else is taken under it.
        self._lock = threading.Lock()
        self._content: dict[Any, Any] = {}

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Node:
        """Give the operation that sets the values of keys.

        Args:
            keys: Node or array.
            values: Another: of the shape of `keys`, followed by that of a value.
            name: Name of the operation.
        """
        return self._change("LookupTableInsertV2", name, self._put, keys, values)

    def remove(self, keys: Any, name: str | None = None) -> Node:
        """Give the operation that takes keys out; those that it does not have are left alone.

        Args:
            keys: Node or array.
            name: Name of the operation.
        """
        return self._change("LookupTableRemoveV2", name, self._take_out, keys)

    def export(self, name: str | None = None) -> tuple[Node, Node]:
        """Give all keys and all values, in no order.

        Args:
            name: Name of the node.
        """

        def read() -> tuple[Any, Any]:
            with self._lock:
                content = dict(self._content)
            keys = _array(list(content), self.key_dtype, [len(content)])
            shape = [len(content), *self._default.shape]
            values = list(content.values())
            if self._default.ndim:
                return keys, np.array(values, self.value_dtype.as_numpy_dtype).reshape(shape)
            return keys, _array([_plain(value[()]) for value in values], self.value_dtype, shape)

        made = Node(
            "LookupTableExportV2", (), read, name=name or f"{self._base}_lookup_table_export_values", stateful=True,
            attrs={"tuple": True, "stops_gradient": True},
        )  # fmt: skip
        return (
            tuple_item(made, 0, name="keys", dtype=self.key_dtype, shape=[None]),
            tuple_item(made, 1, name="values", dtype=self.value_dtype, shape=[None, *self._default.shape]),
        )

    @property
    def _value_shape(self) -> tuple[int, ...]:
        return self._default.shape

    def _values_of(self, keys: Any) -> Any:
        if not self._default.ndim:
            return super()._values_of(keys)
        rows = self._rows([_plain(item) for item in keys.reshape(-1)])
        return np.array(rows, self.value_dtype.as_numpy_dtype).reshape(*keys.shape, *self._default.shape)

    def _change(self, op_type: str, name: str | None, change: Callable[..., None], *operands: Any) -> Node:
        dtypes = (self.key_dtype, self.value_dtype)
        nodes = [as_node(item, None if is_node(item) else dtype) for item, dtype in zip(operands, dtypes, strict=False)]
        for what, node, dtype in zip(("Keys", "Values"), nodes, dtypes, strict=False):
            if node.dtype != dtype:
                raise TypeError(f"Signature mismatch. {what} must be dtype {dtype.name}, got {node.dtype.name}.")
        return Node(op_type, nodes, change, name=name or f"{self._base}_{op_type}", operation=True, stateful=True)

    def _put(self, keys: Any, values: Any) -> None:
        flat = np.asarray(keys).reshape(-1)
        rows = np.asarray(values).reshape(flat.size, *self._default.shape)
        with self._lock:
            self._content.update((_plain(key), np.array(row)) for key, row in zip(flat, rows, strict=True))

    def _take_out(self, keys: Any) -> None:
        with self._lock:
            for key in np.asarray(keys).reshape(-1):
                self._content.pop(_plain(key), None)

    def _rows(self, keys: list[Any]) -> list[Any]:
        with self._lock:
            return [self._content.get(key, self._default) for key in keys]

    def _found(self, keys: list[Any]) -> list[Any]:
        return [_plain(row[()]) for row in self._rows(keys)]

    def _count(self) -> int:
        with self._lock:
            return len(self._content)


class IdTableWithHashBuckets(LookupTable):
    """A table of ids, with buckets for keys that it does not have, by FarmHash's Fingerprint64.

    Args:
        table: A table of int64 values, 0 to its size; None if all keys go to buckets.
        num_oov_buckets: How many buckets there are.
        hasher_spec: Accepted; the fast hash is used.
        name: Its name.
        key_dtype: Dtype of the keys; default that of `table`, else string.
    """

    def __init__(
        self,
        table: LookupTable | None,
        num_oov_buckets: int,
        hasher_spec: Any = None,
        name: str | None = None,
        key_dtype: DTypeLike | None = None,
    ) -> None:
        if table is None and num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0 if no table is supplied")
        kind = as_dtype(key_dtype or (table.key_dtype if table is not None else "string"))
        super().__init__(kind, "int64", name or (f"{table.name}_lookup" if table is not None else "string_to_index"))
        self._table, self._buckets = table, int(num_oov_buckets)

    @property
    def init(self) -> Node:
        """The operation that fills the table."""
        from globalstep.tf1.ops.control_flow_ops import no_op

        operation: Node = self._table.init if isinstance(self._table, (HashTable, IdTableWithHashBuckets)) else no_op()
        return operation

    initializer = init

    def _found(self, keys: list[Any]) -> list[Any]:
        offset = self._table._count() if self._table is not None else 0
        ids = self._table._found(keys) if self._table is not None else [-1] * len(keys)
        if not self._buckets:
            return ids
        default = self._table.default_value if isinstance(self._table, HashTable) else -1
        return [
            offset + fingerprint64(as_bytes(str(key)) if isinstance(key, int) else key) % self._buckets
            if value == default
            else value
            for key, value in zip(keys, ids, strict=True)
        ]

    def _count(self) -> int:
        return (self._table._count() if self._table is not None else 0) + self._buckets


class StaticVocabularyTable(IdTableWithHashBuckets):
    """A table of a vocabulary's ids, with buckets for other keys.

    Args:
        initializer: Gives int64 values; None if all keys go to buckets.
        num_oov_buckets: How many buckets there are; at least one.
        lookup_key_dtype: Dtype of the keys; default that of the initializer, else string.
        name: Its name.
    """

    def __init__(
        self, initializer: Any, num_oov_buckets: int, lookup_key_dtype: DTypeLike | None = None, name: str | None = None
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0.")
        table = None if initializer is None else HashTable(initializer, -1)
        super().__init__(table, num_oov_buckets, name=name, key_dtype=lookup_key_dtype)

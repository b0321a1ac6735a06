"""Parsing: from records to numbers and strings (CSV, raw bytes, tf.train.Example).

Follows TensorFlow 1.15, python/ops/parsing_ops.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from globalstep.dtypes import DType, DTypeLike, as_dtype, string_array
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data.example import Example
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, constant_array, name_scope, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.building import sizes_of
from globalstep.tf1.ops.gradient_ops import sum_like
from globalstep.tf1.ops.indexing_ops import gather_nd
from globalstep.tf1.text.string_numbers import read_number
from globalstep.tf1.text.string_ops import as_bytes

_LISTS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with as many values in each example.

    Attributes:
        shape: Shape of its values.
        dtype: float32, int64 or string.
        default_value: What an example without it has; None where it must be there.
    """

    shape: Any
    dtype: DTypeLike
    default_value: Any = None


@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A feature with any number of entries, each of one shape.

    Attributes:
        shape: Shape of an entry.
        dtype: float32, int64 or string.
        allow_missing: Whether an example without it has no entries; `parse_example` needs True.
        default_value: What fills shorter ones up in a batch; default 0 or "".
    """

    shape: Any
    dtype: DTypeLike
    allow_missing: bool = False
    default_value: Any = None


@dataclass(frozen=True)
class SparseFeature:
    """Two or more features that are one SparseTensor: the places of values, and the values.

    Attributes:
        index_key: Name of the feature with the places, int64; a list of names for several dimensions.
        value_key: Name of the feature with the values.
        dtype: Of the values: float32, int64 or string.
        size: Size of the dimension; a list of sizes for several.
        already_sorted: Whether the places are in order, so that they need not be sorted.
    """

    index_key: Any
    value_key: str
    dtype: DTypeLike
    size: Any
    already_sorted: bool = False

    @property
    def keys(self) -> list[str]:
        """The names of the features with places, one a dimension."""
        return list(self.index_key) if isinstance(self.index_key, (list, tuple)) else [self.index_key]

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension."""
        return [int(size) for size in (self.size if isinstance(self.size, (list, tuple)) else [self.size])]


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values in each example; parsed into a SparseTensor.

    Attributes:
        dtype: float32, int64 or string.
    """

    dtype: DTypeLike


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Node]:
    """Take lines of comma separated values apart.

    Args:
        records: Strings, any shape; each a line.
        record_defaults: For each column a list of one value, or a 1-D node: the dtype of the column and
            what an empty field has. An empty one of that dtype (`gs.constant([], dtype)`) makes the
            field required.
        field_delim: Between fields.
        use_quote_delim: Whether fields may stand in double quotes.
        name: Name of the node; default "DecodeCSV".
        na_value: A field that counts as empty, besides the empty one.
        select_cols: Numbers of the columns to give, ascending; default all.

    Returns:
        A node of the shape of `records` for each column.

    Raises:
        ValueError: If `select_cols` and `record_defaults` do not fit.
        InvalidArgumentError: When run, if a line has other fields; the text names record and field.
    """
    lines = as_node(records, "string", name="records")
    defaults = [as_node(default, name="default") for default in record_defaults]
    dtypes = [default.dtype for default in defaults]
    for default in defaults:
        if (rank := default.shape.ndims or 0) > 1:
            raise ValueError(f"Shape must be at most rank 1 but is rank {rank}")
        if default.shape.num_elements() not in (None, 0, 1):
            raise ValueError("Shape of a default must be a length-0 or length-1 vector, or a scalar.")
    if len(field_delim) != 1:
        raise InvalidArgumentError("field_delim should be only 1 char")
    if select_cols is not None:
        if list(select_cols) != sorted(set(select_cols)):
            raise ValueError("select_cols is not strictly increasing.")
        if min(select_cols, default=0) < 0:
            raise ValueError("select_cols contains negative values.")
        if len(select_cols) != len(defaults):
            raise ValueError("Length of select_cols and record_defaults do not match.")
    attrs = {
        "out_type": dtypes, "field_delim": field_delim, "use_quote_delim": use_quote_delim, "na_value": na_value,
        "select_cols": None if select_cols is None else list(select_cols),
    }  # fmt: skip
    node = Node("DecodeCSV", [lines, *defaults], name=name or "DecodeCSV", attrs=attrs)
    with name_scope(f"{node.op_name}/"):
        return [
            tuple_item(node, index, name=f"field_{index}", dtype=dtype, shape=lines.shape)
            for index, dtype in enumerate(dtypes)
        ]


@computes("DecodeCSV")
def _decode_csv(
    values: Any, *defaults: Any, out_type: list[DType], field_delim: str, use_quote_delim: bool, na_value: str,
    select_cols: list[int] | None,
) -> Any:  # fmt: skip
    array = np.asarray(values, dtype=object)
    rows = [_fields(as_bytes(line), as_bytes(field_delim), use_quote_delim) for line in array.reshape(-1)]
    if select_cols is not None:
        rows = [[row[column] for column in select_cols if column < len(row)] for row in rows]
    for record, row in enumerate(rows):
        if len(row) != len(out_type):
            raise InvalidArgumentError(f"Expect {len(out_type)} fields but have {len(row)} in record {record}")
    empty, columns = (b"", as_bytes(na_value)), []
    for number, (dtype, default) in enumerate(zip(out_type, defaults, strict=True)):
        fields = [_field(row[number], dtype, default, number, at, empty) for at, row in enumerate(rows)]
        columns.append(np.array(fields, dtype=dtype.as_numpy_dtype).reshape(array.shape))
    return tuple(columns)


@functools.cache
def _csv_field(delim: bytes) -> re.Pattern[bytes]:
    """Give the pattern of a field and what ends it: within quotes, where a quote is written twice, or without."""
    end = re.escape(delim)
    return re.compile(rb'[\r\n]*(?:"((?:[^"]|"")*)"|([^"\r\n%b]*))(?:%b|(\Z))' % (end, end))


def _fields(line: bytes, delim: bytes, use_quote_delim: bool) -> list[bytes]:
    if not use_quote_delim or not any(mark in line for mark in b'"\r\n'):
        return line.split(delim) if line else []
    fields, at, ends = [], 0, False
    while not ends:
        if (match := _csv_field(delim).match(line, at)) is None:
            if line.startswith(b'"', at):
                raise InvalidArgumentError("Quoted field has to end with quote followed by delim or end")
            raise InvalidArgumentError("Unquoted fields cannot have quotes/CRLFs inside")
        fields.append(match[2] if match[1] is None else match[1].replace(b'""', b'"'))
        at, ends = match.end(), match[3] is not None
    return fields


def _field(text: bytes, dtype: DType, default: Any, column: int, record: int, empty: Sequence[bytes]) -> Any:
    if text in empty:
        if np.size(default) == 0:
            raise InvalidArgumentError(f"Field {column} is required but missing in record {record}!")
        return np.asarray(default).reshape(-1)[0]
    if dtype.name == "string":
        return text
    if (number := read_number(text, dtype)) is None:
        kind = {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
        shown = text.decode("utf-8", "replace")
        raise InvalidArgumentError(f"Field {column} in record {record} is not a valid {kind}: {shown}")
    return number


def decode_raw(bytes: Any, out_type: Any, little_endian: bool = True, name: str | None = None) -> Node:
    """Read the bytes of strings as numbers.

    Args:
        bytes: Strings of one length, any shape.
        out_type: Dtype of the numbers.
        little_endian: Their byte order.
        name: Name of the node; default "DecodeRaw".

    Returns:
        A node with one dimension more: the numbers of each string.

    Raises:
        InvalidArgumentError: When run, if the lengths differ or do not fit the dtype.
    """
    strings, dtype = as_node(bytes, "string"), as_dtype(out_type)
    shape = TensorShape(None if strings.shape.ndims is None else [*strings.shape.as_list(), None])
    attrs = {"out_type": dtype, "little_endian": little_endian}
    return Node("DecodeRaw", [strings], name=name or "DecodeRaw", dtype=dtype, shape=shape, attrs=attrs)


@computes("DecodeRaw")
def _decode_raw(values: Any, *, out_type: DType, little_endian: bool) -> Any:
    stored = np.dtype(out_type.as_numpy_dtype).newbyteorder("<" if little_endian else ">")
    array = np.asarray(values, dtype=object)
    items = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1)]
    lengths = {len(item) for item in items}
    if len(lengths) > 1:
        raise InvalidArgumentError(
            f"DecodeRaw requires input strings to all be the same size, but they have {sorted(lengths)}"
        )
    if any(length % stored.itemsize for length in lengths):
        raise InvalidArgumentError(
            f"Input to DecodeRaw has length {lengths.pop()} that is not a multiple of "
            f"{stored.itemsize}, the size of {out_type.name}"
        )
    rows = np.frombuffer(b"".join(items), dtype=stored).astype(out_type.as_numpy_dtype)
    return rows.reshape(*array.shape, -1) if items else rows.reshape(*array.shape, 0)


def parse_example(
    serialized: Any, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """Parse a batch of serialized `Example` messages.

    Args:
        serialized: 1-D strings.
        features: Name to FixedLenFeature, FixedLenSequenceFeature, VarLenFeature or SparseFeature.
        name: Name of the node; default "ParseExample".
        example_names: Accepted as in TensorFlow.

    Returns:
        Name to node [batch, *shape], or to SparseTensor: [batch, longest], or [batch, *size] of a SparseFeature.

    Raises:
        ValueError: If `features` is empty or a dtype is none that an Example has.
        InvalidArgumentError: When run, if an example does not parse, lacks a feature or has other
            values; the text names feature and example.
    """
    return _parse(as_node(serialized, "string"), features, name, batched=True)


def parse_single_example(
    serialized: Any, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """Parse one serialized `Example` message.

    Args:
        serialized: A scalar string.
        features: Name to FixedLenFeature, FixedLenSequenceFeature, VarLenFeature or SparseFeature.
        name: Name of the node; default "ParseSingleExample".
        example_names: Accepted as in TensorFlow.

    Returns:
        Name to node of the feature's shape, or to SparseTensor: [number of values], or of a SparseFeature's size.

    Raises:
        ValueError: If `features` is empty or a dtype is none that an Example has.
        InvalidArgumentError: When run, if it does not parse, lacks a feature or has other values.
    """
    return _parse(as_node(serialized, "string"), features, name, batched=False)


def sparse_tensor_to_dense(
    sp_input: SparseTensor, default_value: Any = 0, validate_indices: bool = True, name: str | None = None
) -> Node:
    """Make the dense node of a SparseTensor.

    Args:
        sp_input: The SparseTensor.
        default_value: What the other elements have.
        validate_indices: Whether the places must be in order, none of them twice.
        name: Name of the node; default "SparseToDense".
    """
    inputs = [sp_input.indices, sp_input.dense_shape, sp_input.values]
    return _dense(inputs, default_value, sp_input.shape, name, validate_indices)


def _dense(inputs: list[Node], default: Any, shape: TensorShape, name: str | None, validate: bool) -> Node:
    if np.ndim(default):
        raise ValueError("default_value should be a scalar.")
    attrs = {"default_value": _default(inputs[2].dtype, default), "validate_indices": validate}
    return Node("SparseToDense", inputs, name=name or "SparseToDense", dtype=inputs[2].dtype, shape=shape, attrs=attrs)


@computes("SparseToDense")
def _sparse_to_dense(
    indices: Any, shape: Any, values: Any, *, default_value: Any, validate_indices: bool, dtype: Any
) -> Any:
    places = np.asarray(indices)
    places = places.reshape(-1, 1) if places.ndim < 2 else places
    dense = np.full([int(size) for size in shape], default_value, dtype=dtype)
    if places.shape[1] != dense.ndim:
        raise InvalidArgumentError(f"output_shape has {dense.ndim} elements; indices have {places.shape[1]}")
    if np.shape(values) not in ((), places.shape[:1]):
        raise InvalidArgumentError(f"sparse_values has incorrect shape {np.shape(values)}; {len(places)} are indexed")
    for at in np.flatnonzero(np.any((places < 0) | (places >= dense.shape), axis=1))[:1]:
        raise InvalidArgumentError(
            f"indices[{at}] = {places[at].tolist()} is out of bounds: need 0 <= index < {list(dense.shape)}"
        )
    if validate_indices:
        order = np.diff(np.ravel_multi_index(tuple(places.T), dense.shape))
        for at in np.flatnonzero(order <= 0)[:1]:
            fault = "is out of order" if order[at] else "is repeated"
            raise InvalidArgumentError(f"indices[{at + 1}] = {places[at + 1].tolist()} {fault}")
    dense[tuple(places.T)] = values
    return dense


def _default(dtype: DType, value: Any) -> Any:
    return value if dtype.name != "string" else b"" if value == 0 else string_array(value).item()


@gradient_of("SparseToDense")
def _sparse_to_dense_gradient(node: Node, grad: Node) -> Any:
    places, _, values = node.inputs
    picked = gather_nd(grad, reshape(places, [-1, 1]) if places.shape.ndims in (0, 1) else places)
    return None, None, picked if values.shape.ndims == 1 else sum_like(picked, values)


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Node:
    """Make a dense node from the places and values of its elements; see `sparse_tensor_to_dense`.

    Args:
        sparse_indices: Int scalar, vector [n] of places in a vector, or matrix [n, rank].
        output_shape: Int vector [rank]: the shape of the result.
        sparse_values: Vector [n], or a scalar for all places.
        default_value: What the other elements have.
        validate_indices: Whether the places must be in order, none of them twice.
        name: Name of the node; default "SparseToDense".

    >>> import globalstep as gs
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.sparse_to_dense([[0, 1], [1, 0]], [2, 2], 1.0)))
    [[0. 1.]
     [1. 0.]]
    """
    values, sizes = as_node(sparse_values), as_node(output_shape)
    inputs = [as_node(sparse_indices), sizes, values]
    return _dense(inputs, default_value, TensorShape(sizes_of(sizes)), name, validate_indices)


def _parse(serialized: Node, features: Mapping[str, Any], name: str | None, batched: bool) -> dict[str, Any]:
    if not features:
        raise ValueError("Missing: features was None.")
    check_dtypes(features)
    for feature in features.values():
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise ValueError("Unsupported: FixedLenSequenceFeature requires allow_missing to be True.")

        if isinstance(feature, SparseFeature):
            if not feature.value_key or not all(feature.keys):
                raise ValueError(f"Missing index_key or value_key for SparseFeature {feature}.")
            if len(feature.keys) != len(feature.sizes):
                raise ValueError(f"index_key and size have to have equal lengths, in {feature}.")
    op_type = "ParseExample" if batched else "ParseSingleExample"
    attrs = {"features": dict(features), "batched": batched}
    node = Node(op_type, [serialized], name=name or op_type, attrs=attrs)
    rows = [serialized.shape.as_list()[0] if serialized.shape.ndims else None] if batched else []
    return outputs_of(node, features, 0, rows, 2 if batched else 1)


@computes("ParseExample")
@computes("ParseSingleExample")
def _parsed(values: Any, *, features: dict[str, Any], batched: bool) -> Any:
    strings = np.asarray(values, dtype=object).reshape(-1)
    examples = [_example(item, index) for index, item in enumerate(strings)]
    parsed: list[Any] = []
    for key, feature in features.items():
        if isinstance(feature, SparseFeature):
            parsed.extend(_placed(examples, key, feature, batched))
            continue
        columns = [_values(example, key, feature, i) for i, example in enumerate(examples)]
        if isinstance(feature, VarLenFeature):
            parsed.extend(sparse_parts(columns, feature, batched))
        elif isinstance(feature, FixedLenSequenceFeature):
            parsed.append(_padded(columns, key, feature, batched))
        else:
            parsed.append(dense_of(columns, key, feature, batched))
    return tuple(parsed)


def check_dtypes(features: Mapping[str, Any]) -> None:
    """Refuse, by a ValueError, features of a dtype that messages have not."""
    for key, feature in features.items():
        if as_dtype(feature.dtype).name not in _LISTS:
            raise ValueError(f"Feature {key!r} has dtype {feature.dtype}; an Example has {', '.join(_LISTS)}.")


def outputs_of(
    node: Node, features: Mapping[str, Any], first: int, lead: list[int | None], rank: int
) -> dict[str, Any]:
    """Give the outputs of a node that parses features: a node for each, a SparseTensor for a sparse one.

    Args:
        node: It gives a tuple.
        features: Name -> feature.
        first: Place in the tuple of the first feature's.
        lead: What a dense output's shape begins with.
        rank: Rank of the output of a VarLenFeature.
    """
    result: dict[str, Any] = {}
    index = first
    with name_scope(f"{node.op_name}/"):
        for key, feature in features.items():
            dtype = as_dtype(feature.dtype)
            if isinstance(feature, (VarLenFeature, SparseFeature)):
                own = rank - 1 + len(feature.sizes) if isinstance(feature, SparseFeature) else rank
                result[key] = SparseTensor(
                    tuple_item(node, index, name="indices", dtype="int64", shape=[None, own]),
                    tuple_item(node, index + 1, name="values", dtype=dtype, shape=[None]),
                    tuple_item(node, index + 2, name="dense_shape", dtype="int64", shape=[own]),
                )
                index += 3
            else:
                entries = [None] if isinstance(feature, FixedLenSequenceFeature) else []
                shape = [*lead, *entries, *TensorShape(feature.shape).as_list()]
                result[key] = tuple_item(node, index, name="dense", dtype=dtype, shape=shape)
                index += 1
    return result


def _example(data: Any, index: int) -> Any:
    try:
        return Example.FromString(data.encode() if isinstance(data, str) else data)
    except DecodeError:
        raise InvalidArgumentError(f"Could not parse example input, record {index}: no Example message") from None


def _values(example: Any, key: str, feature: Any, index: int) -> list[Any] | None:
    """Give an example's values of a feature; None where it has none."""
    if key not in example.features.feature:
        return None
    return values_in(example.features.feature[key], key, feature, index)


def values_in(held: Any, key: str, feature: Any, index: int) -> list[Any] | None:
    """Give the values of a Feature message; None where it has none.

    Raises:
        InvalidArgumentError: If they are of another dtype.
    """
    kind, wanted = held.WhichOneof("kind"), _LISTS[as_dtype(feature.dtype).name]
    if kind is None:
        return None
    if kind != wanted:
        raise InvalidArgumentError(
            f"Example {index}, key {key}: Data types don't match. Data type: {kind} but expected type: {wanted}"
        )
    return list(getattr(held, wanted).value)


def dense_of(columns: list[list[Any] | None], key: str, feature: FixedLenFeature, batched: bool) -> Any:
    """Give the values of a feature of one shape, stacked if `batched`; those of the first example else."""
    dtype = as_dtype(feature.dtype).as_numpy_dtype
    sizes = [int(size) for size in TensorShape(feature.shape)]
    rows = []
    for index, column in enumerate(columns):
        if column is None:
            if feature.default_value is None:
                raise InvalidArgumentError(
                    f"Example {index}: Feature {key} (data type: {as_dtype(feature.dtype).name}) is required "
                    "but could not be found."
                )
            filling = constant_array(feature.default_value, feature.dtype)
            same = filling.size == math.prod(sizes)
            rows.append(filling.reshape(sizes) if same else np.broadcast_to(filling, sizes))
            continue
        if len(column) != int(np.prod(sizes)):
            raise InvalidArgumentError(
                f"Example {index}, key {key}: Number of values != expected. values size: {len(column)} but "
                f"output shape: {sizes}"
            )
        row = np.empty(len(column), dtype=dtype)
        row[:] = column
        rows.append(row.reshape(sizes))
    if not batched:
        return rows[0]
    return np.stack(rows) if rows else np.zeros([0, *sizes], dtype=dtype)


def _padded(columns: list[list[Any] | None], key: str, feature: FixedLenSequenceFeature, batched: bool) -> Any:
    """Give the entries of each example, the shorter ones filled up."""
    dtype = as_dtype(feature.dtype).as_numpy_dtype
    sizes = [int(size) for size in TensorShape(feature.shape)]
    each = int(np.prod(sizes))
    for index, column in enumerate(columns):
        if len(column or ()) % each:
            raise InvalidArgumentError(
                f"Example {index}, key {key}: Number of values is not a multiple of stride length. values size: "
                f"{len(column or ())} but output shape: {sizes}"
            )
    longest = max((len(column or ()) // each for column in columns), default=0)
    filling = feature.default_value
    filling = _default(as_dtype(feature.dtype), 0 if filling is None else filling)
    whole = np.full((len(columns), longest * each), filling, dtype)
    for row, column in zip(whole, columns, strict=True):
        row[: len(column or ())] = column or []
    padded = whole.reshape(len(columns), longest, *sizes)
    return padded if batched else padded[0]


def _placed(examples: list[Any], key: str, feature: SparseFeature, batched: bool) -> tuple[Any, Any, Any]:
    """Give indices, values and shape of a feature whose places are features of their own."""
    places: list[list[int]] = []
    all_values: list[Any] = []
    for row, example in enumerate(examples):
        values = _values(example, feature.value_key, feature, row) or []
        columns = [_values(example, name, VarLenFeature("int64"), row) or [] for name in feature.keys]
        for name, column in zip(feature.keys, columns, strict=True):
            if len(column) != len(values):
                raise InvalidArgumentError(
                    f"Example {row}, key {key}: {feature.value_key} has {len(values)} values, and {name} has "
                    f"{len(column)} places."
                )
        places += [[row, *place] if batched else [*place] for place in zip(*columns, strict=True)]
        all_values += values
    shape = [len(examples), *feature.sizes] if batched else feature.sizes
    indices = np.array(places, dtype=np.int64).reshape(-1, len(shape))
    array = np.empty(len(all_values), dtype=as_dtype(feature.dtype).as_numpy_dtype)
    array[:] = all_values
    if not feature.already_sorted:
        # The last key of lexsort is the first one by which it sorts; equal places keep their order.
        order = np.lexsort(indices.T[::-1])
        indices, array = indices[order], array[order]
    return indices, array, np.array(shape, dtype=np.int64)


def sparse_parts(columns: list[list[Any] | None], feature: VarLenFeature, batched: bool) -> tuple[Any, Any, Any]:
    """Give indices, values and shape of a feature with any number of values."""
    filled = [column or [] for column in columns]
    places = [[row, place] if batched else [place] for row, column in enumerate(filled) for place in range(len(column))]
    values = np.empty(len(places), dtype=as_dtype(feature.dtype).as_numpy_dtype)
    values[:] = [value for column in filled for value in column]
    longest = max(map(len, filled), default=0)
    shape = [len(filled), longest] if batched else [longest]
    indices = np.array(places, dtype=np.int64).reshape(-1, len(shape))
    return indices, values, np.array(shape, dtype=np.int64)

"""Functions of strings: taken apart, joined, replaced, and made buckets of.

Strings are bytes, as in TensorFlow: what is given as text counts as UTF-8.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/string_ops.py`, `core/kernels/string_*_op.cc`.
"""

from __future__ import annotations

import base64
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of, with_attributes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.building import from_front, normal_axes, static_ints
from globalstep.tf1.text.fingerprints import fingerprint64, hash64, strong_hash


def as_bytes(item: Any) -> bytes:
    """Give a string as bytes."""
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")


def strings_node(value: Any, what: str = "input") -> Node:
    """Give strings as a node.

    Raises:
        TypeError: If they are none.
    """
    node = as_node(value)
    if node.dtype.name != "string":
        raise TypeError(f"Value passed to parameter '{what}' has DataType {node.dtype.name}; string is expected.")
    return node


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def _strings(op_type: str, nodes: Sequence[Node], name: str | None, shape: Any, dtype: Any, **attrs: Any) -> Node:
    attrs["stops_gradient"] = True
    return Node(op_type, nodes, name=name or op_type, dtype=dtype, shape=shape, attrs=attrs)


def mapped(op_type: str, node: Node, name: str | None, dtype: Any = "string", **attrs: Any) -> Node:
    """Make the node of a function of each string, which `computes_each` registers.

    Args:
        op_type: TensorFlow's type of the operation.
        node: The strings.
        name: Name of the node.
        dtype: Dtype of what it gives.
        **attrs: Attributes of the node.
    """
    return _strings(op_type, [node], name, node.shape, dtype, **attrs)


def computes_each(op_type: str) -> Callable[[Callable[..., Any]], None]:
    """Register the decorated function of each string, and by keyword of attributes; see `computes`."""

    def register(function: Callable[..., Any]) -> None:
        kernel_of(op_type)(lambda node: functools.partial(_each, with_attributes(function, node), node.dtype))

    return register


def _each(function: Callable[[bytes], Any], dtype: DType, values: Any) -> Any:
    array = np.asarray(values, dtype=object)
    results = [function(as_bytes(item)) for item in array.reshape(-1)]
    if dtype.name == "string":
        return _objects(results, array.shape)
    return np.array(results, dtype=dtype.as_numpy_dtype).reshape(array.shape)


def _sparse_rows(op_type: str, node: Node, name: str | None, **attrs: Any) -> SparseTensor:
    """Give the parts of each string of a vector as a row of a SparseTensor; see `_take_apart`."""
    if node.shape.ndims not in (None, 1):
        raise ValueError(f"Shape must be rank 1 but is rank {node.shape.ndims} for '{op_type}'.")
    made = Node(op_type, (node,), name=name or op_type, attrs={"tuple": True, "stops_gradient": True, **attrs})
    return SparseTensor(
        tuple_item(made, 0, name="indices", dtype="int64", shape=[None, 2]),
        tuple_item(made, 1, name="values", dtype="string", shape=[None]),
        tuple_item(made, 2, name="dense_shape", dtype="int64", shape=[2]),
    )


def _take_apart(values: Any, parts_of: Callable[[bytes], list[bytes]]) -> Any:
    rows = [parts_of(as_bytes(item)) for item in np.asarray(values, dtype=object).reshape(-1)]
    places = [(row, place) for row, parts in enumerate(rows) for place in range(len(parts))]
    return (
        np.array(places, np.int64).reshape(-1, 2),
        _objects([part for parts in rows for part in parts], [len(places)]),
        np.array([len(rows), max(map(len, rows), default=0)], np.int64),
    )


def string_split(
    source: Any, sep: Any = None, skip_empty: bool = True, delimiter: Any = None, name: str | None = None
) -> SparseTensor:
    """Take strings apart at any of the characters of `sep`.

    Args:
        source: 1-D strings.
        sep: The characters that part; default a space. With "" each byte is a part.
        skip_empty: Whether empty parts are left out.
        delimiter: Older name of `sep`.
        name: Name of the node; default "StringSplit".

    Returns:
        A SparseTensor of dense_shape [number of strings, most parts].

    >>> import globalstep as gs
    >>> parts = gs.string_split(["hello world", "a b c"])
    >>> with gs.Session() as sess:
    ...     print(sess.run([parts.values, parts.dense_shape]))
    [array([b'hello', b'world', b'a', b'b', b'c'], dtype=object), array([2, 3])]
    """
    chosen = sep if sep is not None else " " if delimiter is None else delimiter
    node = strings_node(source, "source")
    return _sparse_rows("StringSplit", node, name, delimiter=as_bytes(chosen), skip_empty=bool(skip_empty))


@computes("StringSplit")
def _split(values: Any, *, delimiter: bytes, skip_empty: bool) -> Any:
    pattern = re.compile(b"[" + re.escape(delimiter) + b"]") if delimiter else None

    def parts_of(text: bytes) -> list[bytes]:
        if pattern is None:
            return [text[at : at + 1] for at in range(len(text))]
        if not text:
            return []
        parts = pattern.split(text)
        return [part for part in parts if part] if skip_empty else parts

    return _take_apart(values, parts_of)


def split(
    input: Any = None,
    sep: Any = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: Any = None,
    name: str | None = None,
) -> SparseTensor:
    """Take strings apart as Python's `split` does: at whole separators, or at runs of white space without one.

    Args:
        input: 1-D strings.
        sep: The separator; None or "" for white space.
        maxsplit: How often a string is parted at most; -1 for as often as can be.
        result_type: "SparseTensor".
        source: Older name of `input`.
        name: Name of the node; default "StringSplitV2".

    Returns:
        A SparseTensor of dense_shape [number of strings, most parts].

    Raises:
        ValueError: For another `result_type`: there are no ragged values here.
    """
    if result_type != "SparseTensor":
        raise ValueError(f"result_type must be 'SparseTensor' here, got {result_type!r}.")
    node = strings_node(input if input is not None else source)
    return _sparse_rows("StringSplitV2", node, name, sep=as_bytes(sep) if sep else None, maxsplit=maxsplit)


computes(
    "StringSplitV2",
    lambda values, *, sep, maxsplit: _take_apart(values, lambda text: text.split(sep, maxsplit)),
)


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Node:
    """Give a part of each string.

    Args:
        input: Strings of any shape.
        pos: Where it begins: an int for all or an array or node of them; negative from the end.
        len: How long it is; the same.
        name: Name of the node; default "Substr".
        unit: "BYTE" or "UTF8_CHAR".

    Returns:
        A node of strings.

    Raises:
        InvalidArgumentError: In the run, if it begins outside of the string.
    """
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR', got {unit!r}.")
    node = strings_node(input)
    starts, lengths = as_node(pos, name="pos"), as_node(len, name="len")
    shape = node.shape if starts.shape.ndims == 0 and lengths.shape.ndims == 0 else TensorShape(None)
    return _strings("Substr", (node, starts, lengths), name, shape, "string", unit=unit)


@computes("Substr")
def _substr(values: Any, first: Any, count: Any, *, unit: Any) -> Any:
    array, firsts, counts = np.broadcast_arrays(np.asarray(values, dtype=object), first, count)
    return _objects(
        [_part(as_bytes(s), int(f), int(n), unit) for s, f, n in
         zip(array.reshape(-1), firsts.reshape(-1), counts.reshape(-1), strict=True)],
        array.shape,
    )  # fmt: skip


def _part(text: bytes, first: int, count: int, unit: str) -> bytes:
    whole: Any = text if unit == "BYTE" else text.decode("utf-8", "surrogateescape")
    size = len(whole)
    if not -size <= first <= size:
        raise InvalidArgumentError(f"pos {first} out of range for string b'{text.decode('utf-8', 'replace')}'")
    start = first if first >= 0 else size + first
    return as_bytes(whole[start : start + max(count, 0)])


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Node:
    """Join strings, element by element.

    Args:
        inputs: List of nodes or arrays of strings, of one shape; scalars go with each element.
        separator: What is put between.
        name: Name of the node; default "StringJoin".

    Returns:
        A node of strings.
    """
    nodes = [strings_node(item, "inputs") for item in inputs]
    if not nodes:
        raise ValueError("string_join needs at least one input.")
    shapes = [node.shape for node in nodes if node.shape.ndims != 0] or [TensorShape([])]
    shape = functools.reduce(TensorShape.merge_with, shapes)
    return _strings("StringJoin", nodes, name, shape, "string", separator=as_bytes(separator))


@computes("StringJoin")
def _join(*values: Any, separator: Any) -> Any:
    if len({np.shape(value) for value in values} - {()}) > 1:
        raise InvalidArgumentError("Input shapes of StringJoin do not match, but for scalars.")
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=object) for value in values))
    rows = zip(*(array.reshape(-1) for array in arrays), strict=True)
    return _objects([separator.join(map(as_bytes, row)) for row in rows], arrays[0].shape)


def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Node:
    """Join the strings along axes.

    Args:
        inputs: Strings of any shape.
        axis: An int or a list of them: strings are joined along the first one first; None for all.
        keep_dims: Whether the axes stay, with size 1.
        separator: What is put between.
        name: Name of the node; default "ReduceJoin".
        reduction_indices: Older name of `axis`.
        keepdims: Newer name of `keep_dims`.

    Returns:
        A node of strings.
    """
    node = strings_node(inputs, "inputs")
    keeps = bool(keep_dims if keepdims is None else keepdims)
    chosen = reduction_indices if axis is None else axis
    axes, dims = normal_axes(chosen, node), None
    if node.shape.dims is not None:
        dims = [1 if i in axes else n for i, n in enumerate(node.shape.as_list()) if keeps or i not in axes]
    order = None if chosen is None else static_ints(chosen, "axis")
    options = {"order": order, "keep_dims": keeps, "separator": as_bytes(separator)}
    return _strings("ReduceJoin", [node], name, TensorShape(dims), "string", **options)


@computes("ReduceJoin")
def _reduce_join(values: Any, *, order: Any, keep_dims: Any, separator: Any) -> Any:
    array = np.asarray(values, dtype=object)
    # Without axes TensorFlow joins from the last one on.
    by = from_front(order, array.ndim)[:: -1 if order is None else 1]
    if order and len(by) < len(order):
        raise InvalidArgumentError(f"Duplicate reduction dimension among {list(order)}")
    rest = [axis for axis in range(array.ndim) if axis not in by]
    moved = np.transpose(array, [*rest, *reversed(by)])
    shape, joins = moved.shape[: len(rest)], math.prod(moved.shape[len(rest) :])
    joined = [separator.join(map(as_bytes, row)) for row in moved.reshape(math.prod(shape), joins)]
    if keep_dims:
        shape = tuple(1 if axis in by else size for axis, size in enumerate(array.shape))
    return _objects(joined, shape)


def string_strip(input: Any, name: str | None = None) -> Node:
    """Take white space off both ends of each string."""
    return mapped("StringStrip", strings_node(input), name)


computes_each("StringStrip")(lambda text: text.strip(b" \t\n\v\f\r"))


def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Node:
    """Give strings in small letters: those of ASCII, or all with `encoding` "utf-8"."""
    return _in_case("StringLower", input, encoding, name)


def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Node:
    """Give strings in capital letters: those of ASCII, or all with `encoding` "utf-8"."""
    return _in_case("StringUpper", input, encoding, name)


def _in_case(op_type: str, input: Any, encoding: str, name: str | None) -> Node:
    node = strings_node(input)
    if encoding not in ("", "utf-8"):
        raise ValueError(f"encoding must be '' or 'utf-8', got {encoding!r}.")
    return mapped(op_type, node, name, encoding=encoding)


def _cased(method: str) -> Callable[..., bytes]:
    def give(text: bytes, *, encoding: str) -> bytes:
        if not encoding:
            return bytes(getattr(text, method)())
        return as_bytes(getattr(text.decode("utf-8", "surrogateescape"), method)())

    return give


computes_each("StringLower")(_cased("lower"))
computes_each("StringUpper")(_cased("upper"))


def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Node:
    """Give the length of each string, int32, in bytes or, with `unit` "UTF8_CHAR", in characters."""
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR', got {unit!r}.")
    return mapped("StringLength", strings_node(input), name, "int32", unit=unit)


@computes_each("StringLength")
def _length(text: bytes, *, unit: str) -> int:
    return len(text if unit == "BYTE" else text.decode("utf-8", "replace"))


def regex_replace(input: Any, pattern: Any, rewrite: Any, replace_global: bool = True, name: str | None = None) -> Node:
    r"""Replace what matches a regular expression.

    Args:
        input: Strings of any shape.
        pattern: The expression, as Python has it, which is nearly RE2's.
        rewrite: What is put in its place; \\1 to \\9 are the groups, \\0 all that matched.
        replace_global: Whether every match is replaced, or the first one.
        name: Name of the node; default "RegexReplace".

    Returns:
        A node of strings.

    Raises:
        InvalidArgumentError: If the expression is none.
    """
    options = {"pattern": _compiled(pattern).pattern, "rewrite": as_bytes(rewrite), "replace_global": replace_global}
    return mapped("RegexReplace", strings_node(input), name, **options)


@computes_each("RegexReplace")
def _replace(text: bytes, *, pattern: bytes, rewrite: bytes, replace_global: bool) -> bytes:
    def put(match: re.Match[bytes]) -> bytes:
        return re.sub(rb"\\([0-9\\])", lambda found: _group(match, found[1]), rewrite)

    return re.sub(pattern, put, text, count=0 if replace_global else 1)


def _group(match: re.Match[bytes], digit: bytes) -> bytes:
    return b"\\" if digit == b"\\" else match[int(digit)] or b""


def _compiled(pattern: Any) -> re.Pattern[bytes]:
    try:
        return re.compile(as_bytes(pattern))
    except re.error as error:
        raise InvalidArgumentError(f"Invalid pattern: {pattern}, error: {error}") from None


def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Node:
    """Say of each string whether all of it matches a regular expression; see `regex_replace`."""
    return mapped("RegexFullMatch", strings_node(input), name, "bool", pattern=_compiled(pattern).pattern)


computes_each("RegexFullMatch")(lambda text, *, pattern: re.fullmatch(pattern, text) is not None)


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Node:
    """Give each string in base64 that is safe in URLs, filled up with "=" if `pad`."""
    return mapped("EncodeBase64", strings_node(input), name, pad=pad)


@computes_each("EncodeBase64")
def _encode(text: bytes, *, pad: bool) -> bytes:
    return base64.urlsafe_b64encode(text).rstrip(b"" if pad else b"=")


def decode_base64(input: Any, name: str | None = None) -> Node:
    """Do the reverse of `encode_base64`."""
    return mapped("DecodeBase64", strings_node(input), name)


@computes_each("DecodeBase64")
def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError as error:
        raise InvalidArgumentError(f"Invalid character found in base64: {error}") from None


def _buckets(op_type: str, input: Any, num_buckets: int, name: str | None, **attrs: Any) -> Node:
    count = int(num_buckets)
    if count < 1:
        raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")
    return mapped(op_type, strings_node(input), name, "int64", num_buckets=count, **attrs)


computes_each("StringToHashBucket")(lambda text, *, num_buckets: hash64(text) % num_buckets)
computes_each("StringToHashBucketFast")(lambda text, *, num_buckets: fingerprint64(text) % num_buckets)
computes_each("StringToHashBucketStrong")(lambda text, *, num_buckets, key: strong_hash(key, text) % num_buckets)


def string_to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Node:
    """Give each string a number below `num_buckets`: FarmHash's Fingerprint64, modulo it.

    Args:
        input: Strings of any shape.
        num_buckets: How many numbers there are.
        name: Name of the node; default "StringToHashBucketFast".

    Returns:
        An int64 node.

    >>> import globalstep as gs
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.string_to_hash_bucket_fast(["omar", "stringer", "marlo"], 10)))
    [6 4 1]
    """
    return _buckets("StringToHashBucketFast", input, num_buckets, name)


def string_to_hash_bucket(
    string_tensor: Any = None, num_buckets: int = 0, name: str | None = None, input: Any = None
) -> Node:
    """Give each string a number below `num_buckets`, by an older hash; see `string_to_hash_bucket_fast`.

    Args:
        string_tensor: Strings of any shape.
        num_buckets: How many numbers there are.
        name: Name of the node; default "StringToHashBucket".
        input: Newer name of `string_tensor`.
    """
    return _buckets("StringToHashBucket", string_tensor if input is None else input, num_buckets, name)


def string_to_hash_bucket_strong(input: Any, num_buckets: int, key: Sequence[int], name: str | None = None) -> Node:
    """Give each string a number below `num_buckets` that nobody can foresee without the key: SipHash.

    Args:
        input: Strings of any shape.
        num_buckets: How many numbers there are.
        key: Two ints.
        name: Name of the node; default "StringToHashBucketStrong".

    Raises:
        ValueError: For a key of another length.
    """
    if len(key) != 2:
        raise ValueError(f"Key must have 2 elements, got {len(key)}.")
    return _buckets("StringToHashBucketStrong", input, num_buckets, name, key=list(key))

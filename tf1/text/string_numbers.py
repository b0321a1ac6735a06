"""Numbers from strings and strings from numbers.

Layer: tf1. Source: TensorFlow 1.15 `core/kernels/string_to_number_op.cc`, `as_string_op.cc`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.text.string_ops import computes_each, mapped, strings_node

_FLOAT = re.compile(rb"\s*[+-]?(0x[\da-f]+|\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|infinity|nan)\s*", re.I)
_INT = re.compile(rb"\s*-?\d+\s*")
_LIMITS = {"int32": 1 << 31, "int64": 1 << 63}


def string_to_number(
    string_tensor: Any = None, out_type: DTypeLike = "float32", name: str | None = None, input: Any = None
) -> Node:
    """Read each string as a number.

    Args:
        string_tensor: Strings of any shape.
        out_type: float32, float64, int32 or int64.
        name: Name of the node; default "StringToNumber".
        input: Newer name of `string_tensor`.

    Returns:
        A node.

    Raises:
        InvalidArgumentError: In the run, if a string is no such number.
    """
    kind = as_dtype(out_type)
    if kind.name not in ("float32", "float64", "int32", "int64"):
        raise TypeError(f"string_to_number gives float32, float64, int32 or int64, not {kind.name}.")
    strings = strings_node(string_tensor if input is None else input, "string_tensor")
    return mapped("StringToNumber", strings, name, kind, out_type=kind)


@computes_each("StringToNumber")
def _read(text: bytes, *, out_type: DType) -> Any:
    if (number := read_number(text, out_type)) is not None:
        return number
    shown = text.decode("utf-8", "replace")
    raise InvalidArgumentError(f"StringToNumberOp could not correctly convert string: {shown}")


def read_number(text: bytes, dtype: DType) -> int | float | None:
    """Read a string as a number of a dtype; None where it is none."""
    if (limit := _LIMITS.get(dtype.name)) is None:
        return float(int(text, 16) if b"x" in text.lower() else text) if _FLOAT.fullmatch(text) else None
    number = int(text) if text.isdigit() or _INT.fullmatch(text) else limit
    return number if -limit <= number < limit else None


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Node:
    """Write numbers as C's printf does.

    Args:
        input: Node or array of numbers or bools.
        precision: Digits after the point, of floats; default 6.
        scientific: Whether floats are written with an exponent.
        shortest: Whether floats are written in the shorter of both ways.
        width: The least length.
        fill: What fills a string up to it: "" for spaces, "0" for zeros; "-" and "+" as printf's flags.
        name: Name of the node; default "AsString".

    Returns:
        A node of strings.

    Raises:
        ValueError: For options that exclude each other.
    """
    node = as_node(input)
    real = node.dtype.is_floating
    if scientific and shortest:
        raise ValueError("Cannot select both scientific and shortest notation")
    if (scientific or shortest or precision > -1) and not real:
        raise ValueError("scientific, shortest and precision are for floats.")
    if len(fill) > 1:
        raise ValueError("Fill string must be one or fewer characters")
    conversion = ("e" if scientific else "g" if shortest else "f") if real else "d"
    form = f"%{fill}{width if width > -1 else ''}{f'.{precision}' if precision > -1 else ''}{conversion}"
    return mapped("AsString", node, name, form=form)


@computes("AsString")
def _writer(values: Any, *, form: Any) -> Any:
    array = np.asarray(values)
    texts = np.empty(array.size, dtype=object)
    if array.dtype.kind == "b":
        texts[:] = [b"true" if item else b"false" for item in array.reshape(-1)]
    else:
        texts[:] = [(form % (item.item(),)).encode() for item in array.reshape(-1)]
    return texts.reshape(array.shape)

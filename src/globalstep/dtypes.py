"""Dtypes under TensorFlow's names.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "DType",
    "as_dtype",
    "bool_",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]


class DType:
    """A dtype of a node.

    Args:
        name: TensorFlow's name, e.g. "float32".
        numpy_type: What numpy calls it; `object` for strings.

    >>> as_dtype("float32").as_numpy_dtype is np.float32
    True
    """

    def __init__(self, name: str, numpy_type: Any) -> None:
        self.name = name
        self.as_numpy_dtype: Any = numpy_type

    @property
    def base_dtype(self) -> DType:
        """The dtype itself; TensorFlow's reference dtypes do not exist here."""
        return self

    @property
    def as_datatype_enum(self) -> int:
        """Its number in TensorFlow's protocol buffers.

        >>> as_dtype("float32").as_datatype_enum
        1
        """
        from globalstep.files.tensorboard_protos import DATA_TYPES

        return DATA_TYPES[self.name]

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.as_numpy_dtype).itemsize)

    @property
    def is_floating(self) -> bool:
        """Whether it is a real floating point type."""
        return bool(np.dtype(self.as_numpy_dtype).kind == "f")

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type."""
        return np.dtype(self.as_numpy_dtype).kind in "iu"

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an integer type without a sign."""
        return bool(np.dtype(self.as_numpy_dtype).kind == "u")

    @property
    def is_complex(self) -> bool:
        """Whether it is a complex type."""
        return bool(np.dtype(self.as_numpy_dtype).kind == "c")

    @property
    def is_bool(self) -> bool:
        """Whether it is the boolean type."""
        return bool(np.dtype(self.as_numpy_dtype).kind == "b")

    @property
    def min(self) -> Any:
        """The smallest finite value."""
        return np.iinfo(self.as_numpy_dtype).min if self.is_integer else np.finfo(self.as_numpy_dtype).min

    @property
    def max(self) -> Any:
        """The largest finite value."""
        return np.iinfo(self.as_numpy_dtype).max if self.is_integer else np.finfo(self.as_numpy_dtype).max

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DType | str | np.dtype | type):
            return False  # numpy takes None for float64
        try:
            return self.name == as_dtype(other).name
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"gs.{self.name}"


float16 = DType("float16", np.float16)
float32 = DType("float32", np.float32)
float64 = DType("float64", np.float64)
int8 = DType("int8", np.int8)
int16 = DType("int16", np.int16)
int32 = DType("int32", np.int32)
int64 = DType("int64", np.int64)
uint8 = DType("uint8", np.uint8)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
uint64 = DType("uint64", np.uint64)
bool_ = DType("bool", np.bool_)
complex64 = DType("complex64", np.complex64)
complex128 = DType("complex128", np.complex128)
string = DType("string", object)

_BY_NAME = {kind.name: kind for kind in list(globals().values()) if isinstance(kind, DType)}
# As TensorFlow reads these names; to numpy a "float" has 64 bits.
_BY_NAME |= {"half": float16, "float": float32, "double": float64}


#: What `as_dtype` takes.
DTypeLike = DType | str | np.dtype[Any] | type[Any]


def as_dtype(value: DTypeLike) -> DType:
    """Give the DType for a DType, a name, a numpy dtype or a Python type.

    Raises:
        TypeError: If there is none.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value.removesuffix("_ref") in _BY_NAME:
        return _BY_NAME[value.removesuffix("_ref")]
    if value is float:
        return float32
    if value is int:
        return int32
    if value is str or value is bytes:
        return string
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        raise TypeError(f"Cannot convert value {value!r} to a globalstep DType.") from None
    if dtype.kind in "OUS":
        return string
    kind = _BY_NAME.get(dtype.name)
    if kind is None:
        raise TypeError(f"Cannot convert value {value!r} to a globalstep DType.")
    return kind


def string_array(value: Any) -> np.ndarray[Any, Any]:
    """Give strings as TensorFlow has them, bytes; text counts as UTF-8.

    Args:
        value: A string, a nested list or an array of such.

    Returns:
        An array of objects. What is no text stays as it is.

    >>> string_array(["a", b"b"])
    array([b'a', b'b'], dtype=object)
    """
    array = np.asarray(value, dtype=object)
    if not any(isinstance(item, str) for item in array.flat):
        return array
    encoded = np.empty_like(array)
    for place, item in np.ndenumerate(array):
        encoded[place] = item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
    return encoded

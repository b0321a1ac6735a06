"""Elements of queues that tasks share, as bytes: the arrays of their components, and nothing that is executed.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.codec import DTYPES
from globalstep.wire.names import shown

Array = npt.NDArray[Any]

_STRING = "string"
#: Dtypes of components, by TensorFlow's name, which is numpy's; None for strings.
_DTYPES = {**DTYPES, "complex64": np.dtype("complex64"), "complex128": np.dtype("complex128"), _STRING: None}
_LENGTH = np.dtype("<i8")
_MOST_AXES = 32


def encode_element(components: Sequence[Any]) -> bytes:
    """Write an element.

    Args:
        components: An array for each component, or a number; of strings one of objects, bytes or text, or one of these.

    >>> decode_element(encode_element([np.array([1, 2], np.int32)]), ["int32"])
    (array([1, 2], dtype=int32),)
    """
    element = pb.QueueElement()
    for value in components:
        array = np.array(value, object) if isinstance(value, bytes | str) else np.asarray(value)
        component = element.components.add(shape=array.shape)
        if array.dtype == object:
            texts = [item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1)]
            component.data = np.array([len(text) for text in texts], _LENGTH).tobytes() + b"".join(texts)
        else:
            component.data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return element.SerializeToString()


def decode_element(raw: bytes, dtypes: Sequence[str]) -> tuple[Array, ...]:
    """Read an element.

    Raises:
        InvalidArgumentError: If that is not what it is.
    """
    element = _parsed(raw, dtypes)
    return tuple(_array(item, dtype) for item, dtype in zip(element.components, dtypes, strict=True))


def check_element(raw: bytes, dtypes: Sequence[str]) -> None:
    """Refuse bytes that are no element of a queue; see decode_element.

    Raises:
        InvalidArgumentError: If they are none.
        DecodeError: If they are no message at all.
    """
    for item, dtype in zip(_parsed(raw, dtypes).components, dtypes, strict=True):
        _checked(item, dtype)


def check_dtype(name: str) -> None:
    """Refuse a name of a dtype that components cannot have.

    Raises:
        InvalidArgumentError: If it is one.
    """
    if name not in _DTYPES:
        raise InvalidArgumentError(f"{shown(name)} is no dtype of a queue's elements; use one of {list(_DTYPES)}.")


def _parsed(raw: bytes, dtypes: Sequence[str]) -> pb.QueueElement:
    element = pb.QueueElement.FromString(raw)
    if len(element.components) != len(dtypes):
        raise InvalidArgumentError(f"an element of {len(dtypes)} components came with {len(element.components)}")
    return element


def _checked(item: pb.QueueComponent, name: str) -> list[int]:
    """Give the shape of a component, once its bytes are found to fit."""
    check_dtype(name)
    dtype, shape = _DTYPES[name], list(item.shape)
    if len(shape) > _MOST_AXES or any(size < 0 for size in shape):
        raise InvalidArgumentError("a component has a shape that cannot be")
    count = math.prod(shape)
    if dtype is not None:
        wanted = count * dtype.itemsize
    else:
        if len(item.data) < count * _LENGTH.itemsize:
            raise InvalidArgumentError(f"a component of {count} strings came with {len(item.data)} bytes")
        lengths = np.frombuffer(item.data, _LENGTH, count)
        if count and int(lengths.min()) < 0:
            raise InvalidArgumentError("a string has fewer than 0 bytes")
        # Each is summed as Python's own number: int64 might wrap around.
        wanted = count * _LENGTH.itemsize + sum(lengths.tolist())
    if len(item.data) != wanted:
        raise InvalidArgumentError(f"a component of dtype {name} and shape {shape} came with {len(item.data)} bytes")
    return shape


def _array(item: pb.QueueComponent, name: str) -> Array:
    shape, dtype = _checked(item, name), _DTYPES[name]
    if dtype is not None:
        # A copy: it may be written into.
        return np.frombuffer(item.data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    count = math.prod(shape)
    ends = np.cumsum(np.frombuffer(item.data, _LENGTH, count)).tolist()
    texts = memoryview(item.data)[count * _LENGTH.itemsize :]
    found = np.empty(count, object)
    for index, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        found[index] = bytes(texts[begin:end])
    return found.reshape(shape)

"""Compression of tensor bytes: float32 as bfloat16 or float16, and mostly-zero tensors as their non-zero values.

A transfer encoding, which only the two ends of a transport know of: what is packed here is unpacked there to the same
layout, before anything else looks at it. A message with packed data has `spans`, which cover the unpacked data.

Layer: shared. Threads: functions are pure. Importing this module imports numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.kernels import kernel, read_only
from globalstep.wire.declarations import padded

__all__ = ["pack", "unpack"]

Array = npt.NDArray[Any]
#: Gives memory: uint8 [n].
Take = Callable[[int], Array]

#: Of a mostly-zero tensor an element costs an index and a value, 8 bytes instead of 4.
_WORTH_NONZERO = 0.4


@kernel
def _to_bfloat16(bits: Array, out: Array) -> None:
    """Round float32, given by its bits, to the nearest bfloat16, ties to even; NaN stays NaN."""
    for i in range(bits.size):
        b = bits[i]
        if (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
            out[i] = np.uint16((b >> np.uint32(16)) | np.uint32(0x40))
        else:
            out[i] = np.uint16((b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@kernel
def _from_bfloat16(packed: Array, bits: Array) -> None:
    for i in range(packed.size):
        bits[i] = np.uint32(packed[i]) << np.uint32(16)


@kernel
def _count_nonzero(bits: Array) -> int:
    count = 0
    for i in range(bits.size):
        count += bits[i] != 0
    return count


@kernel
def _gather_nonzero(bits: Array, indices: Array, values: Array) -> int:
    at = 0
    for i in range(bits.size):
        value = bits[i]  # read once, and no further than the buffer reaches: another thread may write to it meanwhile
        if value != 0:
            if at == indices.size:
                return -1
            indices[at] = i
            values[at] = value
            at += 1
    return at


@kernel
def _scatter_nonzero(indices: Array, values: Array, bits: Array) -> bool:
    bits[:] = 0
    for i in range(indices.size):
        index = indices[i]  # read once: memory shared with the sender could change after the check
        if index >= bits.size:
            return False
        bits[index] = values[i]
    return True


def pack(
    pieces: Iterable[tuple[memoryview, str]],
    form: pb.Form.ValueType,
    spans: Any,
    take: Take,
    nonzero: bool = False,
) -> list[memoryview]:
    """Pack the tensors of a message.

    Args:
        pieces: The bytes of each, and its dtype; only float32 is packed.
        form: What for.
        spans: The message's, which is filled.
        take: Memory for what is packed.
        nonzero: Whether to look for tensors of which only a fraction is not zero.

    Returns:
        The bytes to send, in order. The spans are empty, and these are the given ones, where nothing was packed.
    """
    out: list[memoryview] = []
    before: list[memoryview] = []
    for piece, dtype in pieces:
        before.append(piece)
        chosen, packed = _pack_one(piece, form, take, nonzero) if dtype == "float32" else (pb.FORM_RAW, piece)
        out.append(packed)
        spans.add(form=chosen, bytes=piece.nbytes, packed_bytes=packed.nbytes)
    if all(span.form == pb.FORM_RAW for span in spans):
        del spans[:]
        return before
    return out


def _pack_one(
    piece: memoryview, form: pb.Form.ValueType, take: Take, nonzero: bool
) -> tuple[pb.Form.ValueType, memoryview]:
    bits = read_only(np.frombuffer(piece, np.uint32))
    if nonzero and (count := _count_nonzero(bits)) <= bits.size * _WORTH_NONZERO:
        buffer = take(8 * count).view(np.uint32)
        if _gather_nonzero(bits, buffer[:count], buffer[count:]) == count:
            return pb.FORM_NONZERO, buffer.view(np.uint8).data
    if form == pb.FORM_BFLOAT16:
        buffer = take(2 * bits.size).view(np.uint16)
        _to_bfloat16(bits, buffer)
    elif form == pb.FORM_FLOAT16:
        buffer = take(2 * bits.size).view(np.float16)
        with np.errstate(over="ignore"):  # beyond float16 is infinite, as the option says
            buffer[...] = bits.view(np.float32)
    else:
        return pb.FORM_RAW, piece
    return form, buffer.view(np.uint8).data


def unpack(spans: Sequence[pb.Span], data: memoryview, take: Take, limit_bytes: int) -> memoryview:
    """Give the data that was packed.

    Args:
        spans: The message's.
        data: Its bytes.
        take: Memory for the result, which is writable.
        limit_bytes: The most that may come of it.

    Raises:
        InvalidArgumentError: If the spans do not fit the data, or an index is out of range.
        ResourceExhaustedError: If more bytes would come of it than may.
    """
    total = sum(padded(span.bytes) for span in spans)
    if total > limit_bytes:
        raise ResourceExhaustedError(f"Packed data of {total} bytes is larger than the limit of {limit_bytes} bytes.")
    if sum(padded(span.packed_bytes) for span in spans) != data.nbytes:
        raise InvalidArgumentError(f"The spans of a packed message do not cover its {data.nbytes} bytes of data.")
    buffer = take(total)
    source, target = 0, 0
    for span in spans:
        end = target + span.bytes
        _unpack_one(span, np.frombuffer(data, np.uint8, span.packed_bytes, source), buffer[target:end])
        buffer[end : target + padded(span.bytes)] = 0
        source += padded(span.packed_bytes)
        target += padded(span.bytes)
    return buffer.data


def _unpack_one(span: pb.Span, packed: Array, out: Array) -> None:
    count, odd = divmod(span.bytes, 4)
    per_element = {pb.FORM_RAW: 4, pb.FORM_BFLOAT16: 2, pb.FORM_FLOAT16: 2}.get(span.form)
    if span.form == pb.FORM_RAW and span.bytes == span.packed_bytes:
        out[...] = packed
    elif odd or (per_element is not None and per_element * count != span.packed_bytes) or span.form == pb.FORM_RAW:
        raise _misfit(span)
    elif span.form == pb.FORM_BFLOAT16:
        _from_bfloat16(read_only(packed.view(np.uint16)), out.view(np.uint32))
    elif span.form == pb.FORM_FLOAT16:
        out.view(np.float32)[...] = packed.view(np.float16)
    elif span.form == pb.FORM_NONZERO and span.packed_bytes % 8 == 0:
        words = read_only(packed.view(np.uint32))
        half = math.ceil(len(words) / 2)
        if not _scatter_nonzero(words[:half], words[half:], out.view(np.uint32)):
            raise InvalidArgumentError(f"A packed tensor names an element beyond its {count}.")
    else:
        raise _misfit(span)


def _misfit(span: pb.Span) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"A span of {span.bytes} bytes cannot be packed in {span.packed_bytes} bytes of form {span.form}."
    )

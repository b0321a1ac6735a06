"""Compression of tensor bytes: float32 as bfloat16, float16 or int8, and mostly-zero tensors as their non-zero values.

A transfer encoding, which only the two ends of a transport know of: what is packed here is unpacked there to the same
layout, before anything else looks at it. A message with packed data has `spans`, which cover the unpacked data.

Layer: shared. Threads: functions are pure.
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

Array = npt.NDArray[Any]
#: Gives memory: uint8 [n].
Take = Callable[[int], Array]

#: Of a mostly-zero tensor an element costs an index and a value, 8 bytes instead of 4.
_WORTH_NONZERO = 0.4

#: Elements of int8 that have a scale together, as in MXINT8 of the OCP Microscaling Formats (2023).
_BLOCK = 32
#: Of blocks by float32's exponent x of their largest element, 2^(x - 133), by which that is 64 to 128 of them: where
#: scales are powers of two, rounding again changes nothing, and what rounding takes away is a float32. Elements below
#: 2^-120 have the least scale whose inverse float32 has.
_LEAST_EXPONENT = 7
_SCALES = np.ldexp(np.float32(1), np.arange(256) - 133).astype(np.float32)
_SCALES[255] = np.nan
_INVERSES = np.ldexp(np.float32(1), 133 - np.maximum(np.arange(256), _LEAST_EXPONENT)).astype(np.float32)


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
def _to_int8(bits: Array, values: Array, inverses: Array, out: Array, exponents: Array) -> None:
    most = np.float32(127)
    for block in range(exponents.size):
        first = block * _BLOCK
        end = min(first + _BLOCK, bits.size)
        largest = np.uint32(0)
        for i in range(first, end):
            largest = max(largest, bits[i] & np.uint32(0x7FFFFFFF))
        exponent = max(largest >> np.uint32(23), np.uint32(_LEAST_EXPONENT))
        exponents[block] = exponent
        for i in range(first, end):
            # Of an infinite or no number the scale says so. The last of a block's may round to 128.
            scaled = np.rint(values[i] * inverses[exponent])
            out[i] = np.int8(max(-most, min(most, scaled))) if exponent < np.uint32(255) else np.int8(0)


@kernel
def _from_int8(packed: Array, exponents: Array, scales: Array, values: Array) -> None:
    for block in range(exponents.size):
        scale = scales[exponents[block]]
        for i in range(block * _BLOCK, min((block + 1) * _BLOCK, values.size)):
            values[i] = np.float32(packed[i]) * scale


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
        pieces: The bytes of each, and its dtype; only float32 is packed. That of rows is "float32 rows": they may be
            shorter than a block of int8, and are bfloat16 then.
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
        if dtype == "float32":
            chosen, packed = _pack_one(piece, form, take, nonzero)
        elif dtype == "float32 rows":
            chosen, packed = _pack_one(piece, pb.FORM_BFLOAT16 if form == pb.FORM_INT8 else form, take, nonzero)
        else:
            chosen, packed = pb.FORM_RAW, piece
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
    elif form == pb.FORM_INT8:
        buffer = take(_int8_bytes(bits.size))
        _to_int8(bits, bits.view(np.float32), _INVERSES, buffer[: bits.size].view(np.int8), buffer[bits.size :])
    else:
        return pb.FORM_RAW, piece
    return form, buffer.view(np.uint8).data


def _int8_bytes(count: int) -> int:
    return count + math.ceil(count / _BLOCK)


def rounded(values: Array, form: pb.Form.ValueType) -> Array:
    """Give float32 values as they are once they were packed and unpacked; packing these changes nothing."""
    values = np.asarray(values, order="C")
    out = np.empty_like(values)
    if values.size:
        chosen, packed = _pack_one(values.reshape(-1).view(np.uint8).data, form, _fresh, False)
        span = pb.Span(form=chosen, bytes=values.nbytes, packed_bytes=packed.nbytes)
        _unpack_one(span, np.frombuffer(packed, np.uint8), out.reshape(-1).view(np.uint8))
    return out


def _fresh(nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8)


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
    elif span.form == pb.FORM_INT8 and span.packed_bytes == _int8_bytes(count):
        exponents = read_only(packed[count:])
        _from_int8(read_only(packed[:count].view(np.int8)), exponents, _SCALES, out.view(np.float32))
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

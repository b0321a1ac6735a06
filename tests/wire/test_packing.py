"""Packed tensor bytes: what comes back, what is rounded how, and that nothing malformed gets through."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.declarations import padded
from globalstep.wire.packing import pack, rounded, unpack

LIMIT = 1 << 20
# Kernels are compiled within the first example; the first array may take seconds on a loaded machine.
FLOATS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


def take(nbytes):
    # What was there before must not matter.
    return np.full(nbytes, 0xAB, np.uint8)


def sent(pieces):
    """The bytes of a message as the other end gets them."""
    return memoryview(b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in pieces))


def there_and_back(tensors, form, nonzero=False):
    request = pb.Request()
    pieces = [(tensor.data.cast("B"), tensor.dtype.name) for tensor in tensors if tensor.nbytes]
    packed = pack(pieces, form, request.spans, take, nonzero)
    data = sent(packed)
    if request.spans:
        data = unpack(request.spans, data, take, LIMIT)
    out, at = [], 0
    for tensor in tensors:
        out.append(np.frombuffer(data, tensor.dtype, tensor.size, at).reshape(tensor.shape))
        at += padded(tensor.nbytes)
    assert at == data.nbytes
    return out, request.spans


def cast_to(values, dtype):
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype(np.float32)


@given(FLOATS)
def test_16_bits_are_rounded_to_the_nearest_even(values):
    for form, dtype in ((pb.FORM_BFLOAT16, ml_dtypes.bfloat16), (pb.FORM_FLOAT16, np.float16)):
        (back,), _ = there_and_back([values], form)
        np.testing.assert_array_equal(back, cast_to(values, dtype))


@given(arrays.arrays(np.float32, st.integers(1, 80), elements=st.floats(width=32)))
def test_int8_is_off_by_a_64th_of_the_largest_at_most_and_does_not_change_again(values):
    (back,), spans = there_and_back([values], pb.FORM_INT8)
    assert [span.packed_bytes for span in spans] == [len(values) + -(-len(values) // 32)]
    for first in range(0, len(values), 32):
        block, got = values[first : first + 32], back[first : first + 32]
        if not np.isfinite(block).all():
            assert np.isnan(got).all()
            continue
        assert (np.abs(block.astype(float) - got) <= max(np.abs(block).max() / 64, 2.0**-126)).all()
        # What rounding takes away is a float32.
        assert ((block - got).astype(float) + got == block).all()
    again = rounded(back, pb.FORM_INT8)
    np.testing.assert_array_equal(again, back)


def test_rows_of_a_table_are_not_rounded_in_blocks_of_several():
    rows = np.array([[0.001, 0.002], [100.0, 200.0]], np.float32)
    request = pb.Request()
    pack([(rows.data.cast("B"), "float32 rows")], pb.FORM_INT8, request.spans, take)
    assert [span.form for span in request.spans] == [pb.FORM_BFLOAT16]


@given(FLOATS, st.floats(0, 1))
def test_a_mostly_zero_tensor_comes_back_bit_for_bit(values, keep):
    values[: int(len(values) * (1 - keep))] = 0
    (back,), spans = there_and_back([values], pb.FORM_RAW, nonzero=True)
    assert back.tobytes() == values.tobytes()
    assert all(span.packed_bytes <= span.bytes for span in spans)


def test_only_float32_is_packed_and_every_tensor_finds_its_place():
    tensors = [
        np.arange(7, dtype=np.float32),
        np.array([2**40 + 1, 3], np.int64),
        np.array(0.5, np.float32).reshape(1),
        np.array([1.0 + 2**-40], np.float64),
        np.array([9], np.int32),
    ]
    back, spans = there_and_back(tensors, pb.FORM_BFLOAT16)
    for tensor, got in zip(tensors, back, strict=True):
        np.testing.assert_array_equal(got, tensor)
    assert [span.form == pb.FORM_BFLOAT16 for span in spans] == [True, False, True, False, False]


def test_a_message_of_which_nothing_is_packed_has_no_spans():
    value = np.arange(4, dtype=np.int64)
    (back,), spans = there_and_back([value], pb.FORM_BFLOAT16)
    assert not spans
    np.testing.assert_array_equal(back, value)


def spans_of(*spans):
    return [pb.Span(form=form, bytes=size, packed_bytes=packed) for form, size, packed in spans]


@pytest.mark.parametrize(
    "spans",
    [
        [(pb.FORM_BFLOAT16, 16, 16)],
        [(pb.FORM_FLOAT16, 8, 16)],
        [(pb.FORM_BFLOAT16, 30, 16)],
        [(pb.FORM_RAW, 8, 16)],
        [(pb.FORM_RAW, 16, 16), (pb.FORM_RAW, 16, 16)],
        [],
        [(pb.FORM_NONZERO, 8, 12)],
        [(pb.FORM_INT8, 64, 16)],
        [(pb.FORM_INT8, 56, 16)],
        [(pb.FORM_INT8, 62, 16)],
        [(99, 16, 16)],
    ],
)
def test_spans_that_do_not_fit_are_refused(spans):
    with pytest.raises(InvalidArgumentError):
        unpack(spans_of(*spans), memoryview(bytes(16)), take, LIMIT)


def test_an_element_beyond_the_tensor_is_refused():
    packed = np.array([0, 4], np.uint32).tobytes() + np.ones(2, np.float32).tobytes()
    with pytest.raises(InvalidArgumentError, match="beyond its 4"):
        unpack(spans_of((pb.FORM_NONZERO, 16, 16)), memoryview(packed), take, LIMIT)


def test_no_memory_is_taken_for_more_than_the_limit():
    def never(nbytes):
        raise AssertionError(f"{nbytes} bytes were asked for")

    with pytest.raises(ResourceExhaustedError, match="larger than the limit"):
        unpack(spans_of((pb.FORM_NONZERO, 1 << 50, 8)), memoryview(bytes(8)), never, LIMIT)


def test_memory_that_changes_between_counting_and_gathering_is_sent_as_it_is():
    """Gradients may lie in memory that another thread writes to: no array is written past its end."""
    values = np.zeros(1000, np.float32)
    values[::10] = 1
    request = pb.Request()

    def take_late(nbytes):
        values[:] = 2  # after the count, before the gathering
        guarded = np.full(nbytes + 64, 0xAB, np.uint8)
        taken.append(guarded)
        return guarded[:nbytes]

    taken = []
    (packed,) = pack([(values.data.cast("B"), "float32")], pb.FORM_RAW, request.spans, take_late, nonzero=True)
    assert bytes(packed) == values.tobytes()
    assert not request.spans
    assert (taken[0][-64:] == 0xAB).all()

"""Arrays that lie in one piece of memory, however alike they are."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import padded
from globalstep.worker.protocol.push_messages import Places, joined_bytes

#: A dtype, a shape, how many arrays of these follow each other, and bytes before each.
ALIKE = st.tuples(
    st.sampled_from([np.dtype(name) for name in ("float32", "float64", "int8", "bool")]),
    st.sampled_from([(), (1,), (3,), (2, 3), (0, 2), (2, 2, 2)]),
    st.integers(1, 6) | st.integers(20, 40),
    st.sampled_from([0, 0, 8]),
)


def laid_out(groups):
    dtypes, shapes, offsets, end = [], [], [], 0
    for dtype, shape, count, gap in groups:
        for _ in range(count):
            dtypes.append(dtype)
            shapes.append(shape)
            offsets.append(end + gap)
            end = padded(end + gap + dtype.itemsize * math.prod(shape))
    return dtypes, shapes, offsets, end


@given(st.lists(ALIKE, max_size=6))
def test_each_array_lies_where_it_is_said_to(groups):
    dtypes, shapes, offsets, end = laid_out(groups)
    memory = np.arange(end, dtype=np.uint16).astype(np.uint8) % 2
    found = Places(dtypes, shapes, offsets).arrays(memory)
    assert len(found) == len(offsets)
    for array, dtype, shape, offset in zip(found, dtypes, shapes, offsets, strict=True):
        one = np.ndarray(shape, dtype, memory, offset)
        assert (type(array), array.dtype, array.shape, array.strides) == (np.ndarray, dtype, shape, one.strides)
        assert array.__array_interface__["data"] == one.__array_interface__["data"]
        assert array.tobytes() == one.tobytes()
    sealed = Places(dtypes, shapes, offsets).arrays(memory.data.toreadonly())
    assert not any(array.flags.writeable for array in sealed)


def test_one_of_them_holds_the_memory():
    pool = MemoryPool()
    places = Places([np.dtype("float32")] * 10, [(40_000,)] * 10, [160_000 * at for at in range(10)])
    arrays = places.arrays(pool.take(1_600_000).data)
    (last,) = arrays[9:]
    last.fill(3.0)
    del arrays
    again = pool.take(1_600_000)
    assert not np.shares_memory(again, last)
    address = last.__array_interface__["data"][0]
    del last
    assert pool.take(1_600_000).__array_interface__["data"][0] == address - 1_440_000


def test_operands_are_joined_whatever_their_order_in_memory():
    contiguous = [np.arange(3, dtype=np.float32), np.array(1, np.int8), np.zeros((0, 2))]
    turned = np.arange(6.0).reshape(2, 3).T
    for values in (contiguous, [*contiguous, turned], [turned]):
        assert joined_bytes(values) == b"".join(value.tobytes() for value in values)

"""Indexes of TensorFlow's checkpoints that somebody made: refused before they take memory or time."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from globalstep.chief.checkpoints.tf_bundle import TensorBundle, _slice_key
from globalstep.chief.checkpoints.tf_messages import BundleEntry, BundleHeader
from globalstep.errors import CheckpointError
from globalstep.files.records import masked_crc32c

FLOAT = 1


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(entries):
    """Entries (shared, rest of the key, value) as one block with its checksum."""
    body = b"".join(
        varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value for shared, rest, value in entries
    )
    body += struct.pack("<II", 0, 1)
    return body + b"\0" + struct.pack("<I", masked_crc32c(body + b"\0"))


def handle(offset, size):
    return varint(offset) + varint(size - 5)


def table(*blocks):
    """A sorted string table; each block is bytes, or the number of an earlier one that is named again."""
    data, handles, made = b"", [], []
    for item in blocks:
        if isinstance(item, bytes):
            made.append(handle(len(data), len(item)))
            data += item
            handles.append(made[-1])
        else:
            handles.append(made[item])
    index = block([(0, b"%08d" % at, where) for at, where in enumerate(handles)])
    footer = handle(len(data), 5) + handle(len(data), len(index))
    return data + index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(shape, size=0, offset=0, slices=(), data=b""):
    message = BundleEntry(dtype=FLOAT, size=size, offset=offset, crc32c=masked_crc32c(data))
    for length in shape:
        message.shape.dim.add().size = length
    for extents in slices:
        part = message.slices.add()
        for start, length in extents:
            part.extent.add(start=start, length=length)
    return message


def bundle(tmp_path, entries, data=b""):
    """A checkpoint of these entries, name or key -> BundleEntry."""
    keys = {
        name if isinstance(name, bytes) else name.encode(): value.SerializeToString() for name, value in entries.items()
    }
    keys[b""] = BundleHeader(num_shards=1).SerializeToString()
    (tmp_path / "model.index").write_bytes(table(block([(0, key, keys[key]) for key in sorted(keys)])))
    (tmp_path / "model.data-00000-of-00001").write_bytes(data)
    return TensorBundle(str(tmp_path / "model"))


def sliced(shape, *extents, data):
    """Entries of a tensor "w" in slices, whose data follow one another."""
    whole = entry(shape, slices=extents)
    out = {"w": whole}
    at = 0
    for part, box in zip(whole.slices, extents, strict=True):
        size = 4 * int(np.prod([length for _, length in box]))
        out[_slice_key("w", part)] = entry([length for _, length in box], size, at, data=data[at : at + size])
        at += size
    return out


def test_a_tensor_in_slices_is_put_together(tmp_path):
    data = np.arange(6, dtype=np.float32).tobytes()
    made = bundle(tmp_path, sliced([3, 2], [(0, 1), (0, 2)], [(1, 2), (0, 2)], data=data), data)
    np.testing.assert_array_equal(made.read("w"), [[0, 1], [2, 3], [4, 5]])


@pytest.mark.parametrize(
    ("shape", "extents"),
    [
        pytest.param([4], ([(0, 2)], [(1, 2)]), id="overlapping: memory that nobody wrote would be restored"),
        pytest.param([1 << 50], ([(0, 2)],), id="much larger than its slices"),
        pytest.param([2], ([(1, 2)],), id="beyond the end"),
        pytest.param([2, 2], ([(0, 2)],), id="of other axes"),
    ],
)
def test_slices_that_are_not_the_whole_are_refused_before_memory_is_taken(tmp_path, shape, extents):
    data = np.arange(4, dtype=np.float32).tobytes()
    made = bundle(tmp_path, sliced(shape, *extents, data=data), data)
    with pytest.raises(CheckpointError, match="slice"):
        made.read("w")


def test_a_shape_below_zero_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"'w' has the impossible shape \[-5\]"):
        bundle(tmp_path, {"w": entry([-5], 0)})


@pytest.mark.parametrize("size", [1 << 60, 1 << 40])
def test_an_entry_of_any_size_takes_no_more_memory_than_there_are_bytes(tmp_path, size):
    made = bundle(tmp_path, {"w": entry([size // 4], size)}, bytes(8))
    with pytest.raises(CheckpointError, match="'w'"):
        made.read("w")


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        pytest.param(
            [block([(0, b"a" * 4000, b""), *((4000, b"%03d" % at, b"") for at in range(999))])],
            "unfold",
            id="keys that share long prefixes",
        ),
        pytest.param([block([(0, b"a" * 5000, b"")])], "name of 5000 bytes", id="a long key"),
        pytest.param([block([(0, b"a", b"")]), 0, 0], "before the end", id="a block that is named again and again"),
        pytest.param([block([(0, b"b", b""), (0, b"a", b"")])], "order", id="keys out of order"),
    ],
)
def test_an_index_does_not_unfold_to_much_more_than_it_is(tmp_path, blocks, says):
    (tmp_path / "model.index").write_bytes(table(*blocks))
    with pytest.raises(CheckpointError, match=says):
        TensorBundle(str(tmp_path / "model"))

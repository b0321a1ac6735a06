"""The format of a write-ahead log: cut at every byte, damaged at every byte, with holes."""

import contextlib
import random

import numpy as np
import pytest

from globalstep.errors import DataLossError
from globalstep.ps.wal.log_file import LogFiles, SegmentReader, SegmentWriter, segment_path, segments_in

RECORDS = [(b"head", [b"12345678"]), (b"", []), (b"x" * 13, [b"abc", b"\xf5GSREC\xa7\n", b"z" * 31]), (b"end", [b"1"])]


def write(folder, synced_each=True, segment=1, first=1):
    """Write RECORDS; gives the places where they end."""
    writer = SegmentWriter(folder, segment, first)
    ends = []
    for number, (head, pieces) in enumerate(RECORDS, first):
        writer.write(number, number - 1 if synced_each else first - 1, head, [memoryview(piece) for piece in pieces])
        ends.append(writer.path.stat().st_size)
    writer.sync()
    writer.close()
    return ends


def read(path):
    reader = SegmentReader(path)
    found = [(record.number, record.head, bytes(record.data)) for record in reader.records()]
    return found, reader


def padded(piece):
    return piece + bytes(-len(piece) % 8)


EXPECTED = [(number, head, b"".join(map(padded, pieces))) for number, (head, pieces) in enumerate(RECORDS, 1)]


def test_what_was_written_is_read(tmp_path):
    ends = write(tmp_path)
    found, reader = read(segment_path(tmp_path, 1))
    assert found == EXPECTED
    assert (reader.end, reader.cut_bytes, reader.next_number) == (ends[-1], 0, 5)
    assert segments_in(tmp_path) == [1]


def test_the_disk_begins_with_a_large_record_while_it_is_written(tmp_path):
    class Files(LogFiles):
        def start_sync(self, file, offset, size):
            begun.append((offset, size, segment_path(tmp_path, 1).stat().st_size))

    begun = []
    pieces = [np.random.default_rng(size).bytes(size) for size in (5, 700_001, 2_500_000, 900_000)]
    dtypes = [np.uint8, np.uint8, np.float32, np.uint8]
    with contextlib.closing(SegmentWriter(tmp_path, 1, 1, Files())) as writer:
        writer.write(1, 0, b"head", [memoryview(np.frombuffer(*piece)) for piece in zip(pieces, dtypes, strict=True)])
        writer.sync()
    found, _ = read(segment_path(tmp_path, 1))
    assert found == [(1, b"head", b"".join(map(padded, pieces)))]
    ends = [offset + size for offset, size, _ in begun]
    assert [offset for offset, _, _ in begun] == [32, *ends[:-1]]
    assert ends == [written for _, _, written in begun]
    assert len(begun) == 3
    assert ends[-1] > sum(map(len, pieces[:-1]))


def test_data_is_aligned_and_readonly(tmp_path):
    write(tmp_path)
    for record in SegmentReader(segment_path(tmp_path, 1)).records():
        array = np.frombuffer(record.data, np.uint8)
        assert array.size == 0 or array.ctypes.data % 8 == 0
        assert not array.flags.writeable


def test_a_log_that_ends_anywhere_gives_its_whole_records(tmp_path):
    ends = write(tmp_path)
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    for size in range(32, len(whole) + 1):
        path.write_bytes(whole[:size])
        found, reader = read(path)
        count = sum(end <= size for end in ends)
        assert found == EXPECTED[:count]
        assert reader.cut_bytes == size - ([32, *ends][count])


def test_a_head_that_is_cut_off_is_no_segment(tmp_path):
    write(tmp_path)
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    for size in range(32):
        path.write_bytes(whole[:size])
        with pytest.raises(DataLossError, match="segment-00000001.log is damaged"):
            SegmentReader(path)


def test_a_damaged_record_that_was_on_disk_is_never_passed_over(tmp_path):
    ends = write(tmp_path)
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    for at in range(32, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        record = sum(end <= at for end in ends)
        reader = SegmentReader(path)
        found = []
        if record == len(RECORDS) - 1:
            # Nothing behind it says that it was on disk.
            found.extend(reader.records())
            assert reader.cut_bytes
        else:
            with pytest.raises(DataLossError, match=f"damaged at byte {[32, *ends][record]}: record {record + 1} was"):
                found.extend(reader.records())
        assert len(found) == record


def test_holes_in_what_nobody_was_told_of_are_cut_off(tmp_path):
    # A machine that fails may bring any of the pages of the last batch to the disk.
    ends = write(tmp_path, synced_each=False)
    path = segment_path(tmp_path, 1)
    whole = bytearray(path.read_bytes())
    whole[ends[0] : ends[1]] = bytes(ends[1] - ends[0])
    path.write_bytes(whole)
    found, reader = read(path)
    assert found == EXPECTED[:1]
    assert reader.cut_bytes == len(whole) - ends[0]


@pytest.mark.parametrize("seed", range(200))
def test_damage_of_any_kind_gives_a_beginning_or_an_error(tmp_path, seed):
    rng = random.Random(seed)
    write(tmp_path, synced_each=rng.random() < 0.5)
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 40)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
        if not data:
            break
    path.write_bytes(data)
    found = []
    try:
        for record in SegmentReader(path).records():
            found.append((record.number, record.head, bytes(record.data)))
    except DataLossError:
        pass
    assert found == EXPECTED[: len(found)]


def test_a_log_is_its_users_alone_and_follows_no_link(tmp_path):
    """Others of the host are not to read what is trained, nor to choose what a task overwrites."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    path = segment_path(tmp_path, 1)
    path.with_suffix(".new").symlink_to(elsewhere)
    SegmentWriter(tmp_path, 1, 1).close()
    assert elsewhere.read_text() == "kept"
    assert path.stat().st_mode & 0o777 == 0o600

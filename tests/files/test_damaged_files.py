"""Files and texts that are damaged in ways that a checksum does not find: named, and nothing of them is used.

Found by tests/fuzz, which damages them at random.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    write_index,
)
from globalstep.chief.journal.journal_files import Header, SegmentName, journal_directory, read_segment, write_segment
from globalstep.cluster.cluster import from_tf_config
from globalstep.errors import CheckpointError, DataLossError, InvalidArgumentError
from globalstep.files.shard_file import ShardReader, write_shard
from globalstep.files.storage import storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.wal.log_file import SegmentWriter
from globalstep.ps.wal.recovery import Replay
from globalstep.runtime.clock import SYSTEM_CLOCK

DEEP = "[" * 100_000


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of one Variable; changes its index, keeping the checksum right."""
    storage, prefix = storage_for(str(tmp_path)), str(tmp_path / "model")
    written = write_shard(storage, str(tmp_path), "shard", [("w", np.arange(6.0))])
    one = written.tensors[0]
    saved = {"w": SavedVariable(one.dtype, one.shape, (SavedPart.of(0, one),))}
    write_index(storage, prefix, CheckpointIndex((ShardFile("shard", written.file_bytes),), saved, {"step": 3}))
    path = Path(f"{prefix}.index.json")

    def change(**changes):
        document = json.loads(path.read_text())
        body = document["checkpoint"] | changes
        crc = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
        path.write_text(json.dumps(document | {"checkpoint": body, "crc32": crc}))
        return prefix

    return change


def part(**changes):
    whole = {"tensor": "w", "file": 0, "offset": [0], "shape": [6], "crc32": 0, "nbytes": 48}
    return {"w": {"dtype": "float64", "shape": [6], "parts": [whole | changes]}}


@pytest.mark.parametrize(
    "changes",
    [
        {"files": "x"},
        {"files": [{"file": "../shard", "nbytes": 1}]},
        {"files": [{"file": "shard\0", "nbytes": 1}]},
        {"files": [{"file": 3, "nbytes": 1}]},
        {"files": [{"nbytes": 1}]},
        {"steps": 3},
        {"ledger": "="},
        {"mutation_index": None},
        {"variables": []},
        {"variables": part(file=7)},
        {"variables": part(offset=[1])},
        {"variables": part(offset=[0, 0])},
        {"variables": part(shape="six")},
        {"variables": part(nbytes=8)},
        {"variables": {name: part()["w"] for name in "abcdefghij"}},
        {"variables": {"w": {"dtype": "objects", "shape": [], "parts": []}}},
    ],
    ids=str,
)
def test_an_index_that_is_whole_and_nonsense_is_named(checkpoint, changes):
    assert verify(checkpoint()).steps == {"step": 3}
    with pytest.raises(CheckpointError, match=r"model\.index\.json"):
        verify(checkpoint(**changes))


@pytest.mark.parametrize(
    "entries",
    [
        [{"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}],
        [{"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}],
        [{"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}],
        [{"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}],
        [{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}] * 2,
    ],
    ids=str,
)
def test_a_shard_file_with_an_impossible_tensor_is_named(tmp_path, entries):
    head = json.dumps(dict(zip("wv", entries, strict=False))).encode()
    path = tmp_path / "shard"
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4 * len(entries)))
    with pytest.raises(CheckpointError, match=str(path)):
        ShardReader(storage_for(str(path)), str(path))


def in_parts(shape, *parts):
    """A Variable of which file 0 has parts (offset, shape), all of them the tensor "w"."""
    return {
        "w": {
            "dtype": "float64",
            "shape": shape,
            "parts": [
                {"tensor": "w", "file": 0, "offset": [at], "shape": [size], "crc32": 0, "nbytes": 8 * size}
                for at, size in parts
            ],
        }
    }


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        pytest.param([4], [(0, 2), (1, 2)], id="overlapping: memory that nobody wrote would be restored"),
        pytest.param([1 << 50], [(0, 6)], id="much larger than its parts"),
    ],
)
def test_parts_that_are_not_the_whole_are_refused_before_memory_is_taken(checkpoint, shape, parts):
    with (
        CheckpointReader(checkpoint(variables=in_parts(shape, *parts))) as reader,
        pytest.raises(CheckpointError, match="overlap"),
    ):
        reader.get_tensor("w")


def test_an_index_or_a_header_that_is_too_long_is_not_read(checkpoint, tmp_path):
    prefix = checkpoint()
    with open(f"{prefix}.index.json", "r+b") as file:
        file.truncate(257 << 20)  # a hole: no disk is filled
    with pytest.raises(CheckpointError, match=r"index\.json has 269484032 bytes"):
        verify(prefix)
    path = tmp_path / "long"
    path.write_bytes(struct.pack("<Q", 33 << 20))
    with path.open("r+b") as file:
        file.truncate(34 << 20)
    with pytest.raises(CheckpointError, match="cut off in its header"):
        ShardReader(storage_for(str(path)), str(path))


@pytest.mark.parametrize("batches", [[5 << 20], [1 << 20] * 3], ids=["one batch", "many batches"])
def test_a_journal_does_not_unfold_to_more_records_than_a_segment_has(tmp_path, batches):
    header = Header(1, 0, {}, 0, 1, {})
    bombs = []
    for count in batches:
        told = {"life": "a", "first": 0, "records": count, "clients": [], "steps": []}
        bombs.append(json.dumps(told).encode() + b"\n" + zlib.compress(bytes(44 * count), 1))
    name = SegmentName(1, 0, "a")
    storage_for(str(tmp_path)).make_directories(journal_directory(str(tmp_path)))
    write_segment(str(tmp_path), name, header, bombs)
    with pytest.raises(DataLossError, match="records"):
        read_segment(str(tmp_path), name)


def test_documents_nested_without_end_are_refused(tmp_path):
    with pytest.raises(ValueError, match="nested too deeply"):
        from_tf_config({"TF_CONFIG": DEEP})
    with pytest.raises(InvalidArgumentError, match="Not a ledger"):
        Ledger.load(DEEP.encode(), 1, 0)
    path = tmp_path / "shard"
    path.write_bytes(struct.pack("<Q", len(DEEP)) + DEEP.encode())
    with pytest.raises(CheckpointError, match=str(path)):
        ShardReader(storage_for(str(path)), str(path))
    (tmp_path / "model.index.json").write_text(DEEP)
    with pytest.raises(CheckpointError, match="model"):
        verify(str(tmp_path / "model"))


def test_a_ledger_with_infinite_numbers_is_refused():
    dumped = json.loads(Ledger(1, 0).dumped_later()()) | {"index": 1e400}
    with pytest.raises(InvalidArgumentError, match="Not a ledger"):
        Ledger.load(json.dumps(dumped).encode(), 1, 0)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"\xff\xff\xff", "Record 2 .* is whole, but no record"),
        (b"", "does not know"),
        (pb.LogRecord(stage={"id": {"client": "a", "sequence": 1}}, part=b"\xff").SerializeToString(), "2"),
    ],
    ids=["noise", "empty", "part"],
)
def test_a_log_with_a_whole_record_that_is_none_is_named(tmp_path, head, says):
    begin = pb.LogRecord(begin=pb.BeginRequest(incarnation=7, shards=1, owner="a", open=True))
    writer = SegmentWriter(tmp_path, 1, 1)
    writer.write(1, 0, begin.SerializeToString(), [])
    writer.write(2, 1, head, [])
    writer.close()
    with pytest.raises(DataLossError, match=says) as raised:
        Replay(tmp_path, SYSTEM_CLOCK).run()
    assert str(tmp_path) in str(raised.value)

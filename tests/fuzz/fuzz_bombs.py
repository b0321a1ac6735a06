"""Bombs in files: whole in every checksum, small, and made to take memory: what is read must be worth what came."""

from __future__ import annotations

import functools
import importlib.util
import json
import random
import shutil
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from fuzz_choices import Finding
from fuzz_senses import measured

from globalstep import errors
from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    write_index,
)
from globalstep.chief.checkpoints.tf_bundle import TensorBundle
from globalstep.chief.journal.journal_files import SegmentName, read_segment
from globalstep.errors import GlobalStepError
from globalstep.files.records import TFRecordOptions, encode_record, read_records
from globalstep.files.shard_file import ShardReader, write_shard
from globalstep.files.storage import storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.store import checking
from globalstep.ps.wal.log_file import SegmentReader, SegmentWriter, segment_path
from globalstep.ps.wal.recovery import Replay
from globalstep.runtime.clock import SYSTEM_CLOCK

#: A file of a few bytes may have a segment of the journal, or tables, of its own.
_SIZES = (0, 1, 3, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 31, 1 << 40, 1 << 50, 1 << 62)


#: What a task believes its machine has left.
_MEMORY_BYTES = 1 << 26


def _bundle_writer() -> ModuleType:
    """What writes TensorFlow's tables for the tests of their reader."""
    path = Path(__file__).parents[1] / "chief" / "checkpoints" / "test_tf_bundle.py"
    spec = importlib.util.spec_from_file_location("bundle_writer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BombTargets:
    """Inputs that unfold. Not thread-safe.

    Args:
        answers: Counts what each reader made of them.
    """

    def __init__(self, answers: Counter[tuple[str, str]]) -> None:
        self._answers = answers
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-bombs-"))
        self._tables = _bundle_writer()
        storage, prefix = storage_for(str(self._folder)), str(self._folder / "model")
        written = write_shard(storage, str(self._folder), "saved", [("w", np.arange(6.0))])
        one = written.tensors[0]
        saved = {"w": SavedVariable(one.dtype, one.shape, (SavedPart.of(0, one),))}
        write_index(storage, prefix, CheckpointIndex((ShardFile("saved", written.file_bytes),), saved, {"step": 3}))
        self._document = json.loads(Path(f"{prefix}.index.json").read_text())
        self.targets: dict[str, Callable[[random.Random], None]] = {
            name: functools.partial(self._run, name) for name in dir(self) if name.startswith("bomb_")
        }

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @functools.cache  # noqa: B019
    def _zeros(self, nbytes: int) -> bytes:
        """Give so many zeros, packed as well as can be."""
        return zlib.compress(bytes(nbytes), 9)

    def _run(self, name: str, rng: random.Random) -> None:
        getattr(self, name)(rng)

    def _attempt(self, name: str, nbytes: int, read: Callable[[], Any]) -> None:
        status = "OK"
        try:
            with measured(nbytes, 0):
                read()
        except Finding:
            raise
        except GlobalStepError as error:
            status = type(error).__name__
            if isinstance(error, errors.InternalError):
                raise Finding(f"unclear {status}: {error}") from error
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error
        self._answers[name, status] += 1

    def bomb_journal(self, rng: random.Random) -> None:
        """A segment whose batches unfold to more than they say, or say much."""
        head = {"format": "globalstep journal", "version": 1, "incarnation": 7, "begin_index": 0, "begin_steps": {}}
        head |= {"parent": 0, "shards": 2, "policy": {}}
        batches = []
        count = rng.choice((0, 1, 1000, 1 << 18, 1 << 20))
        for _ in range(rng.choice((1, 2, 6))):
            said = count if rng.randrange(8) else rng.choice(_SIZES)
            told = {"life": "a", "first": 0, "records": said, "clients": [], "steps": []}
            batches.append(json.dumps(told).encode() + b"\n" + self._zeros(44 * count))
        head["batches"] = len(batches)
        data = encode_record(json.dumps(head).encode()) + b"".join(map(encode_record, batches))
        (self._folder / "journal").mkdir(exist_ok=True)
        name = SegmentName(7, 0, "0")
        (self._folder / "journal" / str(name)).write_bytes(data)
        # A segment may have a million records, however well they are packed.
        self._attempt("bomb_journal", len(data) + (1 << 20), lambda: read_segment(str(self._folder), name))

    def bomb_tf_bundle(self, rng: random.Random) -> None:
        """An index whose names share long prefixes, whose blocks are named again, or whose shapes are anything."""
        tables = self._tables
        kind = rng.randrange(3)
        if kind == 0:
            prefix, count = rng.choice((10, 1000, 4000, 100_000)), rng.choice((10, 999, 20_000))
            names = ((rng.choice((prefix, prefix, prefix + 1)), b"%06d" % at, b"") for at in range(count))
            blocks: list[Any] = [tables.block([(0, b"a" * prefix, b""), *names])]
        elif kind == 1:
            blocks = [tables.block([(0, b"a", b"x" * rng.choice((0, 1000)))]), *[0] * rng.choice((1, 1000, 10_000))]
        else:
            shape = [rng.choice(_SIZES) for _ in range(rng.randrange(1, 4))]
            size, slices = rng.choice(_SIZES), []
            for _ in range(rng.choice((0, 0, 1, 50))):
                slices.append([(rng.choice(_SIZES), rng.choice(_SIZES)) for _ in shape])
            entry = tables.entry([min(one, 2**62) for one in shape], min(size, 2**62), 0, slices)
            header = tables.BundleHeader(num_shards=rng.choice((1, 1, 2**31 - 1))).SerializeToString()
            blocks = [tables.block([(0, b"", header), (0, b"w", entry.SerializeToString())])]
        index = tables.table(*blocks)
        (self._folder / "bundle.index").write_bytes(index)
        (self._folder / "bundle.data-00000-of-00001").write_bytes(bytes(64))

        def read() -> None:
            made = TensorBundle(str(self._folder / "bundle"))
            for name in made.shapes:
                made.read(name)

        self._attempt("bomb_tf_bundle", len(index) + 64, read)

    def bomb_shard_file(self, rng: random.Random) -> None:
        """A header that is long, or tensors of any size, whole or lying over each other."""
        head: dict[str, Any] = {}
        for at in range(rng.choice((1, 5, 3000))):
            shape = [rng.choice(_SIZES) for _ in range(rng.randrange(4))]
            begin = rng.choice((0, 0, 8))
            head[f"w{at}"] = {"dtype": rng.choice(("F32", "F64", "I64", "U8")), "shape": shape}
            head[f"w{at}"]["data_offsets"] = [begin, begin + rng.choice(_SIZES)]
        raw = json.dumps(head).encode()
        size = rng.choice((len(raw), len(raw), *_SIZES))
        path = self._folder / "shard"
        path.write_bytes(struct.pack("<Q", size) + raw + bytes(64))
        storage = storage_for(str(self._folder))

        def read() -> None:
            with ShardReader(storage, str(path)) as reader:
                for name in reader.specs:
                    reader.read(name)

        self._attempt("bomb_shard_file", len(raw) + 64, read)

    def bomb_checkpoint(self, rng: random.Random) -> None:
        """An index of a Variable much larger than its parts, or of parts that are the same bytes again and again."""
        shape = [rng.choice(_SIZES)]
        parts = []
        for _ in range(rng.choice((0, 1, 2, 300))):
            part = {"tensor": "w", "file": 0, "offset": [rng.choice(_SIZES)], "shape": [rng.choice(_SIZES)]}
            parts.append(part | {"crc32": 0, "nbytes": rng.choice(_SIZES)})
        variables = {"w": {"dtype": "float64", "shape": shape, "parts": parts}}
        body = self._document["checkpoint"] | {"variables": variables}
        crc = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
        raw = json.dumps(self._document | {"checkpoint": body, "crc32": crc}).encode()
        (self._folder / "model.index.json").write_bytes(raw)

        def read() -> None:
            with CheckpointReader(str(self._folder / "model")) as reader:
                for name in reader.get_variable_to_shape_map():
                    reader.get_tensor(name)

        self._attempt("bomb_checkpoint", len(raw) + 64, read)
        self._attempt("bomb_checkpoint", len(raw) + 64, lambda: verify(str(self._folder / "model")))

    def bomb_tfrecord(self, rng: random.Random) -> None:
        """A compressed file of records of zeros; the reader gives them one by one, and may be asked to stop."""
        size = rng.choice((10, 1 << 16, 1 << 20))
        count = rng.choice((1, 8))
        data = zlib.compress(b"".join(encode_record(bytes(size)) for _ in range(count)), 9)
        if rng.randrange(2):
            data = zlib.compress(struct.pack("<Q", rng.choice(_SIZES)) + bytes(1 << 16), 9)
        path = self._folder / "records"
        path.write_bytes(data)
        # What is asked for is a record: one may be as large as its writer made it.
        self._attempt(
            "bomb_tfrecord",
            len(data) + 4 * size,
            lambda: sum(1 for _ in read_records(str(path), TFRecordOptions("ZLIB"))),
        )

    def bomb_log(self, rng: random.Random) -> None:
        """A write-ahead log whose declarations and pushes name more than there is."""
        folder = self._folder / "log"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        writer = SegmentWriter(folder, 1, 1)
        records = [pb.LogRecord(begin=pb.BeginRequest(incarnation=7, shards=1, owner="a", open=True))]
        declare = pb.DeclareRequest(incarnation=7, client="a")
        for at in range(rng.choice((1, 3000))):
            shape = [min(rng.choice(_SIZES), 2**62) for _ in range(rng.randrange(3))]
            declare.variables.add(name=f"w{at}", dtype=rng.choice(("float32", "int64")), shape=shape)
        records.append(pb.LogRecord(declare=declare))
        push, part = pb.PushRequest(id=pb.PushId(client="a", sequence=1)), pb.StageRequest()
        outcome = pb.Outcome(kind=pb.OUTCOME_ACCEPTED, index=1)
        for _ in range(rng.choice((1, 50))):
            part.ops.add(kind=pb.OP_ASSIGN, variable="w0", fill=1.0)
        decided = pb.LogRecord(push=push, outcome=outcome, entry_kind=pb.ENTRY_PUSH, part=part.SerializeToString())
        records.append(decided)
        nbytes = 0
        for at, record in enumerate(records, 1):
            raw = record.SerializeToString()
            nbytes += len(raw)
            writer.write(at, at - 1, raw, [])
        writer.close()
        self._attempt("bomb_log", nbytes, lambda: list(SegmentReader(segment_path(folder, 1)).records()))
        # What is declared is the run's own: Variables may be as large as the machine lets them.
        checking.available_bytes = lambda: _MEMORY_BYTES
        self._attempt("bomb_log", nbytes + _MEMORY_BYTES // 64, lambda: Replay(folder, clock=SYSTEM_CLOCK).run())

    def bomb_ledger(self, rng: random.Random) -> None:
        """A ledger of many clients, or of numbers that are ranges."""
        ledger = json.loads(Ledger(2, 0).dumped_later()())
        outcome = [1, 1, 2**62, {}, 0]
        clients = rng.choice((1, 1000))
        ledger["clients"] = {
            f"c{at}": {"forgotten": rng.choice(_SIZES), "outcomes": [outcome] * rng.choice((0, 1, 64))}
            for at in range(clients)
        }
        ledger["index"] = rng.choice(_SIZES)
        raw = json.dumps(ledger).encode()
        self._attempt("bomb_ledger", len(raw), lambda: Ledger.load(raw, 2, 0))


#: Names of the targets.
BOMBS = tuple(name for name in vars(BombTargets) if name.startswith("bomb_"))

"""Everything that reads a file, a text or a socket: given what was written once, and then damaged.

Damage that a checksum would find is also put behind the checksum, so that what lies deeper gets its share.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_choices import EDGES, Finding, mutated, noise, number
from google.protobuf.message import DecodeError

from globalstep import errors
from globalstep.chief.checkpoints.checkpoint import verify
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    write_index,
)
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state
from globalstep.chief.checkpoints.tf_bundle import TensorBundle
from globalstep.chief.events.events import summary_iterator
from globalstep.chief.journal.journal_files import Batch, SegmentName, encode_batch, read_segment
from globalstep.cluster.cluster import from_tf_config
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import GlobalStepError
from globalstep.files.journal_records import RECORD
from globalstep.files.records import TFRecordOptions, encode_record, read_records
from globalstep.files.shard_file import ShardReader, write_shard
from globalstep.files.storage import storage_for
from globalstep.files.tensorboard_protos import Event
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.role_tokens import parse_tokens
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.service.shared_blocks import SharedBlocks
from globalstep.ps.wal.log_file import SegmentReader, SegmentWriter, segment_path
from globalstep.ps.wal.recovery import Replay
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.frames import Assembler, frames_of
from globalstep.wire.socket_messages import Incoming, Outgoing, Place, SocketMessage
from globalstep.wire.wire_options import WireOptions

_LIMIT_BYTES = 1 << 20
_SHM = Path("/dev/shm")
_TF_CHECKPOINT = Path(__file__).parents[1] / "golden" / "tf_checkpoints" / "partitioned-1"
_TF_CONFIG = (
    '{"cluster": {"chief": ["a:1"], "ps": ["b:2", "c:3"], "worker": {"1": "d:4"}}, "task": {"type": "worker", '
    '"index": 1}, "environment": "cloud"}'
)
_TOKENS = "worker 0123456789abcdef0123\nchief 89abcdef01234567890a # mine\n\nps fedcba98765432100000\n"


class _Socket:
    """What a peer has sent, in pieces."""

    def __init__(self, rng: random.Random, sent: bytes) -> None:
        self._rng = rng
        self._sent = sent

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        most = min(nbytes or len(buffer), len(buffer))
        taken = self._sent[: most if flags or self._rng.randrange(2) else self._rng.randrange(1, most + 1)]
        buffer[: len(taken)] = taken
        self._sent = self._sent[len(taken) :]
        return len(taken)


class ReaderTargets:
    """Inputs to readers. Not thread-safe.

    Args:
        answers: Counts what each reader made of them.
    """

    def __init__(self, answers: Counter[tuple[str, str]]) -> None:
        self._answers = answers
        self._target = ""
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_SHM if _SHM.is_dir() else None))
        self._path = self._folder / "input"
        self._storage = storage_for(str(self._folder))
        tensors = [("w", np.arange(6, dtype=np.float32).reshape(2, 3)), ("step", np.array(3)), ("e", np.zeros((0, 4)))]
        written = write_shard(self._storage, str(self._folder), "shard", tensors)
        self._shard = (self._folder / "shard").read_bytes()
        saved = {
            one.name: SavedVariable(one.dtype, one.shape, (SavedPart.of(0, one),), "variable")
            for one in written.tensors
        }
        ledger = Ledger(2, 0).dumped_later()()
        index = CheckpointIndex((ShardFile("shard", written.file_bytes),), saved, {"step": 3}, 9, ledger, 1.5)
        write_index(self._storage, str(self._folder / "model"), index)
        self._index_path = next(path for path in self._folder.iterdir() if path.name.startswith("model"))
        self._index = self._index_path.read_bytes()
        self._ledger = ledger
        records = b"".join(RECORD.pack(at, at, at, 1, 0, 0, 1, 0) for at in range(1, 6))
        self._batch = encode_batch(Batch("1.2", 0, records, {0: ("a", "/job:worker/task:0")}, ["step"]))
        self._head = json.dumps(
            {"format": "globalstep journal", "version": 1, "batches": 1}
            | {"incarnation": 7, "begin_index": 0, "begin_steps": {"step": 0}, "parent": 0, "shards": 2, "policy": {}}
        ).encode()
        (self._folder / "journal").mkdir()
        event = Event(step=3, wall_time=1.5)
        event.summary.value.add(tag="loss", simple_value=0.5)
        self._event = event.SerializeToString()
        self._records = b"".join(encode_record(data) for data in (self._event, b"", b"x" * 100))
        self._log = self._folder / "log"
        self._log.mkdir()
        self._log_records = list(_log_records())
        self._bundle = {end: Path(f"{_TF_CHECKPOINT}.{end}").read_bytes() for end in _BUNDLE}
        self.targets: dict[str, Callable[[random.Random], None]] = {
            name.removeprefix("read_"): partial(self._run, name) for name in dir(self) if name.startswith("read_")
        }

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, name: str, rng: random.Random) -> None:
        self._target = name.removeprefix("read_")
        getattr(self, name)(rng)

    def _attempt(self, read: Callable[[], Any], *also: type[Exception]) -> None:
        """Read; what goes wrong must be one of our errors, or of those that the reader is documented to raise."""
        status = "OK"
        try:
            read()
        except (GlobalStepError, *also) as error:
            status = type(error).__name__
            if isinstance(error, errors.InternalError) or not isinstance(error, (*_CLEAR, *also)):
                raise Finding(f"unclear {type(error).__name__}: {error}") from error
            if not str(error):
                raise Finding(f"{type(error).__name__} without a text") from error
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error
        self._answers[self._target, status] += 1

    def _written(self, data: bytes) -> str:
        self._path.write_bytes(data)
        return str(self._path)

    # ---- Files ----------------------------------------------------------------------------------

    def read_tfrecord(self, rng: random.Random) -> None:
        """A file of records, compressed or not."""
        kind = rng.choice(("", "ZLIB", "GZIP"))
        data = self._records if rng.randrange(2) else encode_record(mutated(rng, self._event))
        if kind:
            data = zlib.compress(data, wbits=31 if kind == "GZIP" else 15)
        path = self._written(mutated(rng, data))
        self._attempt(lambda: list(read_records(path, TFRecordOptions(_KINDS[kind]))))

    def read_events(self, rng: random.Random) -> None:
        """An event file."""
        data = mutated(rng, self._records) if rng.randrange(2) else encode_record(mutated(rng, self._event))
        path = self._written(data)
        self._attempt(lambda: list(summary_iterator(path)))

    def read_shard_file(self, rng: random.Random) -> None:
        """A safetensors file of a checkpoint."""
        data = mutated(rng, self._shard)
        if rng.randrange(2):
            size = struct.unpack_from("<Q", self._shard)[0]
            head = _mutated_json(rng, json.loads(self._shard[8 : 8 + size]))
            data = struct.pack("<Q", len(head)) + head + self._shard[8 + size :]
        path = self._written(data)

        def read() -> None:
            with ShardReader(self._storage, path) as reader:
                for name in reader.specs:
                    reader.read(name)

        self._attempt(read)

    def read_checkpoint(self, rng: random.Random) -> None:
        """A checkpoint: its index, and what that leads to."""
        data = mutated(rng, self._index)
        if rng.randrange(3):
            changed = json.loads(self._index)["checkpoint"]
            for _ in range(rng.randrange(1, 4)):
                changed = _changed(rng, changed)
            document = json.loads(self._index)
            body = json.loads(json.dumps(changed))
            crc = zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
            document |= {"checkpoint": body, "crc32": crc}
            data = json.dumps(document).encode()
        self._index_path.write_bytes(data)
        self._attempt(lambda: verify(str(self._folder / "model")))

    def read_checkpoint_state(self, rng: random.Random) -> None:
        """The state file of a directory, in protobuf's text format."""
        text = (
            b'model_checkpoint_path: "model-3"\nall_model_checkpoint_paths: "model-1"\nlast_preserved_timestamp: 1.5\n'
        )
        (self._folder / "checkpoint").write_bytes(mutated(rng, text))
        self._attempt(lambda: get_checkpoint_state(str(self._folder)), ValueError)

    def read_journal(self, rng: random.Random) -> None:
        """A segment of the journal, whole in its checksums or not."""
        name = SegmentName(7, 0, "0")
        head = mutated(rng, self._head) if rng.randrange(3) else _mutated_json(rng, json.loads(self._head))
        line, _, packed = self._batch.partition(b"\n")
        batch = _mutated_json(rng, json.loads(line)) + b"\n" + packed if rng.randrange(2) else mutated(rng, self._batch)
        data = encode_record(head) + encode_record(batch)
        if rng.randrange(3) == 0:
            data = mutated(rng, data)
        (self._folder / "journal" / str(name)).write_bytes(data)
        self._attempt(lambda: read_segment(str(self._folder), name))

    def read_log(self, rng: random.Random) -> None:
        """A segment of the write-ahead log, damaged, or with records that are changed and whole; then played."""
        for path in self._log.iterdir():
            path.unlink()
        writer = SegmentWriter(self._log, 1, 1)
        for at, (record, data) in enumerate(self._log_records, 1):
            head = record if rng.randrange(3) else mutated(rng, record)
            writer.write(at, rng.choice((0, at - 1, at)), head, [memoryview(data)] if data else [])
        writer.close()
        path = segment_path(self._log, 1)
        if rng.randrange(2):
            path.write_bytes(mutated(rng, path.read_bytes()))
        self._attempt(lambda: list(SegmentReader(path).records()))
        self._attempt(lambda: Replay(self._log, clock=SYSTEM_CLOCK).run())

    def read_tf_bundle(self, rng: random.Random) -> None:
        """A checkpoint of TensorFlow's."""
        for end, data in self._bundle.items():
            Path(self._folder, f"bundle.{end}").write_bytes(mutated(rng, data))

        def read() -> None:
            bundle = TensorBundle(str(self._folder / "bundle"))
            for name in bundle.shapes:
                bundle.read(name)

        self._attempt(read)

    # ---- Texts ----------------------------------------------------------------------------------

    def read_tf_config(self, rng: random.Random) -> None:
        """TF_CONFIG."""
        text = mutated(rng, _TF_CONFIG.encode()) if rng.randrange(2) else _mutated_json(rng, json.loads(_TF_CONFIG))
        self._attempt(lambda: from_tf_config({"TF_CONFIG": text.decode("utf-8", "replace")}), ValueError)

    def read_options(self, rng: random.Random) -> None:
        """The texts of GLOBALSTEP_RUN_POLICY and GLOBALSTEP_WIRE."""
        policy = mutated(rng, b"durability=log,staleness=drop,max_staleness=8,on_nan=stop,keep_log").decode("latin-1")
        wire = mutated(rng, b"dtype=bfloat16,top_k=0.01").decode("latin-1")
        self._attempt(lambda: RunPolicy.from_text(policy))
        self._attempt(lambda: WireOptions.from_text(wire))

    def read_tokens(self, rng: random.Random) -> None:
        """A file of role tokens."""
        text = mutated(rng, _TOKENS.encode()).decode("utf-8", "replace")
        self._attempt(lambda: parse_tokens(text, "tokens"))

    def read_ledger(self, rng: random.Random) -> None:
        """The ledger of a checkpoint."""
        ledger = mutated(rng, self._ledger) if rng.randrange(2) else _mutated_json(rng, json.loads(self._ledger))
        self._attempt(lambda: Ledger.load(ledger, 2, 0))

    # ---- Streams --------------------------------------------------------------------------------

    def read_frames(self, rng: random.Random) -> None:
        """The frames of a gRPC stream."""
        request = pb.Request(pull=pb.PullRequest(incarnation=7, client="a"))
        pieces = [memoryview(noise(rng, 200) * rng.choice((1, 1, 100)))]
        frames = [frame for call in (1, 2) for frame in frames_of(call, request=request, pieces=pieces)]
        if rng.randrange(4) == 0:
            frames = [
                pb.Frame(call=rng.randrange(2), data_bytes=number(rng) & (2**63 - 1), last=bool(at)).SerializeToString()
                for at in range(3)
            ]
        assembler = Assembler(_LIMIT_BYTES)

        def read() -> None:
            for frame in frames:
                message = assembler.add(mutated(rng, frame, 2))
                if message is not None and message.data.nbytes > _LIMIT_BYTES:
                    raise Finding(f"a message of {message.data.nbytes} bytes was let through")

        self._attempt(read)

    def read_socket(self, rng: random.Random) -> None:
        """The messages of a plain socket, and the places in shared memory that they name."""
        request = pb.Request(pull=pb.PullRequest(incarnation=7, client="a")).SerializeToString()
        parts: list[bytes] = []
        for call in range(3):
            place = None
            if rng.randrange(2):
                block, offset = rng.randrange(3), rng.choice(EDGES)
                place = Place(block, offset, (1,) * rng.randrange(3), (2,) * rng.randrange(2), rng.choice(EDGES[:12]))
            message = Outgoing(call, request, [memoryview(noise(rng, 100))], place, rng.choice(EDGES))
            parts += [bytes(piece) for piece in message._left]
        shares = bool(rng.randrange(2))
        incoming = Incoming(_Socket(rng, mutated(rng, b"".join(parts))), _LIMIT_BYTES, shares=shares)
        blocks = SharedBlocks(_LIMIT_BYTES)
        blocks._blocks = {1: np.zeros(1 << 14, np.uint8)}

        def read() -> None:
            message: SocketMessage | None
            while (message := incoming.receive()) is not None:
                data = blocks.data_of(message)
                if data.nbytes != message.nbytes and message.place is None:
                    raise Finding(f"{data.nbytes} bytes of data were taken for {message.nbytes}")
                pb.Request.FromString(message.head)

        self._attempt(read, ConnectionResetError, DecodeError)


_KINDS = {"": 0, "ZLIB": 1, "GZIP": 2}
_BUNDLE = ("index", "data-00000-of-00001")
#: What readers say.
_CLEAR = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, GlobalStepError) and kind is not errors.InternalError
)


def _log_records() -> Iterator[tuple[bytes, bytes]]:
    """The records of a small run: it begins, declares, assigns, and pushes."""
    begin = pb.BeginRequest(incarnation=7, shard=0, shards=1, owner="a", open=True)
    yield pb.LogRecord(begin=begin).SerializeToString(), b""
    declare = pb.DeclareRequest(incarnation=7, client="a")
    declare.variables.add(name="w", dtype="float32", shape=[4])
    declare.variables.add(name="step", dtype="int64", is_step=True)
    rate = pb.Expression(op="const", value=0.5)
    slots = {"w": pb.SlotNames()}
    declare.optimizers.add(name="sgd", kind="gradient_descent", hypers={"learning_rate": rate}, slots=slots)
    yield pb.LogRecord(declare=declare).SerializeToString(), b""
    for sequence in (1, 2, 3):
        push = pb.PushRequest(id=pb.PushId(client="a", sequence=sequence))
        outcome = pb.Outcome(kind=pb.OUTCOME_ACCEPTED, index=sequence, steps={"step": max(sequence - 1, 0)})
        part, data = pb.StageRequest(), b""
        if sequence == 1:
            part.ops.add(kind=pb.OP_ASSIGN, variable="w", fill=1.0)
            part.ops.add(kind=pb.OP_ASSIGN, variable="step", fill=0.0)
        else:
            value = pb.TensorRef(dtype="float32", shape=[4])
            part.ops.add(kind=pb.OP_APPLY, variable="w", value=value, optimizer="sgd")
            push.uses.add(optimizer="sgd")
            push.increments.add(step="step", by=1)
            data = struct.pack("<4f", 1, 2, 3, 4)
        record = pb.LogRecord(push=push, outcome=outcome, entry_kind=pb.ENTRY_PUSH, part=part.SerializeToString())
        yield record.SerializeToString(), data
    yield pb.LogRecord(leave=pb.LeaveRequest(client="a")).SerializeToString(), b""


def _mutated_json(rng: random.Random, value: Any) -> bytes:
    """Change values and keys of a document; what comes is JSON, of another shape perhaps."""
    for _ in range(rng.randrange(1, 4)):
        value = _changed(rng, value)
    if rng.randrange(40) == 0:
        return b"[" * 100_000
    return json.dumps(value).encode()


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.randrange(6):
        key = rng.choice(list(value))
        if rng.randrange(6) == 0:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.randrange(6):
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + rng.randrange(1, 3) :]]
    return rng.choice(
        (None, True, 0, -1, 2**31, 2**63, 2**70, 1e400, 0.5, "", "x", "a:1", "float32", "I64", [], {}, [0, 8], [1, 2],
         {"x": 1}, base64.b64encode(b"{}").decode(), "1" * 30, "\ud800", "\0")
    )  # fmt: skip

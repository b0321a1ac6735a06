"""The files of a run's journal: RUN_DIR/journal/<incarnation>-<segment>-<writer>.gsj.

A segment is a record file (`globalstep.files.records`, so every part of it has a checksum): a header in JSON, then
batches, each a line of JSON and the batch's journal records, compressed. It is written whole and renamed into place
each time that something is added, until it is full: so it is never seen half-written, and any storage will do. A
segment belongs to one writer. Where two chiefs followed one another, or overlapped, positions tell what belongs where.

docs/audit.md describes the format for other programs. Layer: chief. Threads: functions and plain data.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import DataLossError, GlobalStepError
from globalstep.files.journal_records import RECORD, RECORD_DTYPE
from globalstep.files.records import encode_record, read_records
from globalstep.files.storage import atomic_write, storage_for
from globalstep.wire.known_progress import Known

FORMAT = "globalstep journal"
VERSION = 1
#: A segment is full when it has so many records, if not before: its reader holds all of them.
SEGMENT_RECORDS = 1 << 20
#: What is read: records of one batch, and of one segment, which may end with a large batch. Compressed, a file of some
#: kilobytes could tell of gigabytes.
_MOST_BATCH_RECORDS = 1 << 20
_MOST_SEGMENT_RECORDS = SEGMENT_RECORDS + _MOST_BATCH_RECORDS
_NAME = re.compile(r"(\d{20})-(\d{6})-([0-9A-Za-z_]+)\.gsj")


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a segment's file, taken apart."""

    incarnation: int
    number: int
    writer: str

    def __str__(self) -> str:
        return f"{self.incarnation:020d}-{self.number:06d}-{self.writer}.gsj"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a segment: the incarnation that it belongs to."""

    incarnation: int
    #: The entry after which the incarnation began, and the steps at that place.
    begin_index: int
    begin_steps: Mapping[str, int]
    #: The incarnation of the checkpoint that it began from; 0 for none.
    parent: int
    #: How many PS tasks there are.
    shards: int
    #: The run's policy, its words by their names.
    policy: Mapping[str, Any]
    #: Of incarnations before this one: how far each came, as far as the remaining processes knew.
    told: Mapping[int, Known] = field(default_factory=dict)
    #: Nothing of this incarnation that moves a step is missing here, but what came of clients that came later.
    complete: bool = False
    #: Id of the run; "" in files from before they said so.
    run: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some journal records, as the sequencer gave them."""

    #: The life of the sequencer that numbered them.
    life: str
    #: Position of the first.
    first: int
    #: Journal records as bytes, 44 each.
    records: bytes
    #: Number -> (client id, task), of clients that occur for the first time.
    clients: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    #: Names of steps, by their numbers.
    steps: Sequence[str] = ()

    @property
    def end(self) -> int:
        """Position after the last."""
        return self.first + len(self.records) // RECORD.size

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The records, as an array of RECORD_DTYPE."""
        return np.frombuffer(self.records, RECORD_DTYPE)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment's content."""

    header: Header
    batches: Sequence[Batch]


def journal_directory(run_directory: str) -> str:
    """Give the directory in which a run's journal lies."""
    return storage_for(run_directory).join(run_directory, "journal")


def segment_names(run_directory: str) -> list[SegmentName]:
    """List a run's segments: by incarnation, then by number."""
    directory = journal_directory(run_directory)
    matches = map(_NAME.fullmatch, storage_for(directory).list(directory))
    return sorted(SegmentName(int(match[1]), int(match[2]), match[3]) for match in matches if match is not None)


def write_segment(run_directory: str, name: SegmentName, header: Header, batches: Sequence[bytes]) -> None:
    """Write a segment; it is durable when this returns, and replaces what was there whole or not at all.

    Raises:
        OpError: If the storage refuses.
    """
    directory = journal_directory(run_directory)
    storage = storage_for(directory)
    fields = {"format": FORMAT, "version": VERSION, "batches": len(batches), **asdict(header)}
    with atomic_write(storage, storage.join(directory, str(name))) as file:
        file.write(encode_record(json.dumps(fields, sort_keys=True).encode()))
        for batch in batches:
            file.write(encode_record(batch))


def encode_batch(batch: Batch) -> bytes:
    """Write a batch as the data of one record of the file."""
    fields = {
        "life": batch.life,
        "first": batch.first,
        "records": len(batch.records) // RECORD.size,
        "clients": [[number, *item] for number, item in sorted(batch.clients.items())],
        "steps": list(batch.steps),
    }
    # Byte by byte of all records: their upper bytes are nearly always alike.
    planes = np.frombuffer(batch.records, np.uint8).reshape(-1, RECORD.size).T
    return json.dumps(fields, sort_keys=True).encode() + b"\n" + zlib.compress(planes.tobytes(), 1)


def decode_batch(data: bytes) -> Batch:
    """Read a batch.

    Raises:
        ValueError: If it is none.
    """
    line, _, packed = data.partition(b"\n")
    fields = json.loads(line)
    count = fields["records"]
    if type(count) is not int or not 0 <= count <= _MOST_BATCH_RECORDS:
        raise ValueError(f"a batch of {count} records; the most are {_MOST_BATCH_RECORDS}")
    limit = count * RECORD.size
    inflater = zlib.decompressobj()
    planes = inflater.decompress(packed, limit) if limit else b""
    if len(planes) != limit:
        raise ValueError(f"{fields['records']} records were to be in {len(planes)} bytes")
    records = np.frombuffer(planes, np.uint8).reshape(RECORD.size, -1).T
    clients = {int(number): (str(client), str(task)) for number, client, task in fields["clients"]}
    steps = [str(name) for name in fields["steps"]]
    return Batch(str(fields["life"]), int(fields["first"]), records.tobytes(), clients, steps)


def _known(fields: Mapping[str, Any]) -> Known:
    steps = {str(step): int(value) for step, value in fields["steps"].items()}
    return Known(int(fields["index"]), steps, int(fields["steps_index"]), bool(fields["last"]))


def read_segment(run_directory: str, name: SegmentName) -> Segment:
    """Read a segment, and check every checksum.

    Raises:
        DataLossError: If it is damaged, or not of this format; the text names the file.
        OpError: If it cannot be read.
    """
    directory = journal_directory(run_directory)
    path = storage_for(directory).join(directory, str(name))
    records = list(read_records(path))
    try:
        fields = json.loads(records[0])
        if (fields["format"], fields["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it is {fields['format']!r} of version {fields['version']}")
        header = Header(
            int(fields["incarnation"]),
            int(fields["begin_index"]),
            {str(step): int(value) for step, value in fields["begin_steps"].items()},
            int(fields["parent"]),
            int(fields["shards"]),
            dict(fields["policy"]),
            {int(number): _known(known) for number, known in fields.get("told", {}).items()},
            bool(fields.get("complete", False)),
            str(fields.get("run", "")),
        )
        if header.incarnation != name.incarnation:
            raise ValueError(f"it belongs to incarnation {header.incarnation}")
        if len(records) - 1 != int(fields["batches"]):
            raise ValueError(f"it has {len(records) - 1} batches of {fields['batches']}")
        batches: list[Batch] = []
        held = 0
        for data in records[1:]:
            batches.append(decode_batch(data))
            held += len(batches[-1].records) // RECORD.size
            if held > _MOST_SEGMENT_RECORDS:
                raise ValueError(f"it has more than {_MOST_SEGMENT_RECORDS} records")
        return Segment(header, batches)
    except GlobalStepError:
        raise
    except (
        ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error,
    ) as error:  # fmt: skip
        raise DataLossError(f"Corrupt journal file {path}: {error!r}.") from None

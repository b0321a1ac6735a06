"""A PS task writes its own file of a checkpoint, where it sees the directory.

Layer: ps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, OpError
from globalstep.files.shard_file import SavedTensor, write_shard
from globalstep.files.storage import Probe, sees_probe, storage_for
from globalstep.proto import globalstep_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """A file that was written.

    Attributes:
        path: Where it is, where that is on a file system of this machine.
        tensors: What is in it.
        keeps_names: Whether it is such a file, and each Variable is in it under its own name.
        reply: What the caller is told.
    """

    path: Path
    tensors: tuple[SavedTensor, ...]
    keeps_names: bool
    reply: pb.WriteSnapshotReply


def write_snapshot(request: pb.WriteSnapshotRequest, values: Mapping[str, npt.NDArray[Any]]) -> WrittenSnapshot | None:
    """Write values of a snapshot to a file; None where the chief has to, since this task does not see its directory.

    Raises:
        InvalidArgumentError: If the snapshot does not hold what is asked for. Nothing is written.
    """
    try:
        storage = storage_for(request.directory)
    except OpError as error:
        # An optional package is not installed here; the chief has it, or it would not have asked.
        _log.info("The chief writes this task's part of the checkpoint: %s", error)
        return None
    if not sees_probe(storage, request.directory, Probe(request.probe_file, request.probe_text)):
        return None
    missing = [name for name in request.names.values() if name not in values]
    if missing:
        raise InvalidArgumentError(f"The snapshot does not hold {missing}: they had no value.")
    tensors = [(name, values[variable]) for name, variable in sorted(request.names.items())]
    written = write_shard(storage, request.directory, request.file, tensors)
    reply = pb.WriteSnapshotReply(
        shared=True,
        tensors=[
            pb.SavedTensor(name=t.name, dtype=t.dtype, shape=t.shape, crc32=t.crc32, nbytes=t.nbytes, has_nan=t.has_nan)
            for t in written.tensors
        ],
        file_bytes=written.file_bytes,
    )
    keeps_names = storage.is_local and all(name == variable for name, variable in request.names.items())
    return WrittenSnapshot(Path(request.directory, request.file), written.tensors, keeps_names, reply)

"""Writing a checkpoint: from one snapshot of the cluster to files and their index.

Each PS that sees the checkpoint's directory writes its own file, all at once. A PS that does not (the
directory is on the chief's own disk, or not mounted there) sends its tensors to the chief, which writes
the file for it. A probe file with a random text tells the two apart, so two hosts' directories of the
same name are never taken for one, and a checkpoint never lies on two hosts.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from globalstep.chief.checkpoints.checkpoint import remove_leftovers
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    delete_indexes,
    find_index,
    index_path,
    kind_of,
    prefixes_in,
    publish_index,
    read_index,
    shard_file_name,
    write_index,
)
from globalstep.cluster.program import Program, WholePart
from globalstep.errors import AbortedError, InternalError, OpError
from globalstep.files.shard_file import SavedTensor, ShardWritten, TensorSpec, write_shard_from
from globalstep.files.storage import Storage, directory_of, leave_probe
from globalstep.wire.declarations import VariableDecl
from globalstep.worker.protocol.splitting import part_name

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient
    from globalstep.worker.client.snapshot import Snapshot

_log = logging.getLogger("globalstep")

#: Variables that a warning names; the others are counted.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Saveable:
    """A Variable and its name in checkpoints; a part of a partitioned one has the name of the whole.

    Attributes:
        name: Its name in checkpoints.
        variable: The Variable's own name.
        primary: For a slot, the name of the Variable (or of the whole of it) that it belongs to.
        part: Which part of a whole it is.
        own: Whether it lives in its task's session, where no PS task has it: it is named and not saved.
        stored: The name that a PS task has it by, where that is another: see `stored_parts`.
    """

    name: str
    variable: str
    primary: str = ""
    part: WholePart | None = None
    own: bool = False
    stored: str = ""

    @property
    def stored_name(self) -> str:
        """Its name on the PS tasks."""
        return self.stored or self.variable

    @property
    def tensor(self) -> str:
        """The name of its tensor in a shard file: its own, and for a part which part it is."""
        return self.name if self.part is None else f"{self.name} {self.part.spec}"


def saveables_of_program(program: Program) -> list[Saveable]:
    """Give all Variables of a program, by name."""
    named = {variable.name: variable for variable in program.variables}
    return [Saveable(name, name, named[name].primary) for name in sorted(named)]


def stored_parts(saveables: Iterable[Saveable], declared: Mapping[str, VariableDecl]) -> list[Saveable]:
    """Give saveables as the PS tasks hold them: those that are split over several tasks as their parts."""
    parts: list[Saveable] = []
    for saveable in saveables:
        decl = declared.get(saveable.variable)
        if decl is None or not decl.parts:
            parts.append(saveable)
            continue
        inner = saveable.part
        shape = list(decl.shape)
        full_shape = shape if inner is None else list(inner.full_shape)
        offset = [0] * len(shape) if inner is None else list(inner.var_offset)
        for number, rows in enumerate(decl.parts):
            part = WholePart(
                full_name=saveable.name,
                full_shape=full_shape,
                var_offset=[offset[0] + rows.first, *offset[1:]],
                var_shape=[rows.end - rows.first, *shape[1:]],
            )
            parts.append(
                Saveable(saveable.name, saveable.variable, saveable.primary, part, stored=part_name(decl.name, number))
            )
    return parts


def save_snapshot(
    snapshot: Snapshot,
    cluster: ClusterClient,
    saveables: Sequence[Saveable],
    prefix: str,
    storage: Storage,
    written_at: float,
    in_state: bool = True,
    term: int = 0,
) -> list[int]:
    """Write a checkpoint; it exists when this returns, and not before.

    Args:
        snapshot: What to write.
        cluster: Which the snapshot is of.
        saveables: What to write of it.
        prefix: The checkpoint's prefix.
        storage: Where it goes.
        written_at: Time for the index, seconds since the epoch.
        in_state: Whether the state file is going to name it.
        term: Of the chief that saves; 0 for a program without one.

    Returns:
        The shards that do not see the directory, and whose tensors came through the chief.

    Raises:
        AbortedError: If a chief of a greater term has saved under `prefix`.
        OpError: If a file cannot be written; what was there under `prefix` before is still there.
    """
    directory = directory_of(prefix)
    base = prefix[len(directory) :].lstrip("/") if directory else prefix
    before = _index_before(storage, prefix)
    if before is not None and term and before.term > term:
        raise AbortedError(
            f"The checkpoint {prefix} was saved by the chief of term {before.term}; this one, of term {term}, has "
            "been replaced."
        )
    rewrite = before.rewrite + 1 if before is not None else 0
    saveables = stored_parts(saveables, cluster.variables)
    names = {saveable.tensor: saveable.stored_name for saveable in saveables}
    by_shard: dict[int, dict[str, str]] = {}
    for name, variable in names.items():
        by_shard.setdefault(cluster.where[variable], {})[name] = variable
    files = {shard: shard_file_name(base, shard, cluster.shards, rewrite, term) for shard in sorted(by_shard)}
    try:
        with leave_probe(storage, directory, term) as probe:
            # A PS may have another working directory.
            target = os.path.abspath(directory) if storage.is_local else directory
            written = dict(snapshot.write(target, files, names, (probe.file, probe.text)))
        streamed = [shard for shard in files if written.get(shard) is None]
        for shard in streamed:
            specs: list[TensorSpec] = []
            for saveable in saveables:
                if saveable.tensor in by_shard[shard]:
                    decl, whole = cluster.variables[saveable.variable], saveable.part
                    shape = decl.shape if whole is None else tuple(whole.var_shape)
                    specs.append(TensorSpec(saveable.tensor, decl.dtype, shape))
            written[shard] = write_shard_from(
                storage, directory, files[shard], specs, lambda wanted: snapshot.read([names[name] for name in wanted])
            )
        entries: list[ShardFile] = []
        tensors: dict[str, tuple[int, SavedTensor]] = {}
        for number, (shard, file) in enumerate(files.items()):
            done = written[shard]
            assert done is not None
            entries.append(ShardFile(file, done.file_bytes))
            tensors.update((saved.name, (number, saved)) for saved in done.tensors)
        if missing := [saveable.tensor for saveable in saveables if saveable.tensor not in tensors]:
            raise InternalError(f"The PS tasks wrote their files, but not {', '.join(missing)}.")
        variables: dict[str, SavedVariable] = {}
        for saveable in saveables:
            number, saved = tensors[saveable.tensor]
            decl, whole = cluster.variables[saveable.variable], saveable.part
            part = SavedPart.of(number, saved, None if whole is None else whole.var_offset)
            earlier = variables.get(saveable.name)
            variables[saveable.name] = SavedVariable(
                dtype=saved.dtype,
                shape=saved.shape if whole is None else tuple(whole.full_shape),
                parts=(part,) if earlier is None else (*earlier.parts, part),
                kind=kind_of(decl),
                primary=saveable.primary,
                optimizer=decl.optimizer,
                slot=decl.slot,
            )
        index = CheckpointIndex(
            files=tuple(entries),
            variables=variables,
            steps=dict(snapshot.steps),
            mutation_index=snapshot.index,
            ledger=snapshot.ledger,
            written_at=written_at,
            rewrite=rewrite,
            in_state=in_state,
            term=term,
        )
        write_index(storage, prefix, index)
    except BaseException:
        # The error at hand says more than one about the clean-up would. Files that an index names stay:
        # the failure may have come after the index was renamed.
        with contextlib.suppress(Exception):
            if term:
                _remove(storage, prefix, files.values(), term)
            else:
                remove_leftovers(storage, prefix)
        raise
    try:
        publish_index(storage, prefix, index)
    except OpError as error:
        _log.warning(
            "Ignoring: the checkpoint %s is there, but the copy of its index could not be written: %s", prefix, error
        )
    _warn_of_nan(prefix, written, names, cluster.run.labels)
    try:
        if before is not None:
            delete_indexes(storage, prefix, term, but=(index_path(prefix), index_path(prefix, term)))
        for old in before.files if before is not None else ():
            storage.delete(storage.join(directory, old.file))
    except OSError as error:
        _log.warning("Ignoring: a file that %s no longer uses could not be deleted: %s", prefix, error)
    return streamed


def _warn_of_nan(
    prefix: str, written: Mapping[int, ShardWritten | None], names: Mapping[str, str], labels: Sequence[str]
) -> None:
    """Log an error when a checkpoint holds NaN: it is saved, as TensorFlow would, but the user should know at once."""
    bad = [
        f"{names[tensor.name]!r}" + (f" on {labels[shard]}" if labels else "")
        for shard, done in sorted(written.items())
        for tensor in (done.tensors if done is not None else ())
        if tensor.has_nan
    ]
    if bad:
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        _log.warning(
            "NaN: checkpoint %s holds NaN in Variable %s%s. Training has diverged; what is saved from here on is of no "
            "use, and older checkpoints will be deleted. gs.train.NanTensorHook(loss) stops at the first loss that is "
            'NaN; gs.RunPolicy(on_nan="stop") at the first gradient that is not finite, and names worker and step.',
            prefix,
            ", ".join(bad[:_MOST_NAMED]),
            more,
        )


def _remove(storage: Storage, prefix: str, files: Iterable[str], term: int) -> None:
    """Delete the files of a save of this term that failed, finished or not: these names, and no other's."""
    own = index_path(prefix, term)
    named = {file.file for file in read_index(storage, prefix).files} if find_index(storage, prefix) == own else set()
    directory = directory_of(prefix)
    mine = [name for name in files if name not in named]
    for name in storage.list(directory):
        if name.startswith(tuple(mine)):
            storage.delete(storage.join(directory, name))


def _index_before(storage: Storage, prefix: str) -> CheckpointIndex | None:
    if find_index(storage, prefix) is None:
        return None
    try:
        return read_index(storage, prefix)
    except OpError as error:
        _log.warning("Replacing a checkpoint that cannot be read: %s", error)
        return CheckpointIndex(files=(), variables={}, term=prefixes_in(storage, directory_of(prefix)).get(prefix, 0))

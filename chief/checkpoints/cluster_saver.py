"""The saver of a cluster: names, keeps and restores checkpoints of what PS tasks hold, by names.

A checkpoint is one consistent snapshot of the whole cluster, and may be named by the step of that snapshot. To restore
one, its tensors are read, checked against the program and pushed as one mutation. Of large ones, such as tables, no
client holds the whole: their rows come first, a push for each piece, once all of their checksums have been compared. On
which shard a tensor was saved does not matter, so a checkpoint restores onto any number of PS tasks.

Layer: chief. A ClusterSaver belongs to one thread at a time, but for `save`, which threads may call at once. Threads:
one a background save, named "globalstep-saver"; the caller that started it joins it by `result`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import (
    CheckpointReader,
    delete_checkpoint,
    lacks_a_file,
    remove_incomplete,
    remove_leftovers,
)
from globalstep.chief.checkpoints.checkpoint_format import SavedVariable
from globalstep.chief.checkpoints.checkpoint_save import Saveable, save_snapshot
from globalstep.chief.checkpoints.checkpoint_state import (
    checkpoint_exists,
    committed_after,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    greatest_term,
    update_checkpoint_state,
)
from globalstep.cluster.placement import Declarations, declared_by
from globalstep.cluster.program import Program, ProgramVariable
from globalstep.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from globalstep.files.disk_arrays import IN_MEMORY_BYTES
from globalstep.files.storage import Storage, directory_of, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.waiting import join_announced, wait_announced
from globalstep.wire.declarations import Op, OpKind, Push, VariableDecl, nbytes_of
from globalstep.worker.client.row_pieces import push_rows
from globalstep.worker.protocol.splitting import whole_name

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


Array = npt.NDArray[Any]

_log = logging.getLogger("globalstep")

#: Name of the file that lists a directory's checkpoints.
STATE_FILE = "checkpoint"
#: How often the journal is asked for before a checkpoint comes into being.
_JOURNAL_TRIES = 3

_RESTORE_FAILED = (
    "Restoring from checkpoint failed. This is most likely due to {} from the checkpoint. Please ensure "
    "that you have not altered the graph expected based on the checkpoint. Original error:\n\n{}"
)


class ClusterSaver:
    """Saves Variables of a cluster to checkpoints, and gives them values from there.

    Args:
        max_to_keep: How many checkpoints to keep; None or 0 for all.
        keep_every_n_hours: Of those beyond, keep one every so many hours for good.
        reshape: When restoring, accept another shape with as many elements.
        pad_step_number: Write steps with at least 8 digits.
        save_relative_paths: Write relative paths to the state file, so that its directory can be moved.
        clock: Where time comes from.
        storage: Where checkpoints go; by default as their path says.

    Attributes:
        retention: The list of checkpoints.
    """

    def __init__(
        self,
        max_to_keep: int | None = 5,
        keep_every_n_hours: float = 10000.0,
        *,
        reshape: bool = False,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        storage: Storage | None = None,
    ) -> None:
        self.retention = Retention(max_to_keep, keep_every_n_hours, clock)
        self._reshape = reshape
        self._pad_step_number = pad_step_number
        self._clock = clock
        self._storage = storage
        self._save_relative_paths = save_relative_paths
        # The program has set the list: nothing is taken over from an earlier run.
        self._list_is_given = False
        # Paths whose leftovers were looked for -> this chief's term then.
        self._cleaned: dict[str, int] = {}
        self._told_streamed = False
        # Orders whole saves, files and all: a Supervisor's thread and its program save with one saver, and
        # each clears away what an interrupted save of the same path left. Nothing else takes it.
        self._saving = threading.Lock()

    def set_last(self, checkpoints: Iterable[tuple[str, float]]) -> None:
        """Set the list of checkpoints: (prefix, seconds since the epoch), oldest first."""
        self._list_is_given = True
        self.retention.recover(checkpoints)

    def recover_last(self, prefixes: Sequence[str]) -> None:
        """Take over the checkpoints of an earlier run, so that they count; those that are not there are left out."""
        there = [path for path in prefixes if checkpoint_exists(path)]
        self.retention.recover(zip(there, get_checkpoint_mtimes(there), strict=True))

    def save(
        self,
        cluster: ClusterClient,
        saveables: Sequence[Saveable],
        save_path: str,
        step: str | int | Callable[[], str | int | None] | None = None,
        *,
        state_file: str = STATE_FILE,
        write_state: bool = True,
        suffix: str = "meta",
        on_taken: Callable[[str], None] = lambda prefix: None,
        also: Callable[[str, Storage], None] = lambda prefix, storage: None,
    ) -> str:
        """Write a checkpoint of one consistent snapshot of the cluster; it is durable when this returns.

        Args:
            cluster: A client of the PS tasks.
            saveables: What to save.
            save_path: Path of the checkpoint without its step.
            step: A number to put to the name; or the name of a step, whose value in the snapshot it is then; or what
                gives one of these just before the snapshot.
            state_file: Name of the state file.
            write_state: Whether to update the state file and delete old checkpoints.
            suffix: What the name of a further file of a checkpoint ends with, deleted along with it.
            on_taken: Called with the checkpoint's prefix when nothing that happens later is in it any more.
            also: Called with the prefix, before another save begins, to write what goes beside the checkpoint.

        Returns:
            The checkpoint's prefix.

        Raises:
            ValueError: If the directory is not there.
            FailedPreconditionError: If a Variable is not initialized.
            OpError: If a file cannot be written; the checkpoints from before are still there.
        """
        directory, storage = directory_of(save_path), self.storage_of(save_path)
        if not storage.is_directory(directory):
            raise ValueError(f"Parent directory of {save_path} doesn't exist, can't save.")
        names = [saveable.variable for saveable in saveables]
        if any(name not in cluster.variables for name in names):
            cluster.refresh()
        missing = [name for name in names if name not in cluster.variables]
        if missing:
            raise FailedPreconditionError(
                f"Attempting to use uninitialized value {missing[0]}: run its initializer, or restore it, "
                "before saving."
            )
        with self._saving:
            term = _term_for(cluster, storage, save_path, state_file)
            self._prepare(storage, save_path, state_file, term)
            step = step() if callable(step) else step
            with cluster.snapshot() as snapshot:
                prefix = self._prefix(save_path, snapshot.steps[step] if isinstance(step, str) else step)
                on_taken(prefix)
                if cluster.journal is not None:
                    # What the journal proves is to reach as far as any checkpoint; a reply may get lost.
                    any(cluster.journal.catch_up() for _ in range(_JOURNAL_TRIES))
                now = self._clock.time()
                with _unless_replaced(cluster, storage, prefix, term):
                    streamed = save_snapshot(snapshot, cluster, saveables, prefix, storage, now, write_state, term)
            if streamed and not self._told_streamed:
                self._told_streamed = True
                _log.info(
                    "PS task(s) %s do not see this host's directory %s, so their part of each checkpoint goes "
                    "through the chief, which is slower. Put checkpoints on storage that all hosts share "
                    "(a network file system, or a URL such as s3://...) to write them in parallel.",
                    ", ".join(map(str, streamed)),
                    directory or ".",
                )
            with _unless_replaced(cluster, storage, prefix, term):
                if term and cluster.chief_lease.candidate is not None:
                    # So that one that was replaced meanwhile learns of it here; its files bear its term in any case,
                    # and the checkpoint is whole, whether PS task 0 answers or not.
                    with contextlib.suppress(UnavailableError):
                        cluster.chief_lease.candidate.confirm(cluster)
                if write_state:
                    self._commit(storage, prefix, state_file, suffix, term)
            also(prefix, storage)
            return prefix

    def restore(
        self, cluster: ClusterClient, program: Callable[[], Program], saveables: Sequence[Saveable], prefix: str
    ) -> None:
        """Give Variables their values from a checkpoint, all at once.

        Args:
            cluster: A client of the PS tasks.
            program: Gives what declares the Variables, where some are not declared yet.
            saveables: What to restore.
            prefix: The checkpoint's, as `save` or `latest_checkpoint` gave it.

        Raises:
            ValueError: If there is no such checkpoint.
            NotFoundError: If it lacks a Variable.
            InvalidArgumentError: If a Variable's shape or dtype is another.
            CheckpointError: If it is corrupt; nothing was changed.
        """
        try:
            reader = CheckpointReader(prefix, self._storage)
        except NotFoundError as error:
            raise ValueError(f"The passed save_path is not a valid checkpoint: {prefix}. {error.message}") from error
        _log.info("Restoring parameters from %s", prefix)
        with reader:
            try:
                _restore(cluster, program, reader, saveables, self._reshape)
            except NotFoundError as error:
                raise NotFoundError(
                    _RESTORE_FAILED.format("a Variable name or other graph key that is missing", error)
                ) from error
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    _RESTORE_FAILED.format("a mismatch between the current graph and the graph", error)
                ) from error

    def _prepare(self, storage: Storage, save_path: str, state_file: str, term: int) -> None:
        """Once for each path and term: take over an earlier run's list, and clear away what a crash left."""
        before = self._cleaned.get(save_path)
        if before == term:
            return
        self._cleaned[save_path] = term
        try:
            if removed := remove_leftovers(storage, save_path, state_file, term):
                _log.info("Removed what an interrupted save had left: %s", ", ".join(removed))
        except OSError as error:
            _log.warning("Ignoring: could not clear away what interrupted saves had left: %s", error)
        if self._list_is_given:
            return
        directory = directory_of(save_path)
        try:
            state = get_checkpoint_state(directory, state_file, storage)
        except ValueError:
            return
        if state is None:
            return
        ours = re.compile(rf"{re.escape(save_path)}(-\d+)?")
        entries = self.retention.kept
        if not entries or before:
            # Where this process is chief again, others have saved meanwhile.
            there = [path for path in state.all_model_checkpoint_paths if ours.fullmatch(path)]
            there = [path for path in there if checkpoint_exists(path)]
            entries = list(zip(there, get_checkpoint_mtimes(there), strict=True))
        # A checkpoint may have been committed just before its program died, and be in no list yet.
        after = max((time for _, time in entries), default=math.inf)
        newer = [
            (path, time)
            for path, time in committed_after(storage, directory, after)
            if ours.fullmatch(path) and path not in dict(entries)
        ]
        self.retention.recover([*entries, *newer], state.last_preserved_timestamp)

    def _commit(self, storage: Storage, prefix: str, state_file: str, suffix: str, term: int) -> None:
        """Put a checkpoint just written into the list and the state file, and delete what is too old.

        Raises:
            AbortedError: If a chief of a greater term has written the state file.
        """
        before = self.retention.paths[-1:]
        old = self.retention.record(prefix)
        # Deleted first, so that a crash in between leaves none over that no list names; but not the one
        # that the state file still names as the latest.
        for path in old:
            if path not in before:
                _delete(storage, path, suffix, term)
        update_checkpoint_state(
            directory_of(prefix),
            prefix,
            self.retention.paths,
            state_file,
            [time for _, time in self.retention.kept],
            self.retention.last_preserved,
            save_relative_paths=self._save_relative_paths,
            storage=storage,
            term=term,
        )
        for path in old:
            if path in before:
                _delete(storage, path, suffix, term)
        if term:
            try:
                remove_incomplete(storage, prefix, term, self.retention.paths)
            except OSError as error:
                _log.warning("Ignoring: what a chief that was replaced had left could not be deleted: %s", error)

    def storage_of(self, path: str) -> Storage:
        """Give where a path's checkpoints go."""
        return self._storage if self._storage is not None else storage_for(path)

    def _prefix(self, save_path: str, step: Any) -> str:
        if step is None:
            return save_path
        number = operator.index(step)
        return f"{save_path}-{number:08d}" if self._pad_step_number else f"{save_path}-{number}"


@contextlib.contextmanager
def _unless_replaced(cluster: ClusterClient, storage: Storage, prefix: str, term: int) -> Iterator[None]:
    """Find out, where a save fails, whether this chief was replaced: its successor clears away what it writes.

    Raises:
        AbortedError: If it was; what it has left of the checkpoint without all of its files is deleted.
    """
    try:
        yield
    except (OpError, OSError):
        candidate = cluster.chief_lease.candidate
        if not term or candidate is None:
            raise
        try:
            with contextlib.suppress(UnavailableError):
                candidate.confirm(cluster)
        except AbortedError:
            with contextlib.suppress(OSError):
                if lacks_a_file(storage, prefix):
                    delete_checkpoint(prefix, storage, term=term)
            raise
        raise


def _term_for(cluster: ClusterClient, storage: Storage, save_path: str, latest_filename: str) -> int:
    """The term that a save of this chief bears; 0 without one.

    Raises:
        AbortedError: If the files are of a chief that has replaced this one.
    """
    lease = cluster.chief_lease
    if not lease.term:
        return 0
    term = greatest_term(storage, directory_of(save_path), save_path, latest_filename)
    if term > lease.term and lease.candidate is not None:
        # Of a successor, and this one learns that; or of before the clock of PS task 0 was set back.
        lease.candidate.confirm(cluster, above=term)
    return int(lease.term)


def _restore(
    cluster: ClusterClient,
    program: Callable[[], Program],
    reader: CheckpointReader,
    saveables: Sequence[Saveable],
    reshape: bool,
) -> None:
    """Restore Variables from an open checkpoint, in one push but for large ones; if anything is wrong nothing changes.

    Parts of a whole may be others than those that were saved. Variables that the cluster does not know yet are declared
    once every one was checked against its tensor.
    """
    if any(saveable.variable not in cluster.variables for saveable in saveables):
        cluster.refresh()
    decls: dict[str, VariableDecl] = dict(cluster.variables)
    planned: Declarations | None = None
    of_program: Sequence[ProgramVariable] = ()
    for saveable in saveables:
        name, variable = saveable.name, saveable.variable
        saved = reader.index.variables.get(name)
        if saved is None:
            raise NotFoundError(f"Key {name} not found in checkpoint {reader.prefix} (for Variable {variable!r})")
        if variable not in decls:
            if planned is None:
                whole = program()
                run = cluster.shards, cluster.policy, cluster.sequencer, cluster.where, cluster.variables
                planned, of_program = declared_by(whole, *run), whole.variables
                decls = {decl.name: decl for decl in planned.variables} | decls
            # A Variable made with validate_shape=False has the shape of what is assigned to it.
            if variable not in decls:
                unshaped = next(item for item in of_program if item.name == variable)
                decls[variable] = unshaped.declaration(saved.shape, planned.shards[variable])
        decl = decls[variable]
        if saveable.part is None:
            _require_match(reader.prefix, name, saved, decl, decl.shape, reshape)
        else:
            _require_match(reader.prefix, name, saved, decl, tuple(saveable.part.full_shape), False)
    if planned is not None:
        cluster.declare([decl for decl in decls.values() if decl.name not in cluster.variables], planned.optimizers)
    ops: list[Op] = []
    in_pieces: dict[str, Iterator[tuple[int, Array]]] = {}
    for saveable in saveables:
        name, saved = saveable.variable, reader.index.variables[saveable.name]
        offset: Sequence[int] = (0,) * len(saved.shape)
        shape: Sequence[int] = saved.shape
        if saveable.part is not None:
            offset, shape = saveable.part.var_offset, saveable.part.var_shape
        if nbytes_of(decls[name]) > IN_MEMORY_BYTES and tuple(shape) == decls[name].shape:
            in_pieces[name] = reader.checked_rows(saveable.name, offset, shape)
        else:
            value = reader.get_slice(saveable.name, offset, shape)
            ops.append(Op(OpKind.ASSIGN, name, value=value.reshape(decls[name].shape)))
    without = {whole_name(name) for status in cluster.refresh() for name in status.uninitialized} if in_pieces else ()
    for name, rows in in_pieces.items():
        if name in without:
            cluster.push(Push([Op(OpKind.ASSIGN, name, fill=0.0)]))
        push_rows(cluster, name, rows)
    # Last: who waits until all Variables have values finds these.
    cluster.push(Push(ops=ops))


def _require_match(
    prefix: str, name: str, saved: SavedVariable, decl: VariableDecl, shape: tuple[int, ...], reshape: bool
) -> None:
    if saved.dtype != decl.dtype:
        raise InvalidArgumentError(
            f"tensor_name = {name}; expected dtype {decl.dtype} does not equal original dtype {saved.dtype} "
            f"(Variable {decl.name!r}, checkpoint {prefix})"
        )
    if saved.shape != shape and not (reshape and math.prod(saved.shape) == math.prod(shape)):
        raise InvalidArgumentError(
            "Assign requires shapes of both tensors to match. "
            f"lhs shape= {_brackets(shape)} rhs shape= {_brackets(saved.shape)} "
            f"(Variable {decl.name!r}, tensor {name!r} of checkpoint {prefix})"
        )


def _brackets(shape: tuple[int, ...]) -> str:
    return f"[{','.join(str(size) for size in shape)}]"


def _delete(storage: Storage, prefix: str, meta_graph_suffix: str, term: int) -> None:
    try:
        delete_checkpoint(prefix, storage, meta_graph_suffix, term)
    except OSError as error:
        _log.warning("Ignoring: the old checkpoint %s could not be deleted: %s", prefix, error)


class Retention:
    """The list of a Saver's checkpoints: the last few, and one every so many hours for good. No I/O.

    The rules are TensorFlow 1.15's (python/training/saver.py), but for two bugs of it: without a limit the list holds
    every checkpoint, not only the latest (tensorflow#13381), and a Saver of a restarted program goes on with the list
    of the one before it (tensorflow#16025), which gets no longer than it should be.

    Args:
        max_to_keep: How many to keep; None or 0 for all.
        keep_every_hours: Of those beyond, keep one every so many hours for good.
        clock: Where time comes from.

    Attributes:
        kept: (path, when it was written in seconds since the epoch), oldest first.
        last_preserved: When a checkpoint was last kept for good; at first, when this was made.

    Raises:
        ValueError: If `max_to_keep` is negative.
    """

    def __init__(self, max_to_keep: int | None, keep_every_hours: float, clock: Clock) -> None:
        if max_to_keep is not None and max_to_keep < 0:
            raise ValueError(f"max_to_keep must be at least 0 (which keeps all), or None; got {max_to_keep}.")
        self._max_to_keep = max_to_keep or 0
        self._keep_every_secs = keep_every_hours * 3600
        self._clock = clock
        self.kept: list[tuple[str, float]] = []
        self.last_preserved = clock.time()

    @property
    def max_to_keep(self) -> int:
        """The number of checkpoints that are kept; 0 for all."""
        return self._max_to_keep

    @property
    def paths(self) -> list[str]:
        """The checkpoints that are not deleted, oldest first."""
        return [path for path, _ in self.kept]

    def recover(self, entries: Iterable[tuple[str, float]], last_preserved: float = 0.0) -> None:
        """Go on with a list from before.

        Args:
            entries: Paths and times, oldest first.
            last_preserved: When a checkpoint was last kept for good; 0 if that is not known.
        """
        self.kept = list(entries)
        if last_preserved:
            self.last_preserved = last_preserved

    def record(self, path: str) -> list[str]:
        """Put a checkpoint just written to the end of the list; gives those to delete, without those kept for good."""
        self.kept = [entry for entry in self.kept if entry[0] != path]
        self.kept.append((path, self._clock.time()))
        paths = []
        # Two, where a list from before is too long: so it gets shorter, without much deleted at once.
        for _ in range(min(2, len(self.kept) - self._max_to_keep) if self._max_to_keep else 0):
            oldest, written_at = self.kept.pop(0)
            if written_at > self.last_preserved + self._keep_every_secs:
                self.last_preserved += self._keep_every_secs
            else:
                paths.append(oldest)
        return paths


class BackgroundSave:
    """A save that is being written, from its snapshot on. Made by `Saver.start_save`. Thread-safe.

    Args:
        save: Saves, and gives the checkpoint's prefix, or None if there is nothing to save. It calls its
            argument, with the prefix, once the snapshot is taken.
        why: Says why a save takes long, for who waits for it; see wait_announced.

    Raises:
        Exception: What `save` raises before the snapshot.

    Attributes:
        prefix: The checkpoint's prefix, known from the snapshot on; None if there is nothing to save.
        thread: Who writes it.
    """

    def __init__(self, save: Callable[[Callable[[str], None]], str | None], why: Callable[[], str] = str) -> None:
        self._why = why
        self.prefix: str | None = None
        self._outcome: Future[str | None] = Future()
        # Set when the snapshot is taken, or will never be.
        self._begun = threading.Event()
        # No daemon: a process that ends lets it finish, so that no half-written files are left behind.
        self.thread = threading.Thread(target=self._run, args=(save,), name="globalstep-saver")
        self.thread.start()
        wait_announced(self._begun.wait, "the PS tasks' snapshot of a checkpoint", why=why)
        if self.prefix is None:
            self.result()

    def done(self) -> bool:
        """Say whether it has ended, well or not."""
        return self._outcome.done()

    def result(self) -> str | None:
        """Wait until it has ended.

        Returns:
            The checkpoint's prefix; it is durable.

        Raises:
            Exception: What the save failed with. The checkpoints from before are still there.
        """
        join_announced(self.thread, f"the checkpoint {self.prefix} to be written", why=self._why)
        return self._outcome.result()

    def _run(self, save: Callable[[Callable[[str], None]], str | None]) -> None:
        try:
            self._outcome.set_result(save(self._taken))
        except BaseException as error:
            if self.prefix is not None:
                # Its owner gets it too, but perhaps much later, or never if it fails of something else.
                _log.warning("The checkpoint %s could not be written: %s", self.prefix, error)
            self._outcome.set_exception(error)
        finally:
            self._begun.set()

    def _taken(self, prefix: str) -> None:
        self.prefix = prefix
        self._begun.set()

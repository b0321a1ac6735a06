"""Other checkpoints of a Saver's directory: lists them, deletes old ones and leftovers.

The rules are TensorFlow 1.15's (python/training/saver.py), but for two bugs of it: without a limit the list holds every
checkpoint, not only the latest (tensorflow#13381), and a Saver of a restarted program goes on with the list of the one
before it (tensorflow#16025), which gets no longer than it should be.

Layer: chief. Not thread-safe: its Saver calls it for one save at a time.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable

from globalstep.chief.checkpoints.checkpoint import delete_checkpoint, remove_incomplete, remove_leftovers
from globalstep.chief.checkpoints.checkpoint_state import (
    checkpoint_exists,
    committed_after,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    update_checkpoint_state,
)
from globalstep.files.storage import Storage, directory_of
from globalstep.runtime.clock import Clock

_log = logging.getLogger("globalstep")


class CheckpointKeeping:
    """Keeps a Saver's list of checkpoints, its state file, and the directory's files in step.

    Attributes:
        list_is_given: The program has set the list: nothing is taken over from an earlier run.
    """

    def __init__(self, retention: Retention, save_relative_paths: bool) -> None:
        self._retention = retention
        self._save_relative_paths = save_relative_paths
        self.list_is_given = False
        # Paths whose leftovers were looked for -> this chief's term then.
        self._cleaned: dict[str, int] = {}

    def prepare(self, storage: Storage, save_path: str, latest_filename: str, term: int = 0) -> None:
        """Once for each path and term: take over an earlier run's list, and clear away what a crash left."""
        before = self._cleaned.get(save_path)
        if before == term:
            return
        self._cleaned[save_path] = term
        try:
            removed = remove_leftovers(storage, save_path, latest_filename, term)
        except OSError as error:
            removed = []
            _log.warning("Ignoring: could not clear away what interrupted saves had left: %s", error)
        if removed:
            _log.info("Removed what an interrupted save had left: %s", ", ".join(removed))
        if self.list_is_given:
            return
        directory = directory_of(save_path)
        try:
            state = get_checkpoint_state(directory, latest_filename, storage)
        except ValueError:
            return
        if state is None:
            return
        ours = re.compile(rf"{re.escape(save_path)}(-\d+)?")
        entries = self._retention.kept
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
        self._retention.recover([*entries, *newer], state.last_preserved_timestamp)

    def commit(
        self, storage: Storage, directory: str, prefix: str, latest_filename: str, meta_graph_suffix: str, term: int = 0
    ) -> None:
        """Put a checkpoint just written into the list and the state file, and delete what is too old.

        Raises:
            AbortedError: If a chief of a greater term has written the state file.
        """
        before = self._retention.paths[-1:]
        self._retention.record(prefix)
        old = self._retention.to_delete()
        # Deleted first, so that a crash in between leaves none over that no list names; but not the one
        # that the state file still names as the latest.
        for path in old:
            if path not in before:
                _delete(storage, path, meta_graph_suffix, term)
        update_checkpoint_state(
            directory,
            prefix,
            self._retention.paths,
            latest_filename,
            [time for _, time in self._retention.kept],
            self._retention.last_preserved,
            save_relative_paths=self._save_relative_paths,
            storage=storage,
            term=term,
        )
        for path in old:
            if path in before:
                _delete(storage, path, meta_graph_suffix, term)
        if term:
            try:
                remove_incomplete(storage, prefix, term, self._retention.paths)
            except OSError as error:
                _log.warning("Ignoring: what a chief that was replaced had left could not be deleted: %s", error)


def _delete(storage: Storage, prefix: str, meta_graph_suffix: str, term: int) -> None:
    try:
        delete_checkpoint(prefix, storage, meta_graph_suffix, term)
    except OSError as error:
        _log.warning("Ignoring: the old checkpoint %s could not be deleted: %s", prefix, error)


class Retention:
    """The list of a Saver's checkpoints: the last few, and one every so many hours for good. No I/O.

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
        self._evicted: list[tuple[str, float]] = []
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

    def record(self, path: str) -> None:
        """Put a checkpoint just written to the end of the list; the oldest may fall out of it."""
        self.kept = [entry for entry in self.kept if entry[0] != path]
        self.kept.append((path, self._clock.time()))
        # Two, where a list from before is too long: so it gets shorter, without much deleted at once.
        for _ in range(min(2, len(self.kept) - self._max_to_keep) if self._max_to_keep else 0):
            self._evicted.append(self.kept.pop(0))

    def to_delete(self) -> list[str]:
        """Give the checkpoints to delete now, without those that are to be kept for good."""
        evicted, self._evicted = self._evicted, []
        paths = []
        for path, written_at in evicted:
            if written_at > self.last_preserved + self._keep_every_secs:
                self.last_preserved += self._keep_every_secs
            else:
                paths.append(path)
        return paths

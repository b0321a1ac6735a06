"""Other checkpoints of a Saver's directory: lists them, deletes old ones and leftovers.

The rules are `chief/checkpoints/retention.py`'s; here is the I/O.

Layer: chief. Not thread-safe: its Saver calls it for one save at a time.
"""

from __future__ import annotations

import logging
import math
import re

from globalstep.chief.checkpoints.checkpoint import delete_checkpoint, remove_incomplete, remove_leftovers
from globalstep.chief.checkpoints.checkpoint_state import (
    checkpoint_exists,
    committed_after,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    write_state,
)
from globalstep.chief.checkpoints.retention import Retention
from globalstep.files.storage import Storage, directory_of

__all__ = ["CheckpointKeeping"]

_log = logging.getLogger("globalstep")


class CheckpointKeeping:
    """Keeps a Saver's list of checkpoints, its state file, and the directory's files in step.

    Args:
        retention: The list.
        save_relative_paths: Write relative paths to the state file.

    Attributes:
        list_is_given: The program has set the list: nothing is taken over from an earlier run.
    """

    def __init__(self, retention: Retention, save_relative_paths: bool) -> None:
        self._retention = retention
        self._save_relative_paths = save_relative_paths
        self.list_is_given = False
        # Paths of which leftovers were looked for -> this chief's term then.
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
        kept = self._retention.kept
        if not kept or before:
            # Where this process is chief again, others have saved meanwhile.
            there = [path for path in state.all_model_checkpoint_paths if ours.fullmatch(path)]
            there = [path for path in there if checkpoint_exists(path)]
            kept = list(zip(there, get_checkpoint_mtimes(there), strict=True))
        # A checkpoint may have been committed just before its program died, and be in no list yet.
        after = max((time for _, time in kept), default=math.inf)
        newer = [
            (path, time)
            for path, time in committed_after(storage, directory, after)
            if ours.fullmatch(path) and path not in dict(kept)
        ]
        self._retention.recover([*kept, *newer], state.last_preserved_timestamp)

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
        write_state(
            storage,
            directory,
            prefix,
            self._retention.paths,
            latest_filename,
            [time for _, time in self._retention.kept],
            self._retention.last_preserved,
            save_relative_paths=self._save_relative_paths,
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

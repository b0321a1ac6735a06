"""The directory of a run as its sessions use it: its lock, its checkpoints, its identity and its journal.

A run without a directory does not load this module, nor what it imports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from globalstep.chief.checkpoints.checkpoint_format import read_index
from globalstep.chief.checkpoints.checkpoint_state import greatest_term, latest_checkpoint
from globalstep.chief.journal import run_lock
from globalstep.chief.journal.journal_keeping import JournalKeeper
from globalstep.chief.journal.run_directory import keep_identity, keep_incarnation, kept_identity
from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import OpError
from globalstep.files.storage import require_utf8, storage_for
from globalstep.runtime.clock import Clock

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")


class RunFiles:
    """The files of a run in its directory.

    Args:
        directory: Path or URL.

    Attributes:
        directory: As given.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @property
    def absolute(self) -> str:
        """The directory by a name that means the same one to a PS task, which may have another working directory."""
        if not self.directory or not storage_for(self.directory).is_local:
            return self.directory
        require_utf8(os.path.abspath(self.directory))
        return os.path.abspath(self.directory)

    def hold(self, clock: Clock, ps: Sequence[str], take_over: bool, alone: bool) -> Callable[[], None]:
        """Take the lock of the directory; see `run_lock.hold`."""
        return run_lock.hold(self.absolute, clock, ps, take_over, alone)

    def newest(self, thorough: bool | None = None) -> str | None:
        """Return the newest checkpoint; None for none. See `latest_checkpoint`."""
        return latest_checkpoint(self.directory, thorough=thorough)

    def why_none(self) -> str:
        """Say why there is no checkpoint."""
        directory, storage = self.directory, storage_for(self.directory)
        if not storage.is_directory(directory):
            return (
                f"{directory} does not exist on this machine: nothing was saved yet, it is another machine's disk, or "
                "the path is not the one that the chief has"
            )
        parts = [name for name in storage.list(directory) if ".index" in name or ".shard-" in name]
        if parts:
            return (
                f"{directory} has files of checkpoints ({parts[0]}), but none that is whole: one is being written, "
                "files were deleted, or they have not come to this machine yet"
            )
        return (
            f"{directory} has no file of a checkpoint: the chief has not come to its first save, it saves somewhere "
            "else, or no task saves (no save_checkpoint_secs, no CheckpointSaverHook)"
        )

    def term(self) -> int:
        """Return the greatest chief's term in the directory; 0 where that is not known."""
        try:
            return greatest_term(storage_for(self.directory), self.directory)
        except Exception as error:  # an object store's driver raises what it likes; a restore will say more
            _log.debug("Terms in %s cannot be read: %s", self.directory, error)
            return 0

    def identity(self) -> RunIdentity:
        """Return which run the directory is of."""
        return kept_identity(self.directory)

    keep_identity = staticmethod(keep_identity)
    keep_incarnation = staticmethod(keep_incarnation)

    def keep_journal(self, client: ClusterClient) -> None:
        """Have the client's run keep a journal here from now on."""
        client.journal = JournalKeeper(client, self.directory)
        client.journal.start()

    @staticmethod
    def ledger(prefix: str) -> bytes:
        """Return the ledger that a checkpoint holds."""
        return read_index(storage_for(prefix), prefix).ledger

    @staticmethod
    def ps_tasks(prefix: str) -> int:
        """Return how many PS tasks there were when a checkpoint was written; 0 where that is not known."""
        with contextlib.suppress(OpError, OSError):
            files = read_index(storage_for(prefix), prefix).files
            match = re.search(r"-of-(\d+)", files[0].file if files else "")
            return int(match.group(1)) if match else 0
        return 0

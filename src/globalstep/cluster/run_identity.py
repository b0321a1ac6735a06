"""The identity of a run, by which two jobs that use one address differ.

A run's id is random. The chief makes it before the run's first BEGIN and keeps it in the run's directory
(`chief/journal/run_directory.py`); every PS task of the run holds it, and every client that has joined knows it.

Layer: shared. Immutable.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from globalstep.errors import InvalidArgumentError

if TYPE_CHECKING:
    from globalstep.proto import globalstep_pb2 as pb


#: The run's name, for a job whose launcher or engine has one: the same for all of its tasks.
RUN_VARIABLE = "GLOBALSTEP_RUN"
#: Set to 1 for a chief that is to begin its run on PS tasks that serve another one.
TAKE_OVER_VARIABLE = "GLOBALSTEP_TAKE_OVER"
#: How a user says so.
TAKE_OVER_HOW = f"{TAKE_OVER_VARIABLE}=1 (globalstep launch: --take-over)"
_SHOWN = 8


def new_run_id() -> str:
    """Make the id of a new run."""
    return uuid.uuid4().hex


def run_name(environ: Mapping[str, str] = os.environ) -> str:
    """Give the run's name that the launcher or engine has set; "" where it has not.

    >>> run_name({"GLOBALSTEP_RUN": "digits"})
    'digits'
    """
    return environ.get(RUN_VARIABLE, "").strip()


def takes_over(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether this process's chief is to begin its run on PS tasks that serve another one.

    Raises:
        InvalidArgumentError: If what is set there says neither yes nor no.

    >>> takes_over({"GLOBALSTEP_TAKE_OVER": "1"}), takes_over({})
    (True, False)
    """
    word = environ.get(TAKE_OVER_VARIABLE, "").strip().lower()
    if word not in ("", "0", "false", "no", "1", "true", "yes"):
        raise InvalidArgumentError(f"{TAKE_OVER_VARIABLE} is {word!r}; it must be 1 or 0.")
    return word in ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """A run as a PS task, or a member of it, knows it."""

    #: "" where it is not known.
    id: str = ""
    #: What GLOBALSTEP_RUN said to its chief; "" for nothing.
    name: str = ""
    #: As the chief names it; "" where it has none.
    directory: str = ""

    @classmethod
    def decode(cls, message: pb.RunIdentity) -> RunIdentity:
        """Read one from its message."""
        return cls(message.id, message.name, message.directory)

    def encode(self) -> pb.RunIdentity:
        """Give its message."""
        from globalstep.proto import globalstep_pb2 as pb  # the ledger and the shard's tables know no wire

        return pb.RunIdentity(id=self.id, name=self.name, directory=self.directory)

    def is_other(self, run: RunIdentity) -> bool:
        """Whether both are known, and are not the same run."""
        return bool(self.id and run.id) and self.id != run.id

    def __str__(self) -> str:
        name = f"run {self.name!r}" if self.name else "the run"
        place = f"of {self.directory}" if self.directory else "without a directory"
        return f"{name} {place}" + (f" (id {self.id[:_SHOWN]})" if self.id else "")


#: An unknown run.
NO_RUN = RunIdentity()


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The run of a task, as far as the task can know before it has joined.

    Attributes:
        is_chief: Whether it is the task that begins the run.
        joined: Id of the run that this process has joined before; "" for none.
        kept: Id in its directory; "" where there is none, or no directory.
        name: What GLOBALSTEP_RUN says.
        directory: Of its checkpoints; "" where it has none.
    """

    is_chief: bool
    joined: str = ""
    kept: str = ""
    name: str = ""
    directory: str = ""

    @property
    def id(self) -> str:
        """Its id, where it knows one."""
        return self.joined or self.kept

    @property
    def identity(self) -> RunIdentity:
        """The same, as it is sent to others."""
        return RunIdentity(self.id, self.name, self.directory)

    def is_other(self, held: RunIdentity) -> bool:
        """Say whether the PS tasks hold a run that this task is not of.

        A worker that knows nothing of its run may join any. A chief is of the run of its directory, and without one of
        a run without a directory.

        >>> held = RunIdentity("1", directory="/runs/a")
        >>> TaskRun(is_chief=True, kept="2", directory="/runs/b").is_other(held)
        True
        >>> TaskRun(is_chief=False).is_other(held)
        False
        """
        if not held.id or held.id == self.id:
            return False
        if self.joined:
            return True
        same_directory = bool(self.directory) and self.directory == held.directory
        if self.name and held.name:
            return self.name != held.name or (self.is_chief and bool(self.kept))
        if self.kept:
            # A worker's directory may be on a machine of its own, and be left from an earlier run.
            return self.is_chief or not same_directory
        return self.is_chief and self.directory != held.directory


def other_run(who: str, held: RunIdentity, wanted: RunIdentity, members: Sequence[str]) -> str:
    """Say that PS tasks serve another run than a caller wants, and what is to be done."""
    there = f" Of it there are: {', '.join(members)}." if members else ""
    return (
        f"Two runs on one address: {who} serve {held}, and this task is of {wanted}.{there} Nothing was changed. Give "
        "each run PS tasks of its own, or wait until the other has ended. To begin this run on them all the same, "
        f"start its chief with {TAKE_OVER_HOW}: the other run is dropped there, with what it has not saved. "
        "(Tasks of one job are of one run: they give one checkpoint_dir, or none.)"
    )


def identity_of(begin: pb.BeginRequest) -> RunIdentity:
    """Give the run that a BEGIN begins; its directory has a field of its own there."""
    return RunIdentity(begin.run.id, begin.run.name, begin.directory)

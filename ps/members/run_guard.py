"""Keeps two runs apart on one PS task: who may begin another run there, and who may open the one that is there.

Pure; called under the shard's lock. Layer: ps.
"""

from __future__ import annotations

from dataclasses import replace

from globalstep.cluster.run_identity import RunIdentity, other_run
from globalstep.errors import FailedPreconditionError
from globalstep.ps.members.presence import Presence

__all__ = ["opened_as", "refuse_other"]


def refuse_other(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> None:
    """Refuse a BEGIN of another run while members of the one that is held are there.

    Args:
        held: The run that the task serves.
        run: The one that is to begin.
        shard: The task's index.
        presence: Who is there.

    Raises:
        FailedPreconditionError: Then.
    """
    if run.is_other(held) and presence.of_run(held.id):
        raise _other(held, run, shard, presence)


def opened_as(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> RunIdentity:
    """Give the run that is open after an OPEN: the same, by the name that its chief has for it now.

    Raises:
        FailedPreconditionError: If the caller means another run.
    """
    if run.is_other(held):
        raise _other(held, run, shard, presence)
    return replace(held, name=run.name) if run.id else held


def _other(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> FailedPreconditionError:
    members = [
        f"{view.task or view.client} ({view.standing.process}, for {view.joined_secs:.0f} s)"
        for view in presence.of_run(held.id)
    ]
    return FailedPreconditionError(other_run(f"PS task {shard}", held, run, members))

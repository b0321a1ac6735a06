"""Admission of a task to the run that the PS tasks hold: it joins, begins its own run, or is refused.

Two jobs on one address would mix their models: see docs/design/life-of-a-run.md, "Which run".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from globalstep.cluster.process_place import ALIVE_SECS, Process, is_gone, this_process
from globalstep.cluster.run_identity import RunIdentity, TaskRun, new_run_id, other_run, run_name, takes_over
from globalstep.errors import FailedPreconditionError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.known_progress import KnownProgress

if TYPE_CHECKING:
    from globalstep.chief.sessions.run_files import RunFiles
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

_POLL_SECS = 0.2
_SERVING = (pb.STATE_INITIALIZING, pb.STATE_READY)


def files_of(directory: str) -> RunFiles:
    """Return what a run keeps in its directory; only runs that have one load the code for it."""
    from globalstep.chief.sessions.run_files import RunFiles

    return RunFiles(directory)


@dataclass(slots=True)
class RunOfTask:
    """The run that a task takes part in, over all of its sessions.

    Args:
        clock: Paces its looks at others.
        joined: Id of the run that this process has joined; "" for none.
        found: Id of the run that the PS tasks held when they were looked at last, where that is not another one's.
    """

    clock: Clock
    joined: str = ""
    found: str = ""

    def knowledge(self, directory: str, is_chief: bool) -> TaskRun:
        """Give what the task knows of its run.

        Args:
            directory: Of its checkpoints, absolute; "" where it has none.
            is_chief: Whether it begins the run.
        """
        run = ""
        try:
            run = files_of(directory).identity().id if directory else ""
        except OpError:
            if is_chief:
                raise
        return TaskRun(is_chief, self.joined, run, run_name(), directory)

    def look(self, client: ClusterClient, statuses: Sequence[pb.StatusReply], mine: TaskRun) -> bool:
        """Look whether the PS tasks hold another run than this task's.

        Returns:
            Whether they hold another one, which is to be dropped by who may begin.

        Raises:
            FailedPreconditionError: If that one's members are there, and this task may not take over.
        """
        held, serves = _other_than(mine, statuses)
        self.found = "" if held is not None else next((status.run.id for status in statuses if status.run.id), "")
        if held is None or not serves:
            return held is not None
        if mine.is_chief and takes_over():
            _log.warning("The PS tasks serve %s; it is dropped, as this task takes over.", held)
            return True
        began = self.clock.monotonic()
        while waiting := _members(statuses, held.id):
            waited_secs = self.clock.monotonic() - began
            alive = [member for member in waiting if member.silent_secs < waited_secs]
            if alive:
                named = sorted(f"{m.name} ({m.process}, heard {m.silent_secs:.1f} s ago)" for m in alive)
                raise FailedPreconditionError(other_run(_where(client, statuses, held), held, mine.identity, named))
            self.clock.sleep(_POLL_SECS)
            statuses = client.refresh()
        if mine.is_chief:
            _log.warning(
                "The PS tasks hold %s%s, and no member is left: its members have left, or have been silent "
                "for longer than their leases. What they hold is dropped, and this task's run begins.",
                held,
                _at(statuses),
            )
        return True

    def begins(self, mine: TaskRun, progress: KnownProgress) -> RunIdentity:
        """Give the run that a chief is about to begin, whose directory says so from now on.

        Args:
            mine: What is known of the task's run.
            progress: Learns which incarnations the run has had, by its directory.
        """
        run = RunIdentity(mine.id or self.found or new_run_id(), mine.name, mine.directory)
        if run.directory:
            progress.newest = max(progress.newest, files_of(run.directory).keep_identity(run))
        self.joined = run.id
        return run

    def opens(self, client: ClusterClient) -> None:
        """Have the run's directory know an incarnation that is about to be opened, before it has members."""
        run = client.run.identity
        if run.directory:
            addresses = [address for address in client.run.addresses if address]
            files_of(run.directory).keep_incarnation(run, client.incarnation, addresses)

    def joins(self, run: RunIdentity, mine: TaskRun) -> None:
        """Take note of the run that the task has joined; a chief's directory that does not name one gets its id."""
        self.joined = run.id or self.joined
        if mine.is_chief and mine.directory and run.id and not mine.kept:
            files_of(mine.directory).keep_identity(RunIdentity(run.id, mine.name, mine.directory))

    def refuse_second(self, client: ClusterClient) -> None:
        """Take the task for this process; refuse it where another living process has it.

        Raises:
            FailedPreconditionError: Then; names both processes.
        """
        if not client.task or client.membership.has_task:
            return
        client.membership.take_task()
        began = self.clock.monotonic()
        while True:
            status = client.refresh()[0]
            mine = next((one.joined_secs for one in status.clients if one.client == client.client_id), 0.0)
            rivals = [
                one
                for one in status.clients
                if one.task == client.task
                and one.takes_task
                and one.joined_secs >= mine
                and one.client != client.client_id
                and one.silent_secs < ALIVE_SECS
                and _is_elsewhere(Process.decode(one.process))
            ]
            waited_secs = self.clock.monotonic() - began
            for one in rivals:
                if one.silent_secs < waited_secs:
                    raise FailedPreconditionError(
                        f"Two processes run as {client.task}: {Process.decode(one.process)}, which joined "
                        f"{one.joined_secs:.0f} s ago and gave a sign of life {one.silent_secs:.1f} s ago, and this "
                        f"one, {this_process()}. Nothing was pushed. Start each task once, or give this one a task "
                        "index of its own."
                    )
            if not rivals:
                return
            self.clock.sleep(_POLL_SECS)


def _other_than(mine: TaskRun, statuses: Sequence[pb.StatusReply]) -> tuple[RunIdentity | None, bool]:
    """Give a run that PS tasks hold and that is not the task's, if there is one, and whether they serve it."""
    other: RunIdentity | None = None
    for status in statuses:
        held = RunIdentity.decode(status.run)
        if status.incarnation and mine.is_other(held):
            if status.state in _SERVING:
                return held, True
            other = held
    return other, False


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    process: Process
    silent_secs: float


def _is_elsewhere(process: Process) -> bool:
    """Whether a process may still run, and is not this one."""
    return bool(process) and process != this_process() and not is_gone(process)


def _members(statuses: Sequence[pb.StatusReply], run: str) -> list[_Member]:
    """Give the members of a run that may be there: their leases are not over, and none was seen dead."""
    members: dict[str, _Member] = {}
    for status in statuses:
        for one in status.clients:
            process = Process.decode(one.process)
            if one.run == run and _is_elsewhere(process):
                member = members.get(one.client)
                silent_secs = min(one.silent_secs, member.silent_secs) if member else one.silent_secs
                members[one.client] = _Member(one.task or one.client, process, silent_secs)
    return list(members.values())


def _where(client: ClusterClient, statuses: Sequence[pb.StatusReply], held: RunIdentity) -> str:
    labels = [label for label, status in zip(client.run.labels, statuses, strict=True) if status.run.id == held.id]
    return ", ".join(labels) + _at(statuses)


def _at(statuses: Sequence[pb.StatusReply]) -> str:
    steps = {name: value for status in statuses for name, value in status.steps.items()}
    return f" (at {', '.join(f'{name} {value}' for name, value in sorted(steps.items()))})" if steps else ""

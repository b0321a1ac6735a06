"""What the chief, its hooks and tools ask of a cluster's client, so that their types can be checked.

Layer: worker. Threads: as the class that it describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from globalstep.cluster.run_identity import RunIdentity
    from globalstep.cluster.run_policy import RunPolicy
    from globalstep.errors import OpError
    from globalstep.proto import globalstep_pb2 as pb
    from globalstep.wire.declarations import OptimizerDecl, Push, Read, StopLimit, VariableDecl
    from globalstep.worker.client.chief_lease import ChiefLeaseClient
    from globalstep.worker.client.heartbeat import Heartbeat
    from globalstep.worker.client.joined_run import Shutdown
    from globalstep.worker.client.membership import Membership
    from globalstep.worker.client.run_view import RunView
    from globalstep.worker.client.snapshot import Snapshot
    from globalstep.worker.protocol.push_result import PushResult

__all__ = ["ClusterAccess", "JournalStore"]


class JournalStore(Protocol):
    """Stores what the sequencer has written down; see globalstep.chief.journal.journal_keeping. Thread-safe."""

    @property
    def stored_index(self) -> int:
        """The last entry that is stored."""
        ...

    def catch_up(self) -> bool:
        """Store all that there is now; gives whether that was possible."""
        ...

    def stop(self) -> None:
        """Store what there is now, and end."""
        ...


class ClusterAccess(Protocol):
    """A client of a cluster's PS tasks; globalstep.worker.client.client.ClusterClient says what each name does."""

    client_id: str
    task: str
    closed: bool
    run: RunView
    membership: Membership
    heartbeat: Heartbeat
    chief_lease: ChiefLeaseClient
    shutdown: Shutdown
    journal: JournalStore | None

    @property
    def incarnation(self) -> int:
        """The incarnation that it is a member of; 0 before it knows one."""
        ...

    @property
    def shards(self) -> int:
        """How many PS tasks there are."""
        ...

    @property
    def sequencer(self) -> int:
        """Index of the PS task that orders pushes."""
        ...

    @property
    def policy(self) -> RunPolicy:
        """The run's policy."""
        ...

    @property
    def where(self) -> Mapping[str, int]:
        """Declared Variable -> index of its PS task."""
        ...

    @property
    def variables(self) -> Mapping[str, VariableDecl]:
        """Declared Variables, as it last heard of them."""
        ...

    def refresh(self) -> list[pb.StatusReply]:
        """Learn the run's incarnation and Variables from all PS tasks."""
        ...

    def statuses(self, timeout_secs: float = ..., brief: bool = ...) -> list[pb.StatusReply | OpError]:
        """Ask every PS task what it is, at once."""
        ...

    def job_done(self) -> bool:
        """Whether the job has been declared done, as last heard."""
        ...

    def global_steps(self) -> dict[str, int]:
        """The authoritative value of every step."""
        ...

    def trained(self) -> pb.GetGlobalStepReply:
        """What this client's task has trained since the run was opened."""
        ...

    def begin(
        self,
        *,
        sequencer: int = ...,
        open: bool,
        expected_tasks: Sequence[str] = ...,
        ledger: bytes = ...,
        run: RunIdentity = ...,
        take_over: bool = ...,
    ) -> int:
        """Begin a new incarnation on all PS tasks."""
        ...

    def declare(self, variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl]) -> None:
        """Make Variables and optimizers known to the PS tasks that hold them."""
        ...

    def open(self, limits: Sequence[StopLimit] = ...) -> dict[str, int]:
        """Let everybody in, with these stop limits in force."""
        ...

    def finish(self) -> list[str]:
        """Declare the job done, and give the tasks that are still there."""
        ...

    def close(self) -> None:
        """Leave the run."""
        ...

    def pull(self, reads: Sequence[Read]) -> list[Any]:
        """Read values, all in one consistent read."""
        ...

    def push(self, push: Push) -> PushResult:
        """Push changes, exactly once."""
        ...

    def snapshot(self) -> Snapshot:
        """Take a consistent snapshot of all shards."""
        ...

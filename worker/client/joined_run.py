"""A client's knowledge of the run that it takes part in.

Layer: worker. Threads: its owner's lock guards it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import FailedPreconditionError, LostStateError, OpError, UnavailableError
from globalstep.wire.known_progress import KnownProgress
from globalstep.wire.transports import Transport

#: How long a process that has been asked to end waits for an answer that a task which is well gives at once.
SHUTDOWN_SECS = 3.0


@dataclass(slots=True)
class Shutdown:
    """Whether the process has been asked to end: no call is tried again then, and no silent task is waited for.

    Set by a signal handler, so it takes no lock.
    """

    asked: bool = False

    def ask(self) -> None:
        """Ask the process to end. Safe in a signal handler."""
        self.asked = True


@dataclass(slots=True)
class JoinedRun:
    """A client's knowledge of the run that it takes part in."""

    client: str
    transports: Sequence[Transport]
    incarnation: int = 0
    sequencer: int = 0
    #: Of the run; before the client knows one, of those that it begins.
    policy: RunPolicy = field(default_factory=RunPolicy)
    #: Variable -> shard, in order of declaration.
    where: dict[str, int] = field(default_factory=dict)
    #: Whether a PS task that lost its state comes back to it from a log.
    logged: bool = False
    directory: str = ""
    #: How many tasks of the cluster run sessions, this one among them; 0 where not known.
    workers: int = 0
    #: By how many pushes this client may be ahead of the slowest worker; None where it does not wait.
    max_lead: int | None = None
    #: What this process has heard of the run's decisions, in this incarnation and those before it.
    known_progress: KnownProgress = field(default_factory=KnownProgress)
    identity: RunIdentity = NO_RUN
    #: Whether a PS task, which cannot be reached, seems to have ended with the job.
    gone: Callable[[int], bool] = lambda _: False
    #: Shared by all that belongs to the client: what reads a snapshot has a JoinedRun of its own.
    shutdown: Shutdown = field(default_factory=Shutdown)

    #: Of the process that made it: threads, connections and push ids are its own.
    pid: int = field(default_factory=os.getpid)

    def check_process(self) -> None:
        """Refuse a forked child: what it pushed would count as its parent's push.

        Raises:
            FailedPreconditionError: If it is one.
        """
        if os.getpid() != self.pid:
            raise FailedPreconditionError(
                f"Client {self.client} belongs to process {self.pid}, which made it; process {os.getpid()} is forked "
                "from that one, and can use neither it nor its session. Make a session in the child, after the fork."
            )

    def take_policy(self, policy: RunPolicy) -> None:
        """Take note of the run's policy."""
        self.policy, self.logged = policy, policy.durability == "log"
        self.max_lead = policy.max_staleness if policy.staleness == "wait" else None

    def recover_from(self, error: OpError, shard: int) -> OpError:
        """Do what can be done about an error before its call is tried again.

        Returns:
            Why the call is to be tried again: `error`, or what is in the way of recovering from it.

        Raises:
            LostStateError: `error` itself, where there is no log; or why a log is of no use.
            UnavailableError: `error` itself, where this PS task will not answer any more.
            OpError: `error` itself, where the process is to end.
            AbortedError: If the run is in another incarnation.
        """
        # Errors are raised again as copies: one that a frame of its own refers to keeps what its frames hold, values
        # too, until a collection.
        if self.shutdown.asked:
            raise copy.copy(error) from None
        if not isinstance(error, LostStateError):
            if self.gone(shard):
                raise copy.copy(error) from None
            return error
        if not self.logged:
            raise copy.copy(error) from None
        try:
            self.recover(self.incarnation, self.sequencer, self.directory, self.identity.id)
        except UnavailableError as obstacle:
            return obstacle  # the call is tried again, and comes here again
        return error

    def recover(self, incarnation: int, sequencer: int, directory: str, run: str) -> None:
        """Bring PS tasks that hold nothing back to what their logs say; see recovering.recover_lost."""
        from globalstep.worker.client.recovering import recover_lost

        recover_lost(self.transports, incarnation, sequencer, directory, run)

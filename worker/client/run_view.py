"""A client of a run and what it has heard of it: incarnation, Variables, who declared them, and which run it is.

Below `worker/client/membership.py`, which begins, opens and leaves runs.

Layer: worker. Threads: a RunView is thread-safe, and owns a heartbeat thread.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.credentials import new_client_id
from globalstep.wire import codec
from globalstep.wire.declarations import VariableDecl
from globalstep.wire.protocol_version import check_protocol, own_protocol
from globalstep.wire.transports import Transport
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.attendance import Attendance
from globalstep.worker.client.control_calls import ControlCalls
from globalstep.worker.client.declared_alike import RunSide
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.protocol.push_protocol import PushProtocol, Run
from globalstep.worker.protocol.splitting import Splitter

__all__ = ["CONTROL_SECS", "RETRY_SECS", "JournalStore", "RunView"]

#: How long an unreachable PS task is tried before the session is told.
RETRY_SECS = 30.0
#: Deadline of a control call.
CONTROL_SECS = 10.0


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


def _any_run(run: RunIdentity) -> bool:
    """Join whatever run there is."""
    return True


class RunView(Attendance):
    """A client's part in a run, without its values. Thread-safe.

    Args:
        transports: To every PS task, in order.
        task: "/job:worker/task:1", so that others can name it; "" where not known.
        clock: Time.
        rng: Jitter of retries.
        retry_secs: How long an unreachable PS task is tried.
        member: Whether PS tasks are to wait for it: it keeps a lease. A tool that only looks is none.
        policy: Of the runs that it begins; the default where not given.
        wire: How its numbers cross the wire; as they are where not given.
        client_id: One that no other client ever has; by default a random one, bound to this process's session secret.

    Attributes:
        client_id: Who this is in every push id; new with every client.
        task: As given.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        task: str = "",
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        retry_secs: float = RETRY_SECS,
        member: bool = True,
        policy: RunPolicy | None = None,
        wire: WireOptions | None = None,
        client_id: str = "",
    ) -> None:
        self.client_id = client_id or new_client_id()
        # Guards _run and _protocol: one push, pull or snapshot at a time. Calls are made under it: it is
        # what gives this client's pushes their order.
        self._lock = threading.RLock()
        self._run = Run(self.client_id, list(transports))
        self._retry_secs = retry_secs
        self._clock = clock
        self._rng = rng or random.Random()
        self._protocol = PushProtocol(self._run, retry_secs, clock, self._rng, wire)
        self._calls = ControlCalls(self._run, retry_secs, clock, self._rng)
        self._policy = policy or RunPolicy()
        self._splitter = Splitter()
        self._variables: dict[str, VariableDecl] = {}
        # The run's, as a PS task has them, and who declared them.
        self._optimizers: Sequence[pb.OptimizerDecl] = ()
        self._declared_by = ""
        super().__init__(self._run, self._calls, Heartbeat(self._run.transports, self.client_id, task, clock), task)
        self._run.gone, self._heartbeat.haste = self._heartbeat.gone, self._run.haste
        #: Where this client is the chief's: who stores the run's journal. It is stopped before the client leaves.
        self.journal: JournalStore | None = None
        self._closed = False
        #: Says whether the run that the PS tasks hold may be joined; else this client knows none.
        self.accepts: Callable[[RunIdentity], bool] = _any_run
        #: The run that it is about to join or to begin, as far as its task knows.
        self.means = NO_RUN
        if member:
            self._heartbeat.start()

    @property
    def shards(self) -> int:
        """How many PS tasks there are."""
        return len(self._run.transports)

    @property
    def sequencer(self) -> int:
        """Index of the PS task that orders pushes."""
        return self._run.sequencer

    @property
    def incarnation(self) -> int:
        """The incarnation that this client is a member of; 0 before it knows one."""
        return self._run.incarnation

    @property
    def run_identity(self) -> RunIdentity:
        """The run that this client is a member of; without an id before it knows one."""
        return self._run.identity

    @property
    def has_task(self) -> bool:
        """Whether this client has said that it trains as its task."""
        return self._heartbeat.takes_task

    def take_task(self) -> None:
        """Say from now on, and now, that this client trains as its task, which no other process does."""
        self._heartbeat.takes_task = True
        self._heartbeat.beat()

    @property
    def where(self) -> Mapping[str, int]:
        """Declared Variable -> index of its PS task; of a split one, that of its first part, and each part's too."""
        return self._run.where

    @property
    def variables(self) -> Mapping[str, VariableDecl]:
        """Declared Variables, as this client last heard of them."""
        return self._variables

    @property
    def labels(self) -> list[str]:
        """What messages call the PS tasks, in order."""
        return [transport.label for transport in self._run.transports]

    @property
    def addresses(self) -> list[str]:
        """Where the PS tasks are reached, in order; "" in process."""
        return [transport.address for transport in self._run.transports]

    # ---- The run ------------------------------------------------------------------------------

    def statuses(self, timeout_secs: float = CONTROL_SECS, brief: bool = False) -> list[pb.StatusReply | OpError]:
        """Ask every PS task what it is, at once.

        Args:
            timeout_secs: How long one may take.
            brief: Leave out Variables and optimizers.

        Returns:
            In order of tasks: its answer, or why there is none.
        """
        request = pb.StatusRequest(brief=brief, protocol=own_protocol())
        calls = [transport.unary("Status", request, timeout_secs) for transport in self._run.transports]
        out: list[pb.StatusReply | OpError] = []
        for call in calls:
            try:
                out.append(call.result())
            except OpError as error:
                out.append(error)
        return out

    def refresh(self, timeout_secs: float = CONTROL_SECS) -> list[pb.StatusReply]:
        """Learn the run's incarnation and Variables from all PS tasks.

        Returns:
            Their statuses, in order.

        Raises:
            UnavailableError: If one cannot be reached.
        """
        request = pb.StatusRequest(protocol=own_protocol())
        asked = self._calls.each("Status", dict.fromkeys(range(self.shards), request), timeout_secs)
        found = [asked[shard] for shard in range(self.shards)]
        for label, status in zip(self.labels, found, strict=True):
            check_protocol(status.protocol, "this client", label)
        self._heartbeat.introduce()
        with self._lock:
            incarnations = {status.incarnation for status in found}
            held = RunIdentity.decode(found[0].run)
            if len(incarnations) == 1 and found[0].incarnation and self.accepts(held):
                self._adopt(found[0].incarnation, found[0].sequencer, held)
                self._run.logged = found[0].policy.durability == "log"
                self._run.directory = found[0].directory
                for index, status in enumerate(found):
                    for message in status.variables:
                        self._know(replace(codec.decode_variable(message), shard=index))
                self._optimizers = found[0].optimizers
                self._declared_by = found[0].chief.task or f"client {found[0].owner}"
        return found

    def run_side(self) -> RunSide:
        """Give what the run has declared, as this client last heard, for a comparison with a program's graph."""
        with self._lock:
            mine = f"{self.task or f'client {self.client_id}'} on {socket.gethostname()}"
            theirs = self._declared_by or "another program"
            optimizers = [codec.decode_optimizer(item) for item in self._optimizers]
            return RunSide(mine, theirs, dict(self._variables), optimizers)

    def _know(self, decl: VariableDecl) -> None:
        """Take note of a Variable as a PS task has it. Caller holds the lock."""
        self._run.where[decl.name] = decl.shard
        whole = self._splitter.learn(decl)
        if whole is not None:
            self._run.where[whole.name] = whole.shard
        if whole is not None or not decl.whole:
            self._variables[(whole or decl).name] = whole or decl

    def _adopt(self, incarnation: int, sequencer: int, run: RunIdentity) -> None:
        """Become a member of an incarnation. Caller holds the lock."""
        if incarnation != self._run.incarnation:
            self._run.where.clear()
            self._variables.clear()
            self._splitter.clear()
            self._protocol.start_over()
        self._run.incarnation = incarnation
        self._run.told.newest = max(self._run.told.newest, incarnation)
        self._run.identity = self._heartbeat.run = run
        self._run.sequencer = self._heartbeat.sequencer = sequencer

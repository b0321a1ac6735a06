"""The run as a client's PS tasks tell of it: incarnation, Variables, who declared them, and which run it is.

Layer: worker. Threads: a RunView is thread-safe.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.declarations import OptimizerDecl, VariableDecl
from globalstep.wire.protocol_version import check_protocol, own_protocol
from globalstep.wire.transports import ask_all
from globalstep.worker.client.calls import ControlCalls
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_protocol import PushProtocol
from globalstep.worker.protocol.splitting import Splitter, whole_name

#: Deadline of a control call.
CONTROL_SECS = 10.0


@dataclass(frozen=True, slots=True)
class RunSide:
    """A program and its run, whose declarations are compared.

    Attributes:
        mine: What messages call this program, e.g. "/job:worker/task:1".
        theirs: What they call the one that declared the run's model, e.g. "/job:chief/task:0".
        variables: The run's, by name; split ones as programs see them.
        optimizers: The run's, as a PS task has them.
    """

    mine: str
    theirs: str
    variables: Mapping[str, VariableDecl]
    optimizers: Iterable[OptimizerDecl] = ()

    def differ(self, what: str, here: str, there: str) -> InvalidArgumentError:
        """Give the error that names both sides of a difference."""
        return InvalidArgumentError(
            f"{what} is {here} in this program ({self.mine}), but the run has it as {there} (declared by "
            f"{self.theirs}). Nothing was pushed. All programs of a run build the same model: start this one with the "
            "same code and the same flags as the others, or give what is its own another name."
        )


def _any_run(run: RunIdentity) -> bool:
    """Join whatever run there is."""
    return True


class RunView:
    """A client's view of its run, and its questions to the PS tasks about it. Thread-safe.

    Args:
        joined: What the client's calls use of it.
        calls: Makes calls to the PS tasks.
        protocol: Of the client; forgets what belongs to another incarnation.
        heartbeat: Of the client; says which run it takes part in.
        task: "/job:worker/task:1"; "" where not known.

    Attributes:
        joined: As given.
        transports: To every PS task, in order.
        known_progress: What this process has heard of the run's decisions, in this incarnation and those before it.
        accepts: Says whether the run that the PS tasks hold may be joined; else this client knows none.
        means: The run that the client is about to join or to begin, as far as its task knows.
        session_tasks: Names of all tasks of the ClusterSpec that run sessions; empty where not known.
        lock: The client's.
        splitter: What is known of split Variables. Used under the lock.
        variables: Declared Variables, as this client last heard of them; may grow.
    """

    def __init__(
        self, joined: JoinedRun, calls: ControlCalls, protocol: PushProtocol, heartbeat: Heartbeat, task: str
    ) -> None:
        # The client's. Guards all below, `joined` and the protocol: one push, pull or snapshot at a time. Calls are
        # made under it: it is what gives this client's pushes their order.
        self.lock = threading.RLock()
        self.joined, self.transports, self.known_progress = joined, joined.transports, joined.known_progress
        self._calls = calls
        self._protocol = protocol
        self._heartbeat = heartbeat
        self._task = task
        self.splitter = Splitter()
        self.variables: dict[str, VariableDecl] = {}
        # The run's, as a PS task has them, and who declared them.
        self._optimizers: Sequence[pb.OptimizerDecl] = ()
        self._declared_by = ""
        self.accepts: Callable[[RunIdentity], bool] = _any_run
        self.means = NO_RUN
        self.session_tasks: Sequence[str] = ()

    @property
    def identity(self) -> RunIdentity:
        """The run that this client is a member of; without an id before it knows one."""
        return self.joined.identity

    @property
    def labels(self) -> list[str]:
        """The names of the PS tasks in messages, in order."""
        return [transport.label for transport in self.joined.transports]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the PS tasks, in order; "" in process."""
        return [transport.address for transport in self.joined.transports]

    def statuses(self, timeout_secs: float = CONTROL_SECS, brief: bool = False) -> list[pb.StatusReply | OpError]:
        """Ask every PS task what it is, at once.

        Returns:
            In order of tasks: its answer, or why there is none.
        """
        request = pb.StatusRequest(brief=brief, protocol=own_protocol())
        return [status for _, status in ask_all(self.joined.transports, "Status", request, timeout_secs)]

    def refresh(self, timeout_secs: float = CONTROL_SECS) -> list[pb.StatusReply]:
        """Learn the run's incarnation and Variables from all PS tasks.

        Returns:
            Their statuses, in order.

        Raises:
            UnavailableError: If one cannot be reached.
        """
        request = pb.StatusRequest(protocol=own_protocol())
        statuses = self._calls.all("Status", request, timeout_secs)
        for label, status in zip(self.labels, statuses, strict=True):
            check_protocol(status.protocol, "this client", label)
        self._heartbeat.introduce()
        with self.lock:
            incarnations = {status.incarnation for status in statuses}
            held = RunIdentity.decode(statuses[0].run)
            if len(incarnations) == 1 and statuses[0].incarnation and self.accepts(held):
                self.adopt(statuses[0].incarnation, statuses[0].sequencer, held)
                self.joined.take_policy(codec.decode_policy(statuses[0].policy))
                self.joined.directory = statuses[0].directory
                for index, status in enumerate(statuses):
                    for message in status.variables:
                        self.know(replace(codec.decode_variable(message), shard=index))
                self._optimizers = statuses[0].optimizers
                self._declared_by = statuses[0].chief.task or f"client {statuses[0].owner}"
        return statuses

    def require(self, names: Iterable[str]) -> None:
        """Ask the PS tasks where Variables are that this client has not heard of. Caller holds the lock.

        Raises:
            FailedPreconditionError: If one of them is not declared.
            AbortedError: If a PS task has lost its state.
        """
        joined, names = self.joined, tuple(names)
        is_known = all(map(joined.where.__contains__, names))
        unknown = None if is_known else next(name for name in names if name not in joined.where)
        if unknown is not None or not joined.incarnation:
            statuses = self.refresh()
            if unknown is not None and unknown not in joined.where:
                if joined.incarnation and any(status.incarnation != joined.incarnation for status in statuses):
                    raise AbortedError("A PS task lost its state; wait until the chief has restored the run.")
                raise FailedPreconditionError(f"Attempting to use uninitialized value {unknown}")

    def uninitialized(self) -> list[str]:
        """Names of declared Variables that have no value yet."""
        missing = [name for status in self.refresh() for name in status.uninitialized]
        return list(dict.fromkeys(whole_name(name) for name in missing))

    def side(self) -> RunSide:
        """Give what the run has declared, as this client last heard, for a comparison with a program's graph."""
        with self.lock:
            mine = f"{self._task or f'client {self.joined.client}'} on {socket.gethostname()}"
            theirs = self._declared_by or "another program"
            optimizers = [codec.decode_optimizer(item) for item in self._optimizers]
            return RunSide(mine, theirs, dict(self.variables), optimizers)

    def know(self, decl: VariableDecl) -> None:
        """Take note of a Variable as a PS task has it. Caller holds the lock."""
        self.joined.where[decl.name] = decl.shard
        whole = self.splitter.learn(decl)
        if whole is not None:
            self.joined.where[whole.name] = whole.shard
        if whole is not None or not decl.whole:
            self.variables[(whole or decl).name] = whole or decl

    def adopt(self, incarnation: int, sequencer: int, run: RunIdentity) -> None:
        """Become a member of an incarnation. Caller holds the lock."""
        joined = self.joined
        if incarnation != joined.incarnation:
            joined.where.clear()
            self.variables.clear()
            self.splitter.clear()
            self._protocol.start_over()
            joined.known_progress.take_in()
        joined.incarnation = incarnation
        joined.known_progress.newest = max(joined.known_progress.newest, incarnation)
        joined.identity = self._heartbeat.run = run
        joined.sequencer = self._heartbeat.sequencer = sequencer

    def read_journal(self, request: pb.ReadJournalRequest, deadline_secs: float) -> pb.ReadJournalReply:
        """Ask the sequencer for what it has written down of pushes; see chief/journal/journal_keeping.py.

        Other calls of this client do not wait for it.
        """
        request.client = self.joined.client
        reply: pb.ReadJournalReply = self._calls.one("ReadJournal", self.joined.sequencer, request, deadline_secs)
        return reply

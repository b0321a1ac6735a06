"""The process of a PS task: a grpc server around a shard, sockets beside it, health, a clean end.

Layer: ps. Threads: the caller's of `join`, grpc's, one each named "globalstep-settler" and
"globalstep-slow-senders", and those of the SocketServer.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import grpc

from globalstep.cluster.cluster import is_port
from globalstep.errors import AlreadyExistsError, InvalidArgumentError
from globalstep.ps.access.door import KEPT_SEATS, SPARE_THREADS, CallThreads, Door
from globalstep.ps.access.security import Security, SecurityOptions
from globalstep.ps.aggregates.closing import Closing
from globalstep.ps.aggregates.contributions import Contributions
from globalstep.ps.aggregates.contributors import Contributors
from globalstep.ps.budget import Budget
from globalstep.ps.ledger.journal import Journal
from globalstep.ps.members.ending import Patience, Vigil
from globalstep.ps.members.leads import Leads
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.service.probes import Health
from globalstep.ps.service.servicer import generic_handler
from globalstep.ps.service.settler import Settler, asking
from globalstep.ps.service.slow_senders import SlowSenders
from globalstep.ps.service.socket_server import SocketServer
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store.cores import Cores, default_threads
from globalstep.ps.store.snapshots import Snapshots
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.faults import NO_FAULTS, Faults
from globalstep.runtime.machine_memory import available_bytes, memory_bytes
from globalstep.runtime.metrics_port import Collector, MetricsPort, open_port
from globalstep.runtime.waiting import wait_announced
from globalstep.security.rpc import SERVER_OPTIONS, connection_limit

_log = logging.getLogger(__name__)

# What a shard loads when it first needs it, under its lock: in a task of its own it is there by then.
_LOADED = (Closing, Contributions, Contributors, Journal, Leads, Snapshots)

#: Calls that wait for a thread, at most.
_MOST_WAITING_CALLS = 256
#: How often a task looks who is still there: each look goes through all clients.
_LOOK_SECS = 0.5
#: Exit code of a PS task that was asked to end before the end of the job: an engine should start it again.
EXIT_TERMINATED = 143
#: The least that is taken for a limit, where memory is short already.
_LEAST_BYTES = 64 << 20
#: The environment variable that sets PSOptions.tcp_port.
TCP_PORT_VARIABLE = "GLOBALSTEP_TCP_PORT"


def default_message_bytes() -> int:
    """Give the default limit of a message's tensor bytes: half of the machine's memory, or 16 GiB."""
    return min(memory_bytes() // 2, 16 << 30)


def default_limit_bytes() -> int:
    """Give the default limit of what is kept for callers: half of the memory that is free now."""
    return max(available_bytes() // 2, _LEAST_BYTES)


def tcp_port_of(environ: Mapping[str, str]) -> int | None:
    """Read PSOptions.tcp_port from GLOBALSTEP_TCP_PORT: a port, or "none".

    Raises:
        InvalidArgumentError: If it is neither.

    >>> tcp_port_of({"GLOBALSTEP_TCP_PORT": "2223"}), tcp_port_of({"GLOBALSTEP_TCP_PORT": "none"}), tcp_port_of({})
    (2223, None, 0)
    """
    text = environ.get(TCP_PORT_VARIABLE) or "0"
    if text == "none":
        return None
    if not is_port(text):
        raise InvalidArgumentError(f"{TCP_PORT_VARIABLE} is {text!r}; it must be a port from 0 to 65535, or none.")
    return int(text)


@dataclass(frozen=True, slots=True)
class PSOptions:
    """Options of a PS task's server."""

    #: "host:port"; port 0 takes a free one.
    bind: str = "127.0.0.1:0"
    #: Clients that may be connected at once, over gRPC, and as many again beside it: each holds a thread of the server.
    max_clients: int = 512
    #: Largest tensor bytes of one message, and of what is read by one. 0: half of the machine's memory, at most 16 GiB.
    max_message_bytes: int = 0
    #: Most bytes that are kept for callers at a time, see ps/budget.py; beyond it they wait, or are refused. 0: half of
    #: the memory that is free at the start.
    max_inflight_bytes: int = 0
    #: Seconds to end in when the process is asked to: half of them for a checkpoint, the rest for calls under way.
    grace_secs: float = 8.0
    #: Threads that share the work of applying a large push.
    apply_threads: int = field(default_factory=default_threads)
    #: Where TCP connections beside gRPC are taken, on the host of `bind`, once a client asks for one; 0 takes a free
    #: port, None takes none of them, and neither does a task with TLS.
    tcp_port: int | None = 0
    #: Where write-ahead logs are, for example on a fast disk; "" for the run's directory.
    log_dir: str = ""
    #: Beyond it the chief is asked for a checkpoint, which makes a write-ahead log shorter; 0: never.
    max_log_bytes: int = 0
    #: Where Prometheus may read its numbers: "PORT" or "HOST:PORT"; "" for nowhere.
    metrics_port: str = ""
    #: How long it waits when no client is there.
    patience: Patience = field(default_factory=Patience)
    #: What it asks of its callers.
    security: SecurityOptions = field(default_factory=SecurityOptions)


class PSServer:
    """A PS task.

    Args:
        options: How it serves.
        clock: Time, for leases and overdue parts.
        faults: What a test makes fail.

    Raises:
        AlreadyExistsError: If the address is taken.
        FailedPreconditionError: If it would serve other machines without TLS, or files for that cannot be used.

    Attributes:
        address: "host:port" that it really serves on.
        shard: Its state.
        authorization: Says who may call it.
    """

    def __init__(
        self, options: PSOptions | None = None, *, clock: Clock = SYSTEM_CLOCK, faults: Faults = NO_FAULTS
    ) -> None:
        options = options or PSOptions()
        self._options = options
        self._clock = clock
        security = Security(options.security, options.bind, clock)
        budget = Budget(options.max_inflight_bytes or default_limit_bytes(), clock, available=available_bytes)
        self.shard = Shard(clock, budget=budget)
        self.shard.resources.cores = Cores(options.apply_threads)
        limit_bytes = options.max_message_bytes or default_message_bytes()
        self.shard.limit_reads(limit_bytes)
        self.shard.members.presence.most_leases = 4 * options.max_clients
        handler = Handler(self.shard, faults, limit_bytes)
        self.authorization = handler.authorization = security.authorization
        self.control = Control(handler, uuid.uuid4().hex, socket.gethostname(), log_dir=options.log_dir)
        self.control.durability.most_bytes = options.max_log_bytes
        self._slow = SlowSenders(SYSTEM_CLOCK, budget.is_short)
        self._door = door = Door(security.authorization, self._slow, options.max_clients)
        beyond = KEPT_SEATS + SPARE_THREADS
        self._calls = CallThreads(door.max_calls + beyond, "globalstep-rpc")
        self._streams = CallThreads(options.max_clients + beyond, "globalstep-stream")
        self._server = grpc.server(
            self._calls,
            # Beyond it gRPC itself refuses calls, before anybody looks at them: so many never wait for a thread.
            maximum_concurrent_rpcs=options.max_clients + door.max_calls + 2 * beyond + _MOST_WAITING_CALLS,
            options=[
                *SERVER_OPTIONS,
                ("grpc.so_reuseport", 1 if os.environ.get("GLOBALSTEP_LAUNCH") else 0),
                ("grpc.max_allowed_incoming_connections", connection_limit(options.max_clients)),
            ],
        )
        self._health = Health()
        handlers = [generic_handler(self.control, limit_bytes, door, self._streams), self._health.handler()]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        # Asked before gRPC, which would write its own lines to stderr. A launcher holds its tasks' ports for them.
        if not os.environ.get("GLOBALSTEP_LAUNCH") and (why := _why_not_bound(options.bind)):
            raise _cannot_serve(options.bind, why)
        try:
            port = security.add_port(self._server, options.bind)
        except RuntimeError:
            port = 0
        if port == 0:
            raise _cannot_serve(options.bind, _why_not_bound(options.bind) or "gRPC cannot listen there")
        self.address = security.authorization.address = f"{options.bind.rpartition(':')[0]}:{port}"
        self._settler = Settler(self.shard, clock, asking(lambda: security.credentials))
        self.control.recovered = self._settler.settle_soon
        self._vigil = Vigil(self.shard, options.patience, clock)
        self._alone_code: int | None = None
        self._stop_asked = False
        # When a task that was asked to end does so anyhow, and when it looks next who is here.
        self._leave_at, self._look_at = math.inf, -math.inf
        self._metrics: MetricsPort | None = None
        self._sockets = SocketServer(
            self.control.handler,
            clock,
            host=options.bind.rpartition(":")[0],
            port=options.tcp_port if options.security.credentials.tls is None else None,
            limit_bytes=limit_bytes,
            max_connections=options.max_clients,
            slow=self._slow,
        )
        self.control.open_lane = self._sockets.open

    def start(self) -> None:
        """Begin to serve; returns at once."""
        self._slow.start()
        self._server.start()
        self._health.serves = True
        self._settler.start()
        self._metrics = open_port(self._options.metrics_port, self._collector)
        _log.debug("PS task serves on %s", self.address)

    def _collector(self) -> Collector:
        from globalstep.ps.service.metrics import PSCollector

        return PSCollector(self.control.brief_status)

    def join(self, poll_secs: float = 0.1, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Serve until the job is done and everybody has left, or is abandoned, or `stop` is called; then close down.

        Args:
            poll_secs: Between two looks, seconds.
            meanwhile: Called at each look.
        """
        while not self._clock.wait(self.control.ended, poll_secs):
            self.attend()
            meanwhile()
        self.shut_down()

    def attend(self) -> bool:
        """Look once how the run stands, as `join` does ten times a second; says whether this task is to end now."""
        if self.shard.done or self._clock.monotonic() >= self._look_at:
            self._name_losses()
            self._alone_code = self._vigil.over(self.control.handler.traffic.view())
            self._look_at = self._clock.monotonic() + _LOOK_SECS
        if self._stop_asked and self._leave_at == math.inf:
            self.shard.members.drain()
            # Half of the time is for the chief, the other for calls under way.
            self._leave_at = self._clock.monotonic() + self._options.grace_secs / 2
        late = self._clock.monotonic() >= self._leave_at
        if self._alone_code is not None or late or (self._stop_asked and not self.shard.awaits_checkpoint()):
            self.control.ended.set()
        return self.control.ended.is_set()

    def pause(self, secs: float) -> None:
        """Wait between two looks, or until this task is to end."""
        self._clock.wait(self.control.ended, secs)

    def shut_down(self) -> None:
        """Close down, once `attend` has said so."""
        self.control.durability.end()
        self.close()

    @property
    def exit_code(self) -> int:
        """The exit status for this task's process, once `join` has returned."""
        return self._alone_code if self._alone_code is not None else 0 if self.shard.done else EXIT_TERMINATED

    def _name_losses(self) -> None:
        """Log the clients that have been silent for longer than their leases."""
        for lost in self.shard.members.find_losses():
            steps = ", ".join(f"{name} {value}" for name, value in sorted(lost.steps.items()))
            _log.warning(
                "%s is gone: nothing was heard of it for %.0f s.%s",
                lost.task or f"Client {lost.client}",
                lost.silent_secs,
                f" It had made {lost.pushes} pushes here, the last at {steps}." if steps else "",
            )

    def stop(self) -> None:
        """Ask `join` to hand over and to return. Safe in a signal handler."""
        # Setting the event takes its lock, which the very thread that the signal interrupts may hold.
        self._stop_asked = True

    def _why_calls_last(self) -> str:
        here = [f"{one.task or one.client} (heard {one.silent_secs:.0f} s ago)" for one in self.shard.members.clients()]
        who = (
            f"one of {', '.join(here[:3])}{' and others' if len(here) > 3 else ''}"
            if here
            else "a client that has left"
        )
        return (
            f"{who} is in the middle of a call: it sends or takes a large value slowly, a snapshot is being written "
            "to slow storage, or a call waits for its write to the log"
        )

    def close(self) -> None:
        """Stop serving: calls under way get their grace period. Safe to call twice."""
        self._health.serves = False
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._settler.stop()
        stopped: threading.Event = self._server.stop(self._options.grace_secs)
        self._sockets.close(self._options.grace_secs)
        calls = f"the calls that are under way at {self.address}"
        wait_announced(stopped.wait, calls, why=self._why_calls_last)
        self._calls.join(calls, self._why_calls_last)
        self._streams.join(calls, self._why_calls_last)
        self._slow.stop()
        self.control.durability.close()
        self.shard.resources.cores.close()


def _why_not_bound(bind: str) -> str:
    """Say why no process can listen at "host:port" of this machine now; "" where one can."""
    host, _, port = bind.rpartition(":")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return f"this machine knows no address of the name {host!r}"
    why = ""
    for family, kind, protocol, _, address in addresses:
        with contextlib.closing(socket.socket(family, kind, protocol)) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
                tried.listen(1)
            except OSError as error:
                why = why or _reason(error, host, port)
            else:
                return ""
    return why


def _reason(error: OSError, host: str, port: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"the address is taken; `ss -ltnp sport = :{port}` says by which process"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine"
    if error.errno == errno.EACCES:
        return f"port {port} is for the system's own services, which root starts"
    return error.strerror or str(error)


def _cannot_serve(bind: str, why: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"Cannot serve on {bind}: {why}. Give this PS task another address, or end what is there."
    )

"""The data plane beside gRPC: sockets that carry the same messages to the same handler.

A client asks for one by OpenLane, over gRPC; the answer's token admits one connection. Nothing listens before
a client has asked. docs/design/transports.md has the whole story.

Layer: ps. Threads: one that accepts for each kind of socket in use, "globalstep-accept-unix" and
"globalstep-accept-tcp", and one for each connection, "globalstep-connection-N", which take turns
(`ps/service/turns.py`); all owned by the SocketServer.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import itertools
import logging
import secrets
import select
import socket
import sys
import threading
from collections import deque
from dataclasses import dataclass, field

from globalstep.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import CALLER, Caller
from globalstep.ps.access.door import check_share, whose_seat
from globalstep.ps.access.log_limit import LogLimit
from globalstep.ps.access.strangers import Stranger, Strangers
from globalstep.ps.aggregates.step_waits import OpenCall, ParkedCall
from globalstep.ps.service.handler import Handler
from globalstep.ps.service.served_connection import ServedConnection
from globalstep.ps.service.slow_senders import SlowSenders
from globalstep.ps.service.turns import Turns
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.connection_proofs import CLAIM_BYTES, NAME_BYTES, TOKEN_BYTES, answer, name_of, proof
from globalstep.security.peer_uid import is_ours, uid_of_connection, uid_of_peer, uid_of_unix
from globalstep.wire.shared_memory import is_offered

_log = logging.getLogger(__name__)

#: How long a token waits for its connection.
_TOKEN_SECS = 10.0
#: How long a connection may take to prove it.
_HELLO_SECS = 5.0
#: Connections that have not proven it yet: the oldest is closed for one more, since clients do so at once.
_MOST_STRANGERS = 256
#: What the system lacks for a while, or what came of one connection only; and how long it accepts none then.
_PASSES = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ECONNABORTED,
        errno.EINTR,
        errno.EPERM,
        errno.EPROTO,
    }
)
_PAUSE_SECS = 0.1


@dataclass(frozen=True, slots=True)
class GivenToken:
    """A token that waits for its connection.

    Attributes:
        token: It.
        until: When it is over.
        kind: For what kind of connection it was given.
        caller: To whom.
        user: The user of this machine to whom it was given; None where that is not known.
    """

    token: bytes = field(repr=False)
    until: float
    kind: pb.LaneKind.ValueType
    caller: Caller
    user: int | None


class SocketServer:
    """Serves data-plane calls on sockets. Thread-safe.

    Args:
        handler: Carries out the requests.
        clock: Time, for tokens.
        host: Where TCP connections are taken.
        port: On which port; 0 takes a free one, None takes no TCP connections: a task with TLS takes none.
        limit_bytes: Largest tensor bytes of one message.
        max_connections: Connections that may be open at once.
        slow: Cuts off connections whose messages do not come on; None for never.

    Attributes:
        slow: As given, or one that does nothing.
        said: Keeps lines that strangers cause out of the log.
    """

    def __init__(
        self,
        handler: Handler,
        clock: Clock,
        *,
        host: str,
        port: int | None,
        limit_bytes: int,
        max_connections: int,
        slow: SlowSenders | None = None,
    ) -> None:
        self.slow = slow or SlowSenders(clock, handler.budget.is_short)
        self.said = LogLimit(SYSTEM_CLOCK)
        self.handler = handler
        self.limit_bytes = limit_bytes
        # None where each connection is served by its own thread.
        self._turns = Turns(handler) if hasattr(select, "epoll") else None
        self._clock = clock
        self._host = host
        self._port = port
        self._max_connections = max_connections
        self._numbers = itertools.count(1)
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._listeners: dict[pb.LaneKind.ValueType, _Listener] = {}
        self._threads: set[threading.Thread] = set()
        self._connections: set[ServedConnection] = set()
        #: Those that wait for their connection, by name.
        self._tokens: dict[bytes, GivenToken] = {}
        self._closed = False

    def open(self, kind: pb.LaneKind.ValueType, unused: bytes = b"") -> tuple[str, bytes]:
        """Be ready for one connection more.

        Args:
            kind: Of what kind.
            unused: A token that was given before, for a connection that could not be made; b"" for none.

        Returns:
            Where to connect, and the token to prove there: see pb.OpenLaneReply.

        Raises:
            UnimplementedError: If there is no such kind here.
            ResourceExhaustedError: If there are too many connections.
            UnavailableError: If the task is closing down, or cannot listen.
        """
        if kind not in _LISTEN or (kind != pb.LANE_TCP and sys.platform != "linux"):
            raise UnimplementedError(f"This PS task offers no transport of kind {kind}.")
        if kind == pb.LANE_SHM and not is_offered():
            raise UnimplementedError("This PS task is given no memory to share.")
        if kind == pb.LANE_TCP and self._port is None:
            raise UnimplementedError("This PS task takes no TCP connections beside gRPC: TLS, or --tcp-port none.")
        caller = CALLER.get()
        user = None if kind == pb.LANE_TCP else self._user_of(caller)
        with self._lock:
            if self._closed:
                raise UnavailableError("This PS task is closing down.")
            now = self._clock.monotonic()
            self._tokens.pop(name_of(unused), None)
            self._tokens = {name: given for name, given in self._tokens.items() if now < given.until}
            if len(self._connections) + len(self._tokens) >= self._max_connections:
                raise ResourceExhaustedError(
                    f"{self._max_connections} connections are open or asked for; raise --max-clients."
                )
            listening = pb.LANE_TCP if kind == pb.LANE_TCP else pb.LANE_UNIX
            if listening not in self._listeners or self._listeners[listening].ended:
                self._listeners[listening] = self._listen(listening)
            self._check_share(caller)
            given = GivenToken(secrets.token_bytes(TOKEN_BYTES), now + _TOKEN_SECS, kind, caller, user)
            self._tokens[name_of(given.token)] = given
            return self._listeners[listening].address, given.token

    def _user_of(self, caller: Caller) -> int | None:
        """Give the user of this machine who calls by gRPC; None for one from elsewhere."""
        host, _, port = self.handler.authorization.address.rpartition(":")
        # Where all addresses are served, it is not known to which the caller has come.
        if port and host.strip("[]") not in ("", "0.0.0.0", "::"):
            return uid_of_connection(caller.peer, host, int(port))
        return uid_of_peer(caller.peer)

    def _check_share(self, caller: Caller) -> None:
        """Refuse a transport to who has its share of them. Caller holds the lock."""
        whose = whose_seat(caller)
        if whose:
            asked = sum(whose_seat(given.caller) == whose for given in self._tokens.values())
            held = sum(one.whose == whose for one in self._connections)
            check_share(whose, held + asked, self._max_connections)

    def _listen(self, kind: pb.LaneKind.ValueType) -> _Listener:
        """Listen, and start the thread that accepts. Caller holds the lock."""
        try:
            listening, address = _LISTEN[kind](self._host, self._port or 0)
        except OSError as error:
            raise UnimplementedError(f"This PS task cannot listen for {pb.LaneKind.Name(kind)}: {error}") from None
        return _Listener(self, listening, address)

    def host_of(self, accepted: socket.socket, host: str) -> str | None:
        """Say whom a connection is counted for; None, and it is closed, where its user has asked for none.

        Args:
            accepted: The connection.
            host: Where it comes from; "" on a unix socket, where the kernel says whose it is.
        """
        if host:
            return host
        user = uid_of_unix(accepted)
        if self._expects(user):
            return f"uid {user}"
        accepted.close()
        if (more := self.said.due(f"uid {user}")) is not None:
            _log.warning("A connection of uid %s to a unix socket was closed: no client asked.%s", user, more)
        return None

    def answer(self, claimed: bytes) -> bytes | None:
        """Give the answer to a claim, which proves that this task knows the token; None where it names none."""
        with self._lock:
            given = self._tokens.get(claimed[:NAME_BYTES])
        if given is None:
            self._say_not_let_in()
            return None
        return answer(given.token, claimed)

    def take_in(self, accepted: socket.socket, claimed: bytes, proven: bytes) -> None:
        """Start a thread for a connection, if it has proven its token.

        Args:
            accepted: The connection.
            claimed: What it has claimed.
            proven: The proof.

        Raises:
            RuntimeError: If the system gives no thread; the connection is closed.
        """
        with self._lock:
            given = self._tokens.get(claimed[:NAME_BYTES])
            if given is not None and hmac.compare_digest(proven, proof(given.token, claimed)):
                del self._tokens[claimed[:NAME_BYTES]]
                if self._clock.monotonic() < given.until:
                    self._begin(accepted, given)
                    return
        accepted.close()
        self._say_not_let_in()

    def _begin(self, accepted: socket.socket, given: GivenToken) -> None:
        """Start the thread of a connection; raises as `take_in`. Caller holds the lock."""
        name = f"globalstep-connection-{next(self._numbers)}"
        connection = ServedConnection(self, accepted, name, given)
        thread = threading.Thread(target=self._serve, args=(connection,), name=name, daemon=True)
        self._connections.add(connection)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._connections.discard(connection)
            self._threads.discard(thread)
            connection.close()
            raise

    def _say_not_let_in(self) -> None:
        """Say in the log, now and then, that a connection was closed since it has proven no valid token."""
        if (left := self.said.due("token")) is not None:
            _log.warning("A connection without a valid token was closed.%s", left)

    def _expects(self, user: int | None) -> bool:
        """Whether a user of this machine may connect: this task's own, root, or one to whom a token was given."""
        if is_ours(user):
            return True
        with self._lock:
            return user is not None and any(given.user == user for given in self._tokens.values())

    def park(self, connection: ServedConnection, call: OpenCall) -> ParkedCall | None:
        """Have a call of a connection wait without a thread; None where this thread is to wait."""
        return None if self._turns is None else self._turns.park(connection, call)

    def _serve(self, connection: ServedConnection) -> None:
        """Welcome a connection, and serve it, or others in its stead, until one of them has ended."""
        try:
            if connection.welcome():
                if self._turns is not None:
                    connection = self._turns.take_part(connection)
                else:
                    while connection.answer():
                        pass
        finally:
            self._end(connection)

    def _end(self, connection: ServedConnection) -> None:
        """Close a connection, and take note that this thread ends with it."""
        connection.close()
        with self._lock:
            self._connections.discard(connection)
            self._threads.discard(threading.current_thread())

    @property
    def closing(self) -> bool:
        """Whether no more calls are to be begun."""
        return self._closed

    def close(self, grace_secs: float) -> None:
        """End all connections and threads. Safe to call twice.

        Args:
            grace_secs: Time for calls under way.
        """
        with self._lock:
            self._closed = True
            self._tokens.clear()
            listeners, connections = list(self._listeners.values()), list(self._connections)
            threads = list(self._threads)
            self._listeners.clear()
        for listener in listeners:
            listener.close()
        for connection in connections:
            connection.end(socket.SHUT_RD)
        until = self._clock.monotonic() + grace_secs
        for thread in threads:
            thread.join(max(0.0, until - self._clock.monotonic()))
        for connection in connections:
            connection.end(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        if self._turns is not None:
            self._turns.close()


class _Listener:
    """A listening socket and its thread, which goes on whatever the system lacks for a while.

    Attributes:
        address: Where it listens.
        ended: Whether it listens no more.
    """

    def __init__(self, server: SocketServer, listening: socket.socket, address: str) -> None:
        self.address = address
        self.ended = False
        self._stop = threading.Event()
        self._server = server
        self._socket = listening
        name = "unix" if listening.family == socket.AF_UNIX else "tcp"
        # Until they have proven their token no thread is theirs.
        self._strangers = Strangers(listening, SYSTEM_CLOCK, _HELLO_SECS, server.answer, _MOST_STRANGERS)
        # Who connects may be gone again before it is accepted.
        listening.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"globalstep-accept-{name}", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            accepted, address = self._socket.accept()
        except BlockingIOError:
            return
        host = self._server.host_of(accepted, address[0] if isinstance(address, tuple) else "")
        if host is not None:
            self._strangers.add(accepted, host)

    def _run(self) -> None:
        begun: deque[Stranger] = deque()
        try:
            while not self._stop.is_set():
                try:
                    while begun:
                        stranger = begun.popleft()
                        shown = stranger.shown
                        self._server.take_in(stranger.connection, shown[:CLAIM_BYTES], shown[CLAIM_BYTES:])
                    accepts, came = self._strangers.ready()
                    begun.extend(came)
                    if accepts:
                        self._accept()
                except (OSError, RuntimeError, MemoryError) as error:
                    if self._stop.is_set():
                        return  # `close` has shut it down
                    if isinstance(error, OSError) and error.errno not in _PASSES:
                        _log.error("%s listens no more: %s", self._thread.name, error)
                        return
                    if (more := self._server.said.due(type(error).__name__)) is not None:
                        _log.warning("%s cannot take a connection now: %s%s", self._thread.name, error, more)
                    SYSTEM_CLOCK.wait(self._stop, _PAUSE_SECS)
        finally:
            self.ended = True
            for stranger in begun:
                stranger.connection.close()
            self._strangers.close()
            self._socket.close()

    def close(self) -> None:
        self._stop.set()
        # Closing alone would not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def _listen_unix(host: str, port: int) -> tuple[socket.socket, str]:
    # A name in the abstract namespace leaves nothing behind, whatever ends the process.
    name = f"globalstep-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind("\0" + name)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening, name


def _listen_tcp(host: str, port: int) -> tuple[socket.socket, str]:
    family, _, _, _, address = socket.getaddrinfo(
        host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    return listening, str(listening.getsockname()[1])


#: Who comes by LANE_SHM comes by the unix socket.
_LISTEN = {pb.LANE_UNIX: _listen_unix, pb.LANE_SHM: _listen_unix, pb.LANE_TCP: _listen_tcp}

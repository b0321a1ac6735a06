"""The transport to a PS task elsewhere: a gRPC channel, and one long-lived connection for the data plane.

That connection is a stream on the channel, or a socket beside it where that is faster (docs/design/transports.md);
the stream carries everything wherever the socket cannot be had.

Layer: worker. Threads: none of its own; grpc has one that feeds the stream. Replies are read by the thread that
waits for one.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import logging
import os
import queue
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
import numpy.typing as npt

from globalstep.errors import OpError, UnauthenticatedError, UnavailableError, error_from_code
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.credentials import Credentials
from globalstep.security.dialing import dial
from globalstep.security.secure_channel import TRIES, BeginningCall, SecureChannel
from globalstep.wire.frames import Assembler, frames_of
from globalstep.wire.message import REPLY_LIMIT_BYTES, Message
from globalstep.wire.transports import chosen_transport
from globalstep.worker.client.calls import POLICIES
from globalstep.worker.transport.connection import Connection, ConnectionTicket, SocketConnection
from globalstep.worker.transport.shm_transport import SharedConnection
from globalstep.worker.transport.socket_choice import CALLED, SOCKETS, choose_socket

_log = logging.getLogger(__name__)

#: Longest time that a data-plane call may take before it is broken off and retried.
CALL_SECS = POLICIES["Exchange"].deadline_secs
_OPEN_SECS = POLICIES["OpenLane"].deadline_secs
#: A socket that has broken is opened again only if it has served for so long.
_SERVED_SECS = 600.0
#: How long a call may take to a task that was given up.
_GIVEN_UP_SECS = 0.5
#: gRPC's words for a port without a listener, of which the address and the system's own words say enough.
_UNREACHED = re.compile(
    r"failed to connect to all addresses; last error: \w+: ipv\d:(\S+): "
    r"Failed to connect to remote host: (?:connect: )?(.*?)(?: \(\d+\))?"
)
#: gRPC's words for a server that has as many calls as it may, and when to try again.
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded!"
_BUSY_MILLIS = 500


class _Stream(Connection):
    """One Exchange stream. Thread-safe."""

    kind = "grpc"

    def __init__(self, label: str, link: _Link, secured: SecureChannel) -> None:
        super().__init__(label)
        self.link = link
        self._secured = secured
        self._outbox: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._assembler = Assembler(REPLY_LIMIT_BYTES)
        self._replies: Any = None
        try:
            self._begun = self._prove()
        except OpError as error:
            # The calls fail, as those of a connection that broke later do, and the client retries them.
            self.broken = copy.copy(error)
            return
        self._replies = link.exchange(self._frames(), metadata=self._begun.metadata)

    def _prove(self) -> BeginningCall:
        """Return what begins the stream, once the task has proven itself.

        Raises:
            OpError: If the task cannot be reached, or has not the token.
        """
        call = self._secured.begin("Exchange")
        if call.asks:
            _UnaryCall(
                self.link, self._label, "Status", pb.StatusRequest(brief=True), _OPEN_SECS, self._secured
            ).result()
            call = self._secured.begin("Exchange")
            if call.asks:
                raise UnavailableError(f"The connection to {self._label} has ended.")
        return call

    def _transmit(self, call: int, request: pb.Request, load: Any) -> None:
        """See Connection."""
        frames = frames_of(call, request=request, pieces=load)
        # What is wrong with the message shows in its first frame, here; the others are made when grpc asks for
        # them, in memory that the one before has just left.
        self._outbox.put(itertools.chain((next(frames),), frames))

    def _frames(self) -> Iterator[bytes]:
        """Give grpc's thread the frames of all messages; what a broken connection has left is not read any more."""
        for message in iter(self._outbox.get, None):
            try:
                self._check()
            except UnauthenticatedError:
                return  # who waits for the reply is told
            for frame in message:
                if self.broken is not None:
                    return
                yield frame

    def _check(self) -> None:
        """Wait for the task's proof, with which the stream begins.

        Raises:
            UnauthenticatedError: If it has begun without.
        """
        if self._begun.reply:
            self._secured.check_reply(self._begun, self._replies.initial_metadata())

    def _receive(self) -> Message | None:
        """See Connection. Reads one frame."""
        try:
            raw = next(self._replies)
            self._check()
            message = self._assembler.add(raw)
            self._secured.answered()
            return message
        except StopIteration:
            raise UnavailableError(f"{self._label} ended the connection.") from None
        except grpc.RpcError as error:
            if self._secured.challenged(error, self._begun):
                raise UnavailableError(f"{self._label} is another process now.") from None
            raise self._secured.judge(_from_rpc(error, self._label)) from None

    def _end(self) -> None:
        """See Connection."""
        self._outbox.put(None)
        if self._replies is not None:
            self._replies.cancel()


class _Link:
    """A channel and what is called on it."""

    def __init__(self, secured: SecureChannel, look: bool = True) -> None:
        self.channel = secured.make(look)
        self.stub = pb_grpc.ParameterServerStub(self.channel)
        self.exchange: Any = self.channel.stream_stream("/globalstep.v1.ParameterServer/Exchange", None, None)


class _Later:
    """A call that is made when its result is asked for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

        self._done: Any = None

    def result(self) -> Any:
        reply, self._done = self._call()
        return reply

    def trailing_metadata(self) -> Any:
        return self._done.trailing_metadata()


def _fail(error: OpError) -> Any:
    raise error


class _UnaryCall:
    """A unary call in flight; see transports.Pending.

    A task that has yet to prove that it has this process's token is asked for its status first, which tells it nothing.
    """

    def __init__(
        self, link: _Link, label: str, method: str, request: Any, timeout_secs: float, secured: SecureChannel
    ) -> None:
        #: Why it was broken off; None where it was not.
        self.broken: OpError | None = None
        self._link = link
        self._request = request
        self._secured = secured
        self._label = label
        self._method = method
        self._timeout_secs = timeout_secs
        self._start()

    def _start(self) -> None:
        """Make the call; or, before the task has proven itself, the one that has it do so."""
        try:
            self._call = begun = self._secured.begin(self._method, self._request)
        except UnauthenticatedError as error:  # as who asks for the result is told
            self._future = _Later(functools.partial(_fail, error))
            return
        call = getattr(self._link.stub, begun.method)
        given = {"timeout": self._timeout_secs, "metadata": begun.metadata}
        # A future needs a thread of grpc's, which Python starts no more once its main thread has ended.
        alive = threading.main_thread().is_alive()
        self._future = (
            call.future(begun.request, **given)
            if alive
            else _Later(functools.partial(call.with_call, begun.request, **given))
        )

    def _answer(self) -> Any:
        """Wait for the reply, of a later call where the task has to prove itself first."""
        for left in reversed(range(TRIES)):
            try:
                reply = self._future.result()
            except grpc.RpcError as error:
                if not self._secured.challenged(error, self._call) or not left:
                    raise
                self._start()
            else:
                if not self._call.asks:
                    self._secured.check_reply(self._call, self._future.trailing_metadata())
                    return reply
                self._secured.was_answered()
                self._start()
        raise AssertionError("unreachable")

    def break_off(self, error: OpError) -> None:
        """Fail with an error, unless the answer is there."""
        self.broken = error
        if isinstance(self._future, grpc.Future):
            self._future.cancel()

    def result(self) -> Any:
        """See transports.Pending."""
        try:
            reply = self._answer()
            self._secured.answered()
            return reply
        except grpc.FutureCancelledError:
            raise copy.copy(self.broken or UnavailableError(f"{self._label} was given up.")) from None
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # The deadline is ours, not the program's: to it, a task that is silent is one not reached.
                text = f"{self._label} has not answered {self._method} for {self._timeout_secs:g} s."
                raise UnavailableError(text) from None
            raise self._secured.judge(_from_rpc(error, self._label)) from None


def _from_rpc(error: grpc.RpcError, label: str) -> OpError:
    """The one place where a grpc error becomes ours."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else None) or str(code)
    unreached = _UNREACHED.fullmatch(details)
    if unreached:
        details = f"{unreached[2]} at {unquote(unreached[1])}"
    # A stream that a dying server resets is reported as UNKNOWN or CANCELLED; both mean "not reached".
    if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
        code = grpc.StatusCode.UNAVAILABLE
    metadata: dict[str, Any] = dict(error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else {}
    # gRPC's own refusal has no metadata: its calls are too many at this moment.
    retry_millis = metadata.get("globalstep-retry-millis", _BUSY_MILLIS if details == _TOO_MANY_CALLS else 0)
    return error_from_code(
        code.value[0], f"{label}: {details}", str(metadata.get("globalstep-error", "")), int(retry_millis) / 1000
    )


class _EarlySocket:
    """A socket that is opened before it is needed.

    Args:
        open_socket: Opens it; gives None where there is none.
        name: Of the thread that does so.
    """

    def __init__(self, open_socket: Callable[[], Connection | None], name: str) -> None:
        self._found: Connection | None = None
        self._open_socket = open_socket
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._open_socket()
        except Exception as error:  # the first call meets it, too
            _log.debug("%s: %s", self._thread.name, error)

    def take(self) -> Connection | None:
        """Wait for the connection, which is the caller's from now on."""
        self._thread.join()
        found, self._found = self._found, None
        return found


class GrpcTransport:
    """A transport to a task at an address. Thread-safe.

    Args:
        address: "host:port".
        index: Number of the PS task, for messages.
        transport: See transports.chosen_transport.
        clock: Time, for deadlines.
        credentials: What to show; by default what the environment names, see Credentials.from_environ.

    Raises:
        FailedPreconditionError: If the credentials cannot be used.
    """

    def __init__(
        self,
        address: str,
        index: int,
        transport: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._index = index
        self.label = f"/job:ps/task:{index} at {address}"
        self._clock = clock
        credentials = Credentials.from_environ(os.environ) if credentials is None else credentials
        self._secured = SecureChannel(address, credentials, clock)
        # No server is asked for a certificate before the first call.
        self._link = _Link(self._secured, look=False)
        # Guards the attributes below, but for a look at _connection; taken before a connection's own locks. No call is
        # made under it.
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        # Channels with certificates that were renewed since: a stream may still go on there.
        self._old: list[_Link] = []
        # The sockets to try when a connection is needed; none once there is no use in trying.
        self._socket_kinds = SOCKETS.get(chosen_transport(transport), ())
        self._early: _EarlySocket | None = None
        #: When the connection was opened.
        self._opened_at = 0.0
        self._closed = False
        # Calls under way.
        self._calls: weakref.WeakSet[_UnaryCall] = weakref.WeakSet()
        self._given_up = False
        #: Of the other tasks of the cluster, this one too: when one of them connects, all open their sockets at once.
        self.group: Sequence[GrpcTransport] = ()

    @property
    def kind(self) -> str:
        """What carries the data plane now: "shm", "unix", "tcp", "grpc", or "" before the first call."""
        with self._lock:
            return "" if self._connection is None else self._connection.kind

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> ConnectionTicket:
        """See transports.Transport. Opens a new connection if the last one broke."""
        connection = self._connection
        if connection is None or connection.broken is not None:
            connection = self._connect(connection)
        return connection.send(request, pieces, self._clock.monotonic() + CALL_SECS)

    def tell(self, request: pb.Request) -> None:
        """See transports.Transport."""
        self._connected().tell(request)

    def buffer(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """See transports.Transport."""
        connection = self._connected()
        if not isinstance(connection, SharedConnection):
            return None
        return connection.buffer(nbytes, self._clock.monotonic() + CALL_SECS)

    def _connected(self) -> Connection:
        """Give the connection; open a new one if there is none, or it broke."""
        connection = self._connection
        if connection is None or connection.broken is not None:
            connection = self._connect(connection)
        return connection

    def _connect(self, broken: Connection | None) -> Connection:
        """Open a connection in the place of a broken one, unless another thread has been faster."""
        with self._lock:
            early, self._early = self._early, None
            served_secs = self._clock.monotonic() - self._opened_at
        if broken is not None:
            self._secured.broken()
            if broken.kind != "grpc" and served_secs < _SERVED_SECS:
                text = f"The {CALLED[broken.kind]} to {self.label} has ended, its data goes over gRPC: {broken.broken}"
                self._give_up_sockets(text)
        self._renew()
        for other in self.group:
            if other is not self:
                other.open_early()
        fresh = (early.take() if early is not None else None) or self._open_socket()
        fresh = fresh or _Stream(self.label, self._link, self._secured)
        closing = UnavailableError(f"The connection to {self.label} was closed here.")
        kept, spare = fresh, broken
        with self._lock:
            if self._connection is not None and self._connection is not broken:
                kept, spare = self._connection, fresh
            self._connection = kept
            self._opened_at = self._clock.monotonic()
            closed = self._closed
        if spare is not None:
            spare.close(closing)
        if closed:
            kept.close(closing)
        return kept

    def open_early(self) -> None:
        """Begin to open a socket, unless there is a connection, or no use in it; the first call takes it."""
        with self._lock:
            if not self._socket_kinds or self._closed or self._connection is not None or self._early is not None:
                return
            with contextlib.suppress(RuntimeError):  # the system gives no thread: the first call opens it
                self._early = _EarlySocket(self._open_socket, f"globalstep-dial-{self._index}")

    def _open_socket(self) -> Connection | None:
        """Open a socket if there is any use in it; gives None where gRPC must do."""
        with self._lock:
            kinds = self._socket_kinds
        if not kinds:
            return None
        choice = choose_socket(self.label, kinds, self._ask_for_socket, self._dial)
        if choice.over:
            self._give_up_sockets(choice.text)
        elif choice.text:
            _log.info("%s", choice.text)
        return choice.connection

    def _ask_for_socket(self, request: pb.OpenLaneRequest) -> pb.OpenLaneReply:
        """Have the task be ready for a connection."""
        reply: pb.OpenLaneReply = self.unary("OpenLane", request, _OPEN_SECS).result()
        return reply

    def _dial(self, kind: pb.LaneKind.ValueType, reply: pb.OpenLaneReply, secs: float) -> SocketConnection:
        """Connect to where the task waits for it.

        Raises:
            OSError: If that cannot be done, or data would go in the clear where gRPC has TLS.
        """
        if kind == pb.LANE_TCP and self._secured.credentials.tls is not None:
            raise ConnectionRefusedError("this process has TLS, and TCP has none")
        made_of = SharedConnection if kind == pb.LANE_SHM else SocketConnection
        return made_of(self.label, dial(kind, self._secured.dialled, reply, secs))

    def _give_up_sockets(self, text: str) -> None:
        """Stay with gRPC from now on, and say so, once."""
        with self._lock:
            kinds, self._socket_kinds = self._socket_kinds, ()
            closed = self._closed
        if kinds and not closed:
            _log.info("%s", text)

    def unary(self, method: str, request: Any, timeout_secs: float) -> _UnaryCall:
        """See transports.Transport."""
        self._renew()
        if self._given_up:
            timeout_secs = min(timeout_secs, _GIVEN_UP_SECS)
        call = _UnaryCall(self._link, self.label, method, request, timeout_secs, self._secured)
        with self._lock:
            self._calls.add(call)
        return call

    def _renew(self) -> None:
        """Show renewed certificates from now on. What is in flight on the old channel comes to its end there."""
        if not self._secured.outdated():
            return
        fresh = _Link(self._secured)
        with self._lock:
            in_use = self._connection.link if isinstance(self._connection, _Stream) else None
            spare = [link for link in self._old if link is not in_use]
            # Of the last one, calls may still be in flight.
            self._old = [link for link in self._old if link is in_use] + [self._link]
            self._link = fresh
            closed = self._closed
        for link in spare:
            link.channel.close()
        if closed:
            self._close_links()

    def _close_links(self) -> None:
        with self._lock:
            links, self._old = [*self._old, self._link], []
        for link in links:
            link.channel.close()

    def expire(self) -> None:
        """See transports.Transport."""
        with self._lock:
            connection = self._connection
        if connection is not None and connection.broken is None and connection.overdue(self._clock.monotonic()):
            connection.break_off(UnavailableError(f"{self.label} has not answered for {CALL_SECS:.0f} s."))

    def break_off(self, error: OpError) -> None:
        """See transports.Transport."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.break_off(error)

    def give_up(self, error: OpError | None) -> None:
        """See transports.Transport."""
        self._given_up = error is not None
        if error is None:
            return
        with self._lock:
            calls = list(self._calls)
        self.break_off(error)
        for call in calls:
            call.break_off(error)

    def close(self) -> None:
        """See transports.Transport."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            early, self._early = self._early, None
        closing = UnavailableError(f"The connection to {self.label} was closed here.")
        if connection is not None:
            connection.close(closing)
        self._close_links()
        if early is not None and (unused := early.take()) is not None:
            unused.close(closing)


def transports_to(addresses: str, transport: str | None = None) -> list[GrpcTransport]:
    """Make transports to "host:port,host:port,...", in order; for `transport` see transports.chosen_transport."""
    made = [GrpcTransport(address.strip(), index, transport) for index, address in enumerate(addresses.split(","))]
    for one in made:
        one.group = made
    return made

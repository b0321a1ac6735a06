"""The link of a PS task to its sequencer: a connection of messages, which is dialled when it is missed.

Layer: ps. Threads: a SequencerLink is served in turns (`ps/service/turns.py`), or by a thread of its own where an
answer may wait; any thread may send. A LinkKeeper owns one thread, "globalstep-link", which dials.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from globalstep.errors import GlobalStepError, InvalidArgumentError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.links.parked_call import OpenCall
from globalstep.ps.links.voter import Voter
from globalstep.ps.service.handler import Handler
from globalstep.ps.service.turns import Turn
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.credentials import Credentials
from globalstep.security.dialing import dialled
from globalstep.security.secure_channel import SecureChannel
from globalstep.security.tls_socket import TlsSocket
from globalstep.wire.message import NO_CALL
from globalstep.wire.socket_messages import Incoming, Outgoing

__all__ = ["LinkKeeper", "SequencerLink"]

_log = logging.getLogger(__name__)

#: Decisions have names and numbers, no tensors.
_LIMIT_BYTES = 1 << 20
#: How long OpenLane may take.
_OPEN_SECS = 5.0
#: Pauses between two attempts to dial: the first, and the longest.
_FIRST_PAUSE_SECS = 0.05
_LONGEST_PAUSE_SECS = 2.0


class SequencerLink:
    """A link; see Voter.

    Args:
        handler: The task's.
        connection: The socket, past its welcome.
        greeting: The first message.
        ended: Called when the link has ended.
    """

    def __init__(
        self,
        handler: Handler,
        connection: socket.socket | TlsSocket,
        greeting: pb.VoteRequest,
        ended: Callable[[], None],
    ) -> None:
        self.incarnation = greeting.incarnation
        self._handler = handler
        self._voter: Voter = handler.voting.voter
        self._socket = connection
        self._incoming = Incoming(connection, _LIMIT_BYTES)
        self._greeting = greeting
        self._ended = ended
        # Keeps votes whole on their way out; a leaf.
        self._sending = threading.Lock()

    @property
    def may_hold_more(self) -> bool:
        """See ServedConnection."""
        return isinstance(self._socket, TlsSocket)

    def fileno(self) -> int:
        """See turns.Served."""
        return self._socket.fileno()

    def let_in(self) -> bool:
        """Greet the sequencer, and vote over this link from now on; gives whether it stands."""
        try:
            self.send(self._greeting)
            self._voter.linked(self)
        except OSError as error:
            _log.info("The link to the sequencer has ended: %s", error)
            return False
        return True

    # ---- Votes --------------------------------------------------------------------------------

    def send(self, request: pb.VoteRequest) -> None:
        """See voter.Link."""
        outgoing = Outgoing(NO_CALL, pb.Request(vote=request).SerializeToString(), ())
        try:
            with self._sending:
                outgoing.send(self._socket, socket.MSG_DONTWAIT)
        except OSError as error:
            # Where it takes no more, it is dialled anew.
            _log.info("A vote could not be sent to the sequencer: %s", error)
            self.end()

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """See voter.Link."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(how)

    def close(self) -> None:
        """Give up the socket; to be called once, by who serves it last."""
        self._voter.ended(self)
        with self._sending:
            self._socket.close()
        self._incoming.close()
        self._ended()

    # ---- Decisions ----------------------------------------------------------------------------

    def answer_quickly(self, alone: bool) -> Turn:
        """See turns.Served."""
        if self._handler.may_wait:
            return Turn.TAKES_TIME
        try:
            if not self._incoming.fill(socket.MSG_DONTWAIT):
                return Turn.TAKES_TIME  # `answer` will see that it is the end
            self._hear()
        except BlockingIOError:
            return Turn.RECEIVES
        except (OSError, DecodeError, GlobalStepError) as error:
            self._say(error)
            return Turn.TAKES_TIME
        return Turn.RECEIVES

    def answer(self) -> bool:
        """See turns.Served: wait for decisions."""
        try:
            if not self._incoming.fill():
                return False
            self._hear()
        except (OSError, DecodeError, GlobalStepError) as error:
            self._say(error)
            return False
        return True

    def _hear(self) -> None:
        """Carry out what has come."""
        came: list[pb.Decisions] = []
        while (message := self._incoming.take()) is not None:
            reply = pb.Reply.FromString(message.head)
            if not reply.HasField("decisions"):
                raise InvalidArgumentError("What the sequencer sends on a link must be decisions.")
            came.append(reply.decisions)
        if came:
            self._voter.hear(self, came)

    def _say(self, error: Exception) -> None:
        _log.info("The link to the sequencer is given up: %s", error)
        self.end()

    # ---- A link answers no requests -----------------------------------------------------------

    def counting(self) -> tuple[pb.Request, LayoutMemory]:
        """See turns.Served; never."""
        raise AssertionError("a link answers no requests")

    def counted(self, reply: pb.Reply) -> None:
        """See turns.Served; never."""
        raise AssertionError("a link answers no requests")

    def finish(self, call: OpenCall) -> Turn:
        """See turns.Served; never."""
        raise AssertionError("a link answers no requests")


class LinkKeeper:
    """Dials the sequencer whenever a link is missed.

    Args:
        handler: The task's.
        serve: Has a link served; raises OpError or RuntimeError where that cannot be.
        credentials: Gives what this task shows.
    """

    def __init__(
        self, handler: Handler, serve: Callable[[SequencerLink], None], credentials: Callable[[], Credentials]
    ) -> None:
        self._handler = handler
        self._serve = serve
        self._credentials = credentials
        self._wanted = threading.Event()
        self._stop = threading.Event()
        #: Whether a link stands, or is about to.
        self._stands = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="globalstep-link", daemon=True)
        handler.voting.voter.wanted = self._wanted.set

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; links end with the server's connections. Safe to call twice."""
        self._stop.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECS
        while True:
            self._wanted.wait()
            if self._stop.is_set():
                return
            self._wanted.clear()
            if self._stands:
                continue
            try:
                self._dial()
                pause = _FIRST_PAUSE_SECS
            except (grpc.RpcError, OSError, OpError, RuntimeError) as error:
                why = error.details() if isinstance(error, grpc.Call) else str(error)
                if why != self._said:
                    self._said = str(why)
                    _log.info("No link to the sequencer; pushes take the longer way: %s", why)
                pause = min(2 * pause, _LONGEST_PAUSE_SECS)
            # A link that ends at once is not dialled at once.
            SYSTEM_CLOCK.wait(self._stop, pause)

    def _dial(self) -> None:
        """Open a link, and have it served."""
        address = self._handler.shard.now.sequencer_address
        if not address:
            return
        greeting = self._handler.voting.voter.greeting()
        connection = self._connected(address)
        link = SequencerLink(self._handler, connection, greeting, self._has_ended)
        self._stands = True
        try:
            self._serve(link)
        except BaseException:
            self._stands = False
            connection.close()
            raise

    def _has_ended(self) -> None:
        self._stands = False

    def _connected(self, address: str) -> socket.socket | TlsSocket:
        """Open a unix socket to the sequencer, or, where it is on another machine, a TCP connection."""
        credentials = self._credentials()
        secured = SecureChannel(address, credentials)
        with secured.make() as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            unused = b""
            for kind in (pb.LANE_UNIX, pb.LANE_TCP):
                try:
                    reply = secured.call(stub, "OpenLane", pb.OpenLaneRequest(kind=kind, unused=unused), _OPEN_SECS)
                    unused = reply.token
                    return dialled(kind, address, reply, credentials.tls)
                except (grpc.RpcError, OSError):
                    if kind == pb.LANE_TCP:
                        raise
        raise AssertionError("unreachable")

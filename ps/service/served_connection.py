"""One client's connection of messages on a socket: how its requests are answered.

Layer: ps. Threads: one at a time, whichever has the connection's turn (`ps/service/turns.py`); `end` may be called by
    any.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.door import whose_seat
from globalstep.ps.aggregates.step_waits import OpenCall, ParkedCall
from globalstep.ps.budget import ReplyMemory
from globalstep.ps.service.handler import encode_error
from globalstep.ps.service.shared_blocks import Placed, SharedBlocks
from globalstep.ps.service.turns import Turn
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.runtime.faults import NO_FAULTS
from globalstep.wire.declarations import padded
from globalstep.wire.message import NO_CALL
from globalstep.wire.socket_messages import MOST_AT_ONCE, WELCOME, Incoming, Outgoing, SocketMessage, prepare

if TYPE_CHECKING:
    from globalstep.ps.service.socket_server import GivenToken, SocketServer

_log = logging.getLogger(__name__)

#: Calls of a connection that wait; one more is answered at once.
MOST_PARKED = 64
#: So many bytes of tensors take time to be received, or sent: a thread of its own is worth it.
_MUCH_BYTES = 1 << 20
#: A connection whose requests take time keeps a thread to itself until so many have come that do not.
_QUICK_IN_A_ROW = 8


class ServedConnection:
    """See the module's text.

    Args:
        server: Whose it is.
        accepted: The socket.
        name: What the log calls it.
        given: The token that its client has proven.

    Attributes:
        whose: On whose account it is, see whose_seat.
        blocks: The memory that the connection shares with its client, once that has asked for some.
    """

    def __init__(self, server: SocketServer, accepted: socket.socket, name: str, given: GivenToken) -> None:
        self.whose = whose_seat(given.caller)
        self.blocks: SharedBlocks | None = None
        self._given = given
        self._name = name
        self._server = server
        self._handler = server.handler
        self._socket = accepted
        self._incoming = Incoming(accepted, server.limit_bytes)
        self._memory = LayoutMemory()
        # What `answer_quickly` has left to `answer`.
        self._message: SocketMessage | None = None
        self._failed: Exception | None = None
        #: A push that only counts, with the number of its call, that is to be counted with others.
        self._counting: tuple[int, pb.Request] | None = None
        #: What the client has not taken yet of replies; with what goes with one, and is closed then.
        self._unsent: deque[tuple[Outgoing, int | None]] = deque()
        #: Calls that are parked.
        self._parked = 0
        # The call that came last.
        self._asked = NO_CALL
        #: Of tensors in the last reply: what is asked for next is most often alike.
        self._replied_bytes = 0
        self._took_time = False

    def fileno(self) -> int:
        """Give the socket's descriptor."""
        return self._socket.fileno()

    def end(self, how: int) -> None:
        """Shut the socket down, so that the thread that serves it comes to the end."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(how)

    def welcome(self) -> bool:
        """Welcome the client; gives whether it is there still."""
        try:
            prepare(self._socket)
            self._socket.sendall(WELCOME)
            self._memory = self._handler.stream_memory(self._given.caller)
            account, shares = self._memory.account, self._given.kind == pb.LANE_SHM
            if shares:
                self.blocks = SharedBlocks(self._server.limit_bytes, account)
                self._memory.buffer = ReplyMemory(account, self.blocks)
            self._incoming = Incoming(self._socket, self._server.limit_bytes, shares=shares, pool=account)
            self._server.slow.watch(self)
        except Exception as error:
            self._say(error)
            return False
        return True

    # ---- What is looked at by slow_senders ----------------------------------------------------

    slack_bytes = MOST_AT_ONCE
    needs_memory = True

    def under_way(self) -> tuple[object, int] | None:
        """See slow_senders.Sender."""
        return self._incoming.under_way

    def cut_off(self, secs: float) -> None:
        """See slow_senders.Sender."""
        _log.info("%s: its message did not come on for %.0f s, and others wait for memory.", self._name, secs)
        self.end(socket.SHUT_RDWR)

    # -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the socket, and what else the connection has; to be called once, by who serves it last."""
        self._server.slow.forget(self)
        if self.blocks is not None:
            self.blocks.forget_unannounced()
        self._socket.close()
        # Another object may refer to this one yet; the memory goes now.
        self._incoming.close()
        while self._unsent:
            self._forget_first()
        self.blocks = self._message = self._failed = None
        self._memory = LayoutMemory()

    # ---- Turns --------------------------------------------------------------------------------

    def answer_quickly(self, alone: bool) -> Turn:
        """Go on as far as that needs no wait, neither for the client nor for memory.

        To be called when there is something to receive, or, after SENDS, when something can be sent.

        Args:
            alone: No other connection has something to be done.

        Returns:
            What comes next.
        """
        try:
            if not self._unsent:
                if not self._incoming.fill(socket.MSG_DONTWAIT):
                    return Turn.TAKES_TIME  # `answer` will see that it is the end
            elif self._send_rest(socket.MSG_DONTWAIT):
                return Turn.SENDS
            while True:
                message = self._incoming.take(patient=False)
                if message is None:
                    if self._incoming.lacks_memory or self._incoming.coming_bytes >= _MUCH_BYTES:
                        return Turn.TAKES_TIME
                    if not self._incoming.is_filling:
                        return Turn.RECEIVES
                    if not self._incoming.fill(socket.MSG_DONTWAIT):
                        return Turn.TAKES_TIME  # the end, as above
                    continue
                if self._takes_time(message):
                    self._message = message
                    return Turn.TAKES_TIME
                request = pb.Request.FromString(message.head)
                if request.spans and message.refused is None:  # to unpack it one may have to wait for memory
                    self._message = message
                    return Turn.TAKES_TIME
                if not alone and message.call != NO_CALL and self._handler.counts(request, self._memory):
                    self._counting = message.call, request
                    return Turn.COUNTS
                self._serve(message, request, socket.MSG_DONTWAIT)
                if self._unsent:
                    return Turn.SENDS
                if self._incoming.is_idle:
                    return Turn.RECEIVES
        except BlockingIOError:
            return Turn.RECEIVES
        except Exception as error:
            self._failed = error
            return Turn.TAKES_TIME

    def counting(self) -> tuple[pb.Request, LayoutMemory]:
        """Give the push that only counts, for Handler.count."""
        assert self._counting is not None
        return self._counting[1], self._memory

    def counted(self, reply: pb.Reply) -> None:
        """Have the reply to it sent when `answer_quickly` is called next."""
        assert self._counting is not None
        self._unsent.append((Outgoing(self._counting[0], reply.SerializeToString(), ()), None))
        self._counting = None

    def answer(self) -> bool:
        """Answer what `answer_quickly` has left, and what follows, until it takes no time any more.

        Returns:
            Whether the connection goes on.
        """
        try:
            return self._answer()
        except Exception as error:
            self._say(error)
            return False

    def _answer(self) -> bool:
        if self._failed is not None:
            raise self._failed
        self._send_rest()
        quick = 0
        # What has been received already wakes nobody up.
        while quick < _QUICK_IN_A_ROW or not self._incoming.is_idle:
            if self._server.closing or not self._serve_next():
                return False
            if self._parked and self._incoming.is_idle:
                return True  # who has the turn answers them
            quick = 0 if self._took_time else quick + 1
        return True

    def _serve_next(self) -> bool:
        """Answer the next request; gives False at the end. Returning, it lets go of the request's memory."""
        message, self._message = self._message, None
        if message is None:
            message = self._incoming.receive()
        if message is None:
            return False
        self._took_time = self._takes_time(message)
        self._serve(message, pb.Request.FromString(message.head))
        return True

    def _takes_time(self, message: SocketMessage) -> bool:
        handler = self._handler
        if handler.shard.now.log is not NO_LOG or handler.faults is not NO_FAULTS:
            return True  # the answer may wait for more than other pushes: for a disk, or for a test
        # Where memory is shared, nothing but changing the values takes long, and that is done for one at a time.
        return self.blocks is None and max(message.nbytes, self._replied_bytes) >= _MUCH_BYTES

    def _say(self, error: Exception) -> None:
        """Log why the connection ended. Its thread serves others, too: whatever was wrong ends with it."""
        if isinstance(error, ConnectionError):
            # How a process that ends leaves; whether a worker is missing is for the heartbeats to tell.
            _log.debug("%s: %s", self._name, error)
        elif isinstance(error, (OSError, DecodeError, OpError)):
            # The client goes on over gRPC.
            _log.info("%s: %s", self._name, error)
        else:
            _log.error("%s: a bug ended this connection", self._name, exc_info=error)

    # ---- One request --------------------------------------------------------------------------

    def _serve(self, message: SocketMessage, request: pb.Request, flags: int = 0) -> None:
        """Answer a request. With MSG_DONTWAIT, what the socket does not take at once is kept in `_unsent`."""
        if message.refused is not None:
            self._refuse(message, message.refused, flags)
            return
        blocks = self.blocks
        data = message.data if blocks is None else blocks.data_of(message)
        if blocks is not None and message.place is not None and message.place.new_bytes:
            self._give_block(message, blocks, message.place.new_bytes, flags)
            return
        shared = message.place is not None and message.place.block != 0
        self._asked = message.call
        answered = self._handler.begin(request, data, self._memory, shared, self, message.call)
        if answered is None or message.call == NO_CALL:
            return
        reply, pieces = answered
        self._reply(message.call, reply, pieces, flags)

    def _reply(
        self, number: int, reply: pb.Reply, pieces: Sequence[memoryview], flags: int, placed: Placed | None = None
    ) -> None:
        """Send a reply, its tensors in shared memory where there are many bytes of them, or are `placed` there."""
        if placed is None and pieces and self.blocks is not None:
            placed = self.blocks.put(pieces)
        descriptor = None
        if placed is None:
            outgoing = Outgoing(number, reply.SerializeToString(), pieces)
            self._replied_bytes = outgoing.nbytes
        else:
            self._replied_bytes, descriptor = sum([padded(piece.nbytes) for piece in pieces]), placed.descriptor
            outgoing = Outgoing(number, reply.SerializeToString(), (), placed.place, self._replied_bytes, descriptor)
        if self._unsent or descriptor is not None:
            self._unsent.append((outgoing, descriptor))
            self._send_rest(flags)
            return
        try:
            outgoing.send(self._socket, flags)
        except BlockingIOError:
            self._unsent.append((outgoing, None))

    # ---- Calls that wait ----------------------------------------------------------------------

    def park(self, call: OpenCall) -> ParkedCall | None:
        """See step_waits.ServedLine."""
        parked = self._server.park(self, call) if self._parked < MOST_PARKED else None
        if parked is not None:
            self._parked += 1
        return parked

    def finish(self, call: OpenCall) -> Turn:
        """Send the reply to a call that was parked, as far as that needs no wait; gives what comes next."""
        self._parked -= 1
        if self.blocks is not None and call.number != self._asked:
            self.blocks.withdraw_offers()
        try:
            reply, pieces = self._handler.finish(call)
            self._reply(call.number, reply, pieces, socket.MSG_DONTWAIT)
        except Exception as error:
            self._say(error)
            self.end(socket.SHUT_RDWR)
        return Turn.SENDS if self._unsent else Turn.RECEIVES

    def _give_block(self, message: SocketMessage, blocks: SharedBlocks, nbytes: int, flags: int) -> None:
        """Answer the wish for a block."""
        try:
            _, placed = blocks.create(nbytes)
        except (OSError, OpError) as error:
            self._refuse(message, error, flags)
            return
        self._reply(message.call, pb.Reply(), (), flags, placed)

    def _refuse(self, message: SocketMessage, error: Exception, flags: int) -> None:
        self._reply(message.call, pb.Reply(error=encode_error(error)), (), flags)

    def _send_rest(self, flags: int = 0) -> bool:
        """Send what has not been sent; gives whether there is some left."""
        while self._unsent:
            try:
                self._unsent[0][0].send(self._socket, flags)
            except BlockingIOError:
                return True
            self._forget_first()
        return False

    def _forget_first(self) -> None:
        _, descriptor = self._unsent.popleft()
        if descriptor is not None:
            os.close(descriptor)

"""Settles what workers left undecided: a thread that asks the sequencer about overdue parts.

See "Points of failure" in docs/design/push-protocol.md: P1 to P6 end here when no worker resolves them.

Layer: ps. Threads: one, named "globalstep-settler", owned by the Settler.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import grpc

from globalstep.errors import FailedPreconditionError, GlobalStepError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.ledger import entries
from globalstep.ps.shard.event_log import NO_LOG, EventLog
from globalstep.ps.shard.events import DropShort, Resolved
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import Clock
from globalstep.security.credentials import Credentials
from globalstep.security.secure_channel import SecureChannel
from globalstep.wire import codec
from globalstep.wire.declarations import PushId

_log = logging.getLogger(__name__)

#: A part is overdue when it has been staged this long and its worker has been silent this long.
OVERDUE_SECS = 10.0
#: A part is overdue when it has been staged this long, whatever its worker does: its call has been given up.
LONGEST_SECS = 90.0
_PERIOD_SECS = 2.0
_DEADLINE_SECS = 5.0


def asking(credentials: Callable[[], Credentials]) -> Callable[[str, pb.SettleRequest], pb.ShardEntries]:
    """Make what brings a SETTLE to the sequencer at an address over gRPC, showing this task's credentials."""

    def ask(address: str, request: pb.SettleRequest) -> pb.ShardEntries:
        secured = SecureChannel(address, credentials())
        with secured.make() as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            try:
                reply: pb.ShardEntries = secured.call(stub, "Settle", request, _DEADLINE_SECS)
                return reply
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE:
                    mistake = secured.mistake()
                    if mistake:
                        raise UnavailableError(mistake) from None
                raise

    return ask


class Settler:
    """Asks the sequencer what became of parts whose worker went silent.

    Args:
        shard: The shard whose parts these are.
        clock: Paces the asking.
        ask: Brings a SETTLE to the sequencer at an address; over gRPC by default, without credentials.
    """

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        ask: Callable[[str, pb.SettleRequest], pb.ShardEntries] = asking(Credentials),  # noqa: B008
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._ask = ask
        self._stopping = False
        # Set when there is something to do before the next round.
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="globalstep-settler", daemon=True)
        # Incarnation, entry and log: what came back from its log reports anew.
        self._reported: tuple[int, int, EventLog] = (0, 0, NO_LOG)
        self._said_of: PushId | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, or without a start."""
        self._stopping = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def settle_soon(self) -> None:
        """Have the next round begin now. Any thread."""
        self._due.set()

    def _run(self) -> None:
        while True:
            self._clock.wait(self._due, _PERIOD_SECS)
            self._due.clear()
            if self._stopping:
                return
            try:
                self.settle_once()
            except grpc.RpcError as error:
                # The sequencer is away, or holds nothing yet: the next round asks again.
                why = error.details() if isinstance(error, grpc.Call) else error
                _log.info("Cannot settle with the sequencer now: %s", why)
            except (FailedPreconditionError, UnavailableError) as error:
                _log.warning("Cannot settle with the sequencer: %s", error)
            except GlobalStepError as error:
                _log.info("Cannot settle now, since the run began anew: %s", error)

    def settle_once(self) -> bool:
        """Ask about overdue parts and report what is applied; gives whether there was anything to say."""
        self._tell_of_nothing()
        self._tell_of_failures()
        log = self._shard.log
        view = self._shard.view(brief=True)
        # What the shard reports to the sequencer must not be forgotten here.
        self._shard.secure(log)
        address = view.sequencer_address
        if not view.incarnation or not address or view.shard == view.sequencer:
            return False  # the sequencer gets its parts with their decision
        overdue = self._shard.overdue(OVERDUE_SECS, LONGEST_SECS)
        if not overdue and (view.incarnation, view.applied, log) == self._reported:
            return False
        request = pb.SettleRequest(
            incarnation=view.incarnation,
            pushes=[codec.encode_push_id(push) for push in overdue],
            shard=view.shard,
            applied=view.applied,
        )
        reply = self._ask(address, request)
        if self._shard.handle(DropShort(view.incarnation, reply.floor)):
            _log.error(
                "This PS task has applied entry %d, and had reported entry %d to the sequencer: the end "
                "of its log is missing. It drops its state; all PS tasks go back to a checkpoint.",
                view.applied,
                reply.floor,
            )
            return True
        self._reported = view.incarnation, view.applied, log
        if overdue:
            found = [entries.decode(entry) for entry in reply.entries]
            self._shard.handle(Resolved(view.incarnation, overdue, found))
        if overdue:
            _log.info("Settled %d parts of silent workers", len(overdue))
        return True

    def _tell_of_nothing(self) -> None:
        """Say, at most once a round, that pushes were admitted whose parts are not here."""
        of_nothing = self._shard.resources.of_nothing
        last = of_nothing[-1] if of_nothing else None
        if last is not None and last != self._said_of:
            _log.warning(
                "Push %s was admitted, and this PS task has no part of it that it could apply: it went on without. Its "
                "client said PUSH without STAGE, took its part back, or did not name an optimizer that it uses.",
                last,
            )
        self._said_of = last

    def _tell_of_failures(self) -> None:
        """Say for which changes, that failed halfway, this task dropped its state."""
        reports = self._shard.resources.fail_stop.reports
        while reports:
            _log.error("%s", reports.popleft())

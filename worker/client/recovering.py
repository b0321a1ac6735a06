"""Recovery of PS tasks that lost their state, led by a client, in a run with durability="log".

Any client may do so, and several at once: a task recovers once, and tells the others that it is back. So no client has
to wait for the chief, and a call that met the loss goes on under the push id that it had.

Layer: worker. Threads: functions; any number at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from globalstep.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    LostStateError,
    NotFoundError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.transports import Transport, ask_all
from globalstep.worker.client.calls import POLICIES

_log = logging.getLogger("globalstep")

#: What says that no later try will find the log whole, and that it is meant for this task.
_FINAL = (DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError)
_STATUS_SECS = POLICIES["FindLog"].deadline_secs
_RECOVER_SECS = POLICIES["Recover"].deadline_secs


def recover_lost(transports: Sequence[Transport], incarnation: int, sequencer: int, directory: str, run: str) -> None:
    """Bring all PS tasks that hold nothing back to what their logs say.

    Participants come first: the client tells the sequencer what they have applied, so that a visible step stays
    so. It comes back when all others are there.

    Raises:
        UnavailableError: If some task cannot be reached now, or has no disk space for its log; try again.
        LostStateError: If a task's state is lost for good: its log is gone, or damaged. The text says why.
        AbortedError: If some task is in another incarnation.
    """
    found = ask_all(transports, "Status", pb.StatusRequest(brief=True), _STATUS_SECS)
    statuses: list[pb.StatusReply | OpError] = [status for _, status in found]
    for transport, status in zip(transports, statuses, strict=True):
        # Before any is brought back: it would come back to a life that is over.
        if not isinstance(status, OpError) and status.incarnation not in (0, incarnation):
            raise AbortedError(
                f"{transport.label} is in incarnation {status.incarnation}, this client in {incarnation}. "
                "Start the run anew."
            )
    decided = statuses[sequencer]
    floors = [] if isinstance(decided, OpError) or not decided.incarnation else list(decided.floors)
    applied: dict[int, int] = {}
    missing: OpError | None = None
    for shard in sorted(range(len(transports)), key=lambda shard: shard == sequencer):
        status = statuses[shard]
        if isinstance(status, OpError):
            missing = missing or status
            continue
        if status.incarnation:
            applied[shard] = status.applied
        elif shard != sequencer or missing is None:
            request = pb.LogRequest(
                incarnation=incarnation,
                directory=directory,
                run=run,
                shard=shard,
                shards=len(transports),
                sequencer_address="" if shard == sequencer else transports[sequencer].address,
                floors=[pb.Floor(shard=other, index=index) for other, index in applied.items()]
                if shard == sequencer
                else floors,
            )
            reply = _recover(transports[shard], request)
            applied[shard] = reply.applied
    if missing is not None:
        raise UnavailableError(missing.message)


def _recover(transport: Transport, request: pb.LogRequest) -> pb.RecoverReply:
    """Have one task recover."""
    try:
        reply: pb.RecoverReply = transport.unary("Recover", request, _RECOVER_SECS).result()
    except AbortedError:
        raise
    except _FINAL as error:
        raise LostStateError(
            f"{transport.label} lost its state, and cannot come back from a log: {error.message}"
        ) from None
    except OpError as error:
        # It cannot be read now, or another process has it; space may be freed; where there are roles, the chief brings
        # a task back. No task has said that it is lost.
        raise UnavailableError(error.message) from None
    if reply.recovered:
        _log.warning(
            "%s had lost its state, and is back at entry %d from its log: %d pushes were applied again, in %.2f s. "
            "Nothing that was acknowledged is lost, and no other task goes back.",
            transport.label,
            reply.applied,
            reply.pushes,
            reply.secs,
        )
    return reply


def find_logs(transports: Sequence[Transport], directory: str, run: str) -> list[tuple[int, int]]:
    """Find the lives of a run that all PS tasks have a log of and that have not ended.

    This process's log names lives that only some PS tasks have a log of.

    Returns:
        Incarnation and sequencer of each, the newest first.

    Raises:
        UnavailableError: If some task cannot be reached, or cannot look for its logs now.
    """
    shards = len(transports)
    calls = [
        transport.unary(
            "FindLog", pb.LogRequest(directory=directory, run=run, shard=shard, shards=shards), _STATUS_SECS
        )
        for shard, transport in enumerate(transports)
    ]
    found = [dict(call.result().sequencers) for call in calls]
    everywhere = set.intersection(*(set(logs) for logs in found))
    for life in sorted(set().union(*found) - everywhere):
        having = [transport.label for transport, logs in zip(transports, found, strict=True) if life in logs]
        without = [transport.label for transport, logs in zip(transports, found, strict=True) if life not in logs]
        _log.warning(
            "The run cannot come back from the write-ahead logs of its life %d alone: %s a log of it, "
            "and %s none. A task that was moved to another machine needs its log there: see --log-dir. Until then its "
            "other logs are kept, moved aside when the run goes on without them.",
            life,
            _have(having),
            _have(without),
        )
    return [(life, found[0][life]) for life in sorted(everywhere, reverse=True)]


def _have(labels: Sequence[str]) -> str:
    return f"{', '.join(labels)} {'has' if len(labels) == 1 else 'have'}"

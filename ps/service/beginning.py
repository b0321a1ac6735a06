"""BEGIN on a PS task: what is refused before anything is changed, and the event that starts the incarnation.

Layer: ps.
"""

from __future__ import annotations

import logging

from globalstep.cluster.run_identity import identity_of
from globalstep.errors import AbortedError, InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.signatures import KEY_BYTES
from globalstep.ps.shard.event_log import EventLog
from globalstep.ps.shard.events import Begin
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.statistics import ShardView
from globalstep.wire import codec
from globalstep.wire.declarations import State

_log = logging.getLogger(__name__)


def begin_event(message: pb.BeginRequest) -> Begin:
    """Return the event of an incarnation's BEGIN."""
    return Begin(
        incarnation=message.incarnation,
        shard=message.shard,
        shards=message.shards,
        sequencer=message.sequencer,
        owner=message.owner,
        opened=message.open,
        sequencer_address=message.sequencer_address,
        expected_tasks=list(message.expected_tasks),
        ledger=message.ledger,
        policy=codec.decode_policy(message.policy),
        run=identity_of(message),
        key=message.key,
        take_over=message.take_over,
    )


def check_begin(request: pb.BeginRequest, shard: Shard) -> None:
    """Refuse a BEGIN without a key, and one that was sent before the task was started again or lost its state.

    Raises:
        InvalidArgumentError: If several shards get no key to sign with. Nothing is changed.
        AbortedError: If it was not meant for this process, or for its present life. Nothing is changed.
    """
    if len(request.key) != KEY_BYTES and (request.key or request.shards > 1):
        raise InvalidArgumentError(
            f"BEGIN of {request.shards} shards with a key of {len(request.key)} bytes: the PS tasks of an "
            f"incarnation need the same random one of {KEY_BYTES} bytes."
        )
    spent = shard.spent_incarnations
    if request.incarnation <= shard.view(brief=True).incarnation:
        return  # which is in force, as the caller is told
    if request.incarnation <= spent or request.spent_incarnations not in (0, spent):
        raise AbortedError(
            f"BEGIN of incarnation {request.incarnation} came too late: PS task {request.shard} was started again, "
            f"or lost its state, since it was sent. Only those above {spent} can begin there; begin anew."
        )


def begin_with(request: pb.BeginRequest, shard: Shard, present: ShardView, log: EventLog) -> tuple[int, str]:
    """Start an incarnation whose events `log` takes; see Begin.

    Args:
        request: The BEGIN, which `check_begin` has let pass.
        shard: Of the task.
        present: What the shard was before.
        log: The incarnation's.
    """
    begin = begin_event(request)
    begin.log = log
    begun = shard.handle(begin)
    if begin.run.is_other(present.run) and present.state in (State.INITIALIZING, State.READY):
        _log.warning("PS task %d has dropped %s: %s has begun.", request.shard, present.run, begin.run)
    return begun

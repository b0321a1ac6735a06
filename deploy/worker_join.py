"""`Server.join` of a worker: waits for the end of the job.

TensorFlow's waits for ever, since other tasks may use what the worker's server holds. Here it holds nothing, but
programs rely on its not returning: it stands before code that is not the worker's, or keeps a process alive whose
threads train.

Layer: deploy. Threads: the caller's.
"""

from __future__ import annotations

import contextlib
import logging
import math

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.transports import known_target, transports_to
from globalstep.worker.client.causes import why_no_answer
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.client.leaving import has_been_client, is_client
from globalstep.worker.waits.polling_wait import PollingWait

__all__ = ["wait_for_the_end"]

_log = logging.getLogger("globalstep")

_POLL_SECS = 1.0
#: PS tasks that this process knew, and that do not answer for so long, have ended with the job.
_GONE_SECS = 5.0
#: How long unclosed sessions of this process are waited for when the job is done.
_CLOSE_SECS = 10.0


def wait_for_the_end(target: str, clock: Clock = SYSTEM_CLOCK) -> None:
    """Wait until a job is done, and this process takes no part in it any more.

    It is done when a PS task says so; or when none answers any more, this process has heard of them before, and none
    of its sessions is open.

    Args:
        target: Of the PS tasks, or a Server's.
        clock: Time.
    """
    target = known_target(target).target
    reached = has_been_client(target)
    silent_since = done_since = math.inf
    wait = PollingWait(clock, math.inf)
    with contextlib.closing(ClusterClient(transports_to(target), member=False)) as client:
        while True:
            replies = client.statuses(timeout_secs=_GONE_SECS, brief=True)
            now = clock.monotonic()
            answers = [reply for reply in replies if not isinstance(reply, OpError)]
            silent_since = math.inf if answers else min(silent_since, now)
            if answers and not reached:
                reached = True
                _log.info("Server.join(): the job's parameter servers answer.")
            if any(answer.state == pb.STATE_DONE for answer in answers):
                done_since = min(done_since, now)
            if not is_client(target) and (done_since < math.inf or (reached and now - silent_since >= _GONE_SECS)):
                return
            if now - done_since >= _CLOSE_SECS:
                _log.warning("The job is done, and a session of this process is still open; it ends without that.")
                return
            if answers or reached:
                clock.sleep(_POLL_SECS)
            else:
                wait.pause(f"waiting for the job's parameter servers: {replies[0]}", lambda: why_no_answer(client))

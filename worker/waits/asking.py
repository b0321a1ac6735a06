"""Asks the sequencer, again and again, until a wait for other workers is over; no lock and no thread is held meanwhile.

Layer: worker. Threads: an Asking is thread-safe; several threads may ask at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.runtime.waiting import wait_announced
from globalstep.wire.declarations import Push, Read
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_result import PushResult

Array = npt.NDArray[Any]

#: Pauses between questions: the first; the longest, which grows with the wait; the part of the wait that it is then.
_FIRST_PAUSE_SECS = 0.0005
_LONGEST_PAUSES_SECS = (0.02, 0.25)
_PAUSE_OF_WAIT = 0.02
#: How often all PS tasks are asked, too, whether they hold the model: only the sequencer knows of the step.
_LOOK_SECS = 1.0


class Ways(NamedTuple):
    """Operations of the client; each takes the client's lock, and none waits for other workers for long.

    Attributes:
        push: Pushes changes, exactly once.
        pull: Reads values, all in one consistent read.
        call: Has shards answer a request without data, tried again until they do.
        shards_of: Gives the PS tasks that hold a Variable, or parts of it.
    """

    push: Callable[[Push], PushResult]
    pull: Callable[[Sequence[Read]], list[Array]]
    call: Callable[[pb.Request, Sequence[int]], list[pb.Reply]]
    shards_of: Callable[[str], Sequence[int]]


class Asking:
    """Asks for a client.

    Args:
        ways: The client's.
        run: What it knows of the run.
        clock: Time.
    """

    def __init__(self, ways: Ways, run: JoinedRun, clock: Clock) -> None:
        self._ways = ways
        self._run = run
        self._clock = clock

    def until(
        self,
        request: pb.Request,
        over: Callable[[pb.Reply], bool | None],
        what: str,
        why: Callable[[], str],
        first_secs: float | None = None,
    ) -> None:
        """Ask until the answer is that the wait is over, or the process is to end.

        Args:
            request: What the sequencer is asked.
            over: Told each answer; says whether it is that, and None where no pause is due before the next.
            what: For people: what is waited for.
            why: Says for people which workers.
            first_secs: After how long it is said first; see wait_announced.

        Raises:
            AbortedError: If the run's incarnation is over.
            LostStateError: If a PS task holds no state any more, and has no log.
        """
        # One that has lost its state is met by any call.
        looking = pb.Request(pull=pb.PullRequest(incarnation=self._run.incarnation, client=self._run.client))
        since = looked_at = self._clock.monotonic()
        pause = _FIRST_PAUSE_SECS

        def is_over(secs: float) -> bool:
            nonlocal pause, looked_at
            until = self._clock.monotonic() + secs
            while not self._run.shutdown.asked:
                (reply,) = self._ways.call(request, [self._run.sequencer])
                answer = over(reply)
                if answer:
                    return True
                now = self._clock.monotonic()
                if now >= until:
                    return False
                if now - looked_at >= _LOOK_SECS:
                    self._ways.call(looking, range(len(self._run.transports)))
                    looked_at = now
                if answer is None:
                    continue
                self._clock.sleep(pause)
                least, most = _LONGEST_PAUSES_SECS
                pause = min(1.5 * pause, max(least, min(_PAUSE_OF_WAIT * (now - since), most)))
            return True  # the process is to end: nothing is waited for any more

        wait_announced(is_over, what, self._clock, why, first_secs)

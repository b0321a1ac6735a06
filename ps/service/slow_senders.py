"""Timeouts for slow senders: callers whose message does not come, and messages that stay half-way.

A client that announces bytes gets memory for them, or a thread that waits. Both are for clients that send. So a thread
looks every second at all that is half-way, and cuts off what has not come on as it must: at _BYTES_PER_SEC, after a
while that every client is given. Senders need to do nothing for that: the thread looks at how far each has come.

Layer: ps. Threads: one, "globalstep-slow-senders", owned by the SlowSenders; what it looks at is used by others
meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import grpc

from globalstep.ps.budget import MemoryClaim
from globalstep.runtime.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: What everybody is given before anything is asked for.
GRACE_SECS = 5.0
#: The least that has to come then.
_BYTES_PER_SEC = 1 << 20
_LOOK_EVERY_SECS = 1.0


class Sender(Protocol):
    """What may be half-way."""

    @property
    def slack_bytes(self) -> int:
        """How much may have come that is not seen yet."""
        ...

    @property
    def needs_memory(self) -> bool:
        """Whether what it keeps is memory, which is left to it as long as no other call waits for some."""
        ...

    def under_way(self) -> tuple[object, int] | None:
        """Say what has begun to come, and how many bytes of it have; None for nothing. Called by another thread."""
        ...

    def cut_off(self, secs: float) -> None:
        """End it, since too little has come for so long. Called by another thread."""
        ...


class Stalled:
    """A unary call whose client is to do something: to send its message, or to take its reply.

    Args:
        context: The call.
        reply_bytes: What it is to take: as fast as messages must come.
        claim: Of the memory that it keeps meanwhile, if any.
    """

    def __init__(self, context: grpc.ServicerContext, reply_bytes: int = 0, claim: MemoryClaim | None = None) -> None:
        self._context, self.slack_bytes, self.claim = context, reply_bytes, claim

    @property
    def needs_memory(self) -> bool:
        """See Sender."""
        return self.claim is not None

    def under_way(self) -> tuple[object, int]:
        """Wait for all of it."""
        return self, 0

    def cut_off(self, secs: float) -> None:
        """End the call."""
        _log.info("A call of %s was ended: its client did nothing for %.0f s.", self._context.peer(), secs)
        self._context.cancel()


class SlowSenders:
    """See the module's text. Thread-safe.

    Args:
        clock: Time.
        is_short: Whether a call waits for memory, or was refused some lately.
    """

    def __init__(self, clock: Clock, is_short: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_short = is_short
        # Changed, and copied, by any thread: each time by one call that no other thread's comes between.
        self._senders: set[Sender] = set()
        #: What each had under way when it was looked at first, and when that was. Only the thread's.
        self._seen: dict[Sender, tuple[object, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="globalstep-slow-senders", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. Safe to call twice, or without a start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, sender: Sender) -> None:
        """Look at a sender from now on."""
        self._senders.add(sender)

    def forget(self, sender: Sender) -> None:
        """Look at it no more."""
        self._senders.discard(sender)

    @contextmanager
    def watching(self, sender: Sender) -> Iterator[None]:
        """Look at a sender meanwhile."""
        self.watch(sender)
        try:
            yield
        finally:
            self.forget(sender)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, _LOOK_EVERY_SECS):
            self.look()

    def look(self) -> None:
        """Cut off senders that are too slow."""
        short = self._is_short()
        now = self._clock.monotonic()
        before, self._seen = self._seen, {}
        for sender in list(self._senders):
            found = sender.under_way()
            if found is None:
                continue
            what, nbytes = found
            mark, since = before.get(sender, (None, now))
            if mark is not what:
                since = now
            self._seen[sender] = what, since
            late = nbytes + sender.slack_bytes < (now - since - GRACE_SECS) * _BYTES_PER_SEC
            if late and (short or not sender.needs_memory):
                sender.cut_off(now - since)

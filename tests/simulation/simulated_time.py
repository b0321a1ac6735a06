"""Simulated time: a queue of events, and processes that wait for some of them.

Programs block: they wait for replies and for time to pass. Each of their threads is a greenlet here, so it can be
left in the middle of a wait and gone on with when its event comes. Nothing runs but the event whose turn it is, so a
run is decided by its seed alone.

A PS task may have a thread for each connection, too. Such a thread loses its turn only where it takes a lock: between
two events of its shard. In between it does what it does as a whole.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from globalstep.ps.shard.shard import Shard

__all__ = ["EPOCH", "Hub", "Process", "ProcessClock", "Threads", "Violation"]

#: Wall clock time, seconds since the epoch, at which every simulation begins.
EPOCH = 1.7e9
#: How likely a thread loses its turn at a lock, and for how long at most, in simulated seconds.
_CHANCE, _LONGEST_SECS = 0.25, 0.03


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        invariant: "I1" to "I5", "log" for a life that should have gone on, "wait" for a call that waits for what has
            come, or "end" for a job that comes to none.
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Hub:
    """The queue of events.

    Attributes:
        now: Seconds since the simulation began.
        events: How many have happened.
        greenlet: Where events happen.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self.greenlet = getcurrent()

    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        """Have `action(*args)` done at a time; what is due at the same time is done in the order of the calls."""
        self._numbers += 1
        heapq.heappush(self._queue, (max(when, self.now), self._numbers, action, args))

    def after(self, secs: float, action: Callable[..., None], *args: Any) -> None:
        """Have `action(*args)` done in `secs`."""
        self.at(self.now + secs, action, *args)

    def run(self, until: Callable[[], bool], latest: float, most_events: int) -> bool:
        """Let events happen.

        Args:
            until: When to stop.
            latest: No event after this time happens.
            most_events: Nor any after so many.

        Returns:
            Whether `until` came true.
        """
        while not until():
            if not self._queue or self._queue[0][0] > latest or self.events >= most_events:
                return False
            self.now, _, action, args = heapq.heappop(self._queue)
            self.events += 1
            action(*args)
        return True

    def switch(self) -> None:
        """Leave the present greenlet for the next event."""
        self.greenlet.switch()


class ProcessClock:
    """The clock of one process; see globalstep.runtime.clock.Clock.

    Args:
        process: Whose threads wait by it.
        skew_secs: How far its wall clock is wrong.
    """

    def __init__(self, process: Process, skew_secs: float = 0.0) -> None:
        self._process = process
        self._skew_secs = skew_secs

    def monotonic(self) -> float:
        """See Clock."""
        return self._process.hub.now

    def time(self) -> float:
        """See Clock."""
        return EPOCH + self._skew_secs + self._process.hub.now

    def set_back(self, secs: float) -> None:
        """Have somebody set the wall clock back."""
        self._skew_secs -= secs

    def wait(self, event: threading.Event, timeout_secs: float) -> bool:
        """See Clock. An event that is set meanwhile is seen when the time has passed."""
        if not event.is_set():
            self._process.sleep(timeout_secs)
        return event.is_set()

    def sleep(self, secs: float) -> None:
        """See Clock."""
        self._process.sleep(secs)


class Process:
    """A process that can be killed and stopped at any point.

    Args:
        hub: Its time.
        name: For people.
        failed: Told of an exception that ends one of its threads.

    Attributes:
        role: Its name without the number of its life.
        alive: Until it is killed or ends.
        stopped_until: It does nothing before that time (SIGSTOP).
    """

    def __init__(self, hub: Hub, name: str, failed: Callable[[Process, BaseException], None]) -> None:
        self.hub = hub
        self.name = name
        self.role = name.partition("#")[0]
        self.alive = True
        self.stopped_until = 0.0
        self._failed = failed
        self._threads: list[greenlet] = []

    def start(self, target: Callable[..., None], *args: Any) -> None:
        """Start a thread, which runs from the next event on."""

        def main() -> None:
            try:
                target(*args)
            except GreenletExit:
                pass
            except BaseException as error:
                self._failed(self, error)

        thread = greenlet(main, self.hub.greenlet)
        thread.process = self
        self._threads.append(thread)
        self.hub.after(0.0, self.wake, thread)

    def wake(self, thread: greenlet) -> None:
        """Go on with a thread that is parked; once the process is no longer stopped, and never if it is dead."""
        if not self.alive or thread.dead:
            return
        if self.hub.now < self.stopped_until:
            self.hub.at(self.stopped_until, self.wake, thread)
        else:
            thread.switch()

    def park(self) -> None:
        """Leave the present thread until somebody wakes it."""
        if self.alive:
            self.hub.switch()
        if not self.alive:
            raise GreenletExit

    def sleep(self, secs: float) -> None:
        """Let time pass for the present thread."""
        self.hub.after(secs, self.wake, getcurrent())
        self.park()

    def stop_for(self, secs: float) -> None:
        """Stop the process for a while; a thread that runs at the moment stops where it is."""
        self.stopped_until = max(self.stopped_until, self.hub.now + secs)
        if getcurrent() in self._threads:
            self.sleep(0.0)

    def kill(self) -> None:
        """End the process, all at once; one of its threads that calls this is to see to its own end."""
        self.alive = False
        for thread in self._threads:
            if not thread.dead and thread is not getcurrent():
                # It unwinds, and can send nothing any more; one that has not begun never does. Then this goes on.
                thread.parent = getcurrent()
                thread.throw(GreenletExit)


def _nothing() -> None:
    pass


class Threads:
    """The threads of one process.

    Args:
        process: It.
        random: Decides who loses the turn.
        shard: Its state.
        decided: Told at once of what a call has had decided; None where a thread is to be done with that, and with what
            it says of it, before another one comes: with a log nobody may hear of it before it is on the disk.
    """

    def __init__(
        self, process: Process, random: Random, shard: Shard, decided: Callable[[Any], None] | None = None
    ) -> None:
        # What a thread carries out.
        self._calls: dict[greenlet, Any] = {}
        self._process = process
        self._random = random
        self._shard = shard
        self._tell = decided
        self._work: defaultdict[Hashable, deque[tuple[Callable[[], None], Callable[[], None]]]] = defaultdict(deque)
        self._running: set[greenlet] = set()
        # Those that have decided on something, which is checked before another one comes.
        self._decided: set[greenlet] = set()
        self._handle = shard.handle
        shard.handle = self._event  # type: ignore[method-assign]

    def run(self, connection: Hashable, act: Callable[[], None], lost: Callable[[], None] = _nothing) -> None:
        """Have a connection's thread do something, once it is done with what came before.

        Args:
            connection: Whose thread.
            act: What it does.
            lost: Called if the process dies before that is done.
        """
        work = self._work[connection]
        work.append((act, lost))
        if len(work) == 1:
            self._process.start(self._serve, connection)

    def lose_all(self) -> None:
        """Tell of all that is under way: the process has died."""
        for work in self._work.values():
            for _, lost in work:
                lost()
        self._work.clear()

    def carry_out(self, call: Any) -> Any:
        """Take note of what the present thread carries out from now on; gives what it did before."""
        thread = getcurrent()
        before, self._calls[thread] = self._calls.get(thread), call
        return before

    def is_one(self) -> bool:
        """Whether it is one of these threads that runs now."""
        return getcurrent() in self._running

    def lock(self) -> Any:
        """Give a lock at which a thread may lose its turn."""
        return _Lock(self)

    def wait(self) -> None:
        """Let others come first."""
        self._process.sleep(_LONGEST_SECS * self._random.random())

    def may_lose_turn(self) -> None:
        """Let another thread come first, perhaps."""
        thread = getcurrent()
        if thread in self._running and thread not in self._decided and self._random.random() < _CHANCE:
            self.wait()

    def _serve(self, connection: Hashable) -> None:
        thread, work = getcurrent(), self._work[connection]
        self._running.add(thread)
        try:
            while work and self._process.alive:
                act, _ = work[0]
                act()
                work.popleft()
                self._decided.discard(thread)
            if self._process.alive:
                del self._work[connection]
        finally:
            self._running.discard(thread)
            self._decided.discard(thread)
            self._calls.pop(thread, None)

    def _event(self, event: Any) -> Any:
        self.may_lose_turn()
        number, index = self._decisions()
        try:
            answer = self._handle(event)
        except BaseException:
            if self._decisions() != (number, index):
                self._decided.add(getcurrent())
            raise
        now, call = self._decisions(), self._calls.get(getcurrent())
        if now[0] != number or (now[1] != index and (self._tell is None or call is None)):
            self._decided.add(getcurrent())
        elif now[1] != index:
            assert self._tell is not None
            self._tell(call)
            self.may_lose_turn()
        return answer

    def _decisions(self) -> tuple[int, int]:
        now = self._shard.now
        return now.number, now.ledger.index if now.ledger is not None else -1


class _Lock:
    """A lock at which a thread may lose its turn.

    Args:
        threads: Whose.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False

    def __enter__(self) -> None:
        self._threads.may_lose_turn()
        while self._is_held:
            self._threads.wait()
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False

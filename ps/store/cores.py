"""The cores of a PS task: a few threads that share the work of one large push.

A push's kernels release the GIL, so that several threads change disjoint pieces of a Variable at the same time. It
is one push that is divided, rather than several that race: the shard's lock holds meanwhile, so the store is
consistent whatever an optimizer's `use_locking` says, and the result is the same bit for bit.

Layer: ps. Threads: those named "globalstep-apply-N", owned by a Cores; they start with the first work that is
worth it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

#: From this many bytes touched on, two threads are faster than one: benchmarks/figures.md.
WORTH_BYTES = 64 << 20
#: A few cores take what the memory gives; more threads than this would only take cores from the connections.
MOST_THREADS = 4


def default_threads() -> int:
    """Give the default number of threads that apply a push: one for two cores, four at most.

    The other cores are for connections, and for the workers where they share the machine: with two cores that
    were busy, two threads took up to 1.6 times as long as one.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return max(1, min(cores // 2, MOST_THREADS))


class Cores:
    """Calls a function for each piece of some work, on several threads. Thread-safe.

    Args:
        threads: How many threads work at the same time, the caller's among them; 1 starts none.

    Raises:
        ValueError: If `threads` is less than 1.

    >>> cores, done = Cores(2), []
    >>> cores.share(done.append, 3)
    >>> sorted(done)
    [0, 1, 2]
    >>> cores.close()
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"A PS task applies pushes with at least one thread; {threads} were asked for.")
        self.threads = threads
        # It starts a thread only when work is submitted that no idle one takes.
        self._helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="globalstep-apply") if threads > 1 else None

    def share(self, work: Callable[[int], None], pieces: int) -> None:
        """Call `work` with 0, 1, ... `pieces` - 1, each once; return when all calls have.

        The caller works too, and takes what the helpers have not begun: where all cores are busy, it does nearly
        all of it itself and does not wait.

        Args:
            work: Called by several threads at the same time, for different pieces.
            pieces: How many there are.

        Raises:
            Exception: What a call raised; pieces that no thread had begun by then may be left undone.
        """
        numbers = iter(range(pieces))  # `next` on it is one step of the interpreter: no number is given twice

        def help_out() -> None:
            with np.errstate(all="ignore"):  # each thread has its own; what overflows becomes inf
                for number in numbers:
                    work(number)

        helping: list[Future[None]] = []
        if self._helpers is not None:
            # Pools take no more work once the program's main thread is over; this one does it alone then.
            with contextlib.suppress(RuntimeError):
                for _ in range(min(self.threads, pieces) - 1):
                    helping.append(self._helpers.submit(help_out))
        try:
            help_out()
        finally:
            begun = [future for future in helping if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()

    def close(self) -> None:
        """End the threads and wait for them. Safe to call twice."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)


#: For who has no threads to share work with.
ONE_CORE = Cores(1)

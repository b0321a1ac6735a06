"""Offered work: a thread that computes lets helpers take some of it, while another core has time for them.

A thread offers work, goes on with its own, and asks for the result last. What no helper has begun by then it does
itself: where all cores are busy, nobody waits for a thread that has not had its turn. A helper stays for the next
offer, since starting a thread takes four times as long as waking one; it ends when none has come for a while.

Layer: tf1. Threads: those named "globalstep-helper", which end by themselves, `_IDLE_SECS` after the last work;
functions may be called by several threads at once.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar, cast

_T = TypeVar("_T")

#: How long a helper waits for work before it ends: longer than what lies between two steps of most training.
_IDLE_SECS = 0.1


class Offered(Generic[_T]):
    """Work that a helper may do, and if none does, the thread that asks for its result.

    Args:
        work: What to do; done once.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        # The thread that takes it out does the work: `pop` is one step of the interpreter.
        self._untaken = [work]
        # What numpy says of overflow is part of the context: the result is to be the same, whoever does it.
        self._context = contextvars.copy_context()
        #: Of a helper: the result, and what was raised.
        self._done: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()

    def help(self) -> None:
        """Do it, unless somebody does already; called by a helper."""
        try:
            work = self._untaken.pop()
        except IndexError:
            return
        try:
            outcome = self._context.run(work), None
        except BaseException as error:
            self._done.put((None, error))
        else:
            self._done.put(outcome)

    def result(self) -> _T:
        """Give what the work gave, once; does it now if no helper has begun.

        Raises:
            BaseException: What the work raised.
        """
        try:
            work = self._untaken.pop()
        except IndexError:
            result, error = self._done.get()
            if error is not None:
                raise error from None
            return cast(_T, result)
        return self._context.run(work)


class _Helpers:
    """The helpers of this process. Thread-safe."""

    def __init__(self) -> None:
        # Guards _count, and that none ends while there is work; a leaf.
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: SimpleQueue[Offered[object]] = SimpleQueue()

    def offer(self, offered: Offered[object], most: int) -> None:
        """Let one of at most `most` helper threads do the work."""
        with self._lock:
            self._waiting.put(offered)
            starts = self._count < most
            self._count += starts
        if starts:
            try:
                threading.Thread(target=self._help, name="globalstep-helper").start()
            except RuntimeError:  # the system has no thread left, or this process is ending
                with self._lock:
                    self._count -= 1

    def _help(self) -> None:
        while True:
            try:
                self._waiting.get(timeout=_IDLE_SECS).help()
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._count -= 1
                        return


_helpers = _Helpers()


def _begin_anew() -> None:
    """Forget the helpers: a forked process has none, and whoever held the lock is not in it."""
    global _helpers
    _helpers = _Helpers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def offer(work: Callable[[], _T], most: int) -> Offered[_T]:
    """Offer work to the helpers.

    Args:
        work: What to do; it must not wait for the thread that offers it.
        most: How many helpers there may be in this process, at least 1.

    Returns:
        What gives the result.

    >>> offer(lambda: 3 * 4, 1).result()
    12
    """
    offered = Offered(work)
    _helpers.offer(cast(Offered[object], offered), most)
    return offered

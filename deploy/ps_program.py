"""A PS task whose own program dequeues, in place of `server.join()`.

TensorFlow programs end their PS tasks so: each worker puts an element into a queue of each PS task when it is done, and
the PS task's program takes as many as there are workers. Meanwhile this task serves, and it does so until its clients
have left: the last of them saves a checkpoint after it has said that it is done.

Layer: deploy. Threads: called by those of the program that wait for elements; at the end by the main thread.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from globalstep.ps.server import EXIT_TERMINATED, PSServer
from globalstep.worker.client.leaving import ends_unfinished

__all__ = ["PSProgram", "code_of"]

_log = logging.getLogger(__name__)

_POLL_SECS = 0.05


def code_of(ps: PSServer, terminated: bool) -> int:
    """Give the exit code of a PS task's process: an end that was asked for otherwise than by SIGTERM is no failure."""
    return 0 if ps.exit_code == EXIT_TERMINATED and not terminated else ps.exit_code


class PSProgram:
    """What is done while a PS task's program waits for elements of a queue, and when it has come to its end.

    Args:
        ps: The task.
        index: Its number.
        end: Ends the process, with an exit code.

    Attributes:
        joined: Whether the program has called `join` or `stop`, so that nothing is left to be done at its end.
    """

    def __init__(self, ps: PSServer, index: int, end: Callable[[int], Any]) -> None:
        self.joined = False
        self._ps = ps
        self._index = index
        self._end = end
        # Guards the looks, and the attributes below; the shard's lock is taken under it.
        self._lock = threading.Lock()
        self._begun = False
        self._terminated = False

    def __call__(self) -> None:
        """Look whether this task is to end while its program waits, and end its process then, as `join` does.

        Raises:
            SystemExit: If it is: the job is done and everybody has left, no client came, or a SIGTERM asked for it.
        """
        with self._lock:
            first, self._begun = not self._begun, True
        if first:
            self._begin()
        with self._lock:
            ends = self._ps.attend()
        if ends:
            code = code_of(self._ps, self._terminated)
            _log.info("/job:ps/task:%d ends with code %d: nobody will put more into its queues.", self._index, code)
            self.joined = True
            self._ps.shut_down()
            self._end(code)

    def _begin(self) -> None:
        """Have a SIGTERM end this task as it ends one in `join`, and the task serve on at its program's end."""
        # Called when the main thread has come to its end, before threads can be started no more. concurrent.futures
        # ends its pools by it too, gRPC's among them; what comes later is called first.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(self._serve_on)
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._terminated = True
        self._ps.stop()

    def _serve_on(self) -> None:
        """Serve until the clients that are here have left, unless the program has failed."""
        if self.joined or ends_unfinished(getattr(sys, "last_value", None)):
            return
        self.joined = True
        if self._ps.shard.attendance()[1]:
            _log.info("/job:ps/task:%d has all that it waited for; it serves until its clients have left.", self._index)
        while self._ps.shard.attendance()[1] and not self._ps.attend():
            self._ps.pause(_POLL_SECS)
        self._ps.shut_down()

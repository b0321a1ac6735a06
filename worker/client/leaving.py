"""The clients of this process: which are open, and how an unclosed one leaves with its interpreter.

A loop that breaks and a `main` that returns leave sessions open. The PS tasks hear of it at once; of a crash they hear
by a lease that runs out.

Layer: worker. Threads: functions; any number at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from typing import Protocol

from globalstep.errors import OutOfRangeError

_log = logging.getLogger("globalstep")

#: Ends of a block that are as good as any: an input that has ended, a job that is done, a process that has nothing to
#: complain of.
_GOOD_ENDS = (OutOfRangeError, StopIteration, GeneratorExit)


class _Leaves(Protocol):
    def leave_with_process(self, unfinished: bool) -> None: ...


class _Closable(Protocol):
    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


# Guards the three below; a leaf.
_lock = threading.Lock()
_open: weakref.WeakSet[_Leaves] = weakref.WeakSet()
_registered_by = 0
#: What a target means -> the clients made for it that are still referred to; empty where there were some.
_clients: dict[str, weakref.WeakSet[_Closable]] = {}


def ends_unfinished(error: BaseException | None) -> bool:
    """Say whether what is closed while `error` is on its way ends before its work does.

    >>> ends_unfinished(None), ends_unfinished(SystemExit(0)), ends_unfinished(KeyboardInterrupt())
    (False, False, True)
    """
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, _GOOD_ENDS)


def leave_at_exit(client: _Leaves) -> None:
    """Have a client leave when the interpreter ends, unless nothing refers to it any more.

    Args:
        client: Its `leave_with_process` is called, with whether the program ended by an exception. That is safe to
            call after it has left.
    """
    global _registered_by
    with _lock:
        _open.add(client)
        if _registered_by != os.getpid():
            _registered_by = os.getpid()
            atexit.register(_leave_all, os.getpid())


def _leave_all(pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child: the clients are its parent's
    with _lock:
        clients = list(_open)
    # What the interpreter printed a traceback of. It does not show the code of sys.exit.
    unfinished = ends_unfinished(getattr(sys, "last_value", None))
    for client in clients:
        try:
            client.leave_with_process(unfinished)
        except Exception as error:
            _log.debug("A client could not leave as the process ends: %s", error)


def note_client(target: str, client: _Closable) -> None:
    """Take note of a client that was made.

    Args:
        target: The target with all PS tasks; see transports.KnownTarget.
        client: The client.
    """
    with _lock:
        _clients.setdefault(target, weakref.WeakSet()).add(client)


def has_been_client(target: str) -> bool:
    """Say whether this process has had a client of these PS tasks."""
    with _lock:
        return target in _clients


def is_client(target: str) -> bool:
    """Say whether a client of these PS tasks is open in this process."""
    with _lock:
        return any(not client.closed for client in _clients.get(target, ()))


def close_clients() -> None:
    """Close every client of this process: nothing closes them after its end, and PS tasks would wait for them."""
    with _lock:
        all_clients = [client for clients in _clients.values() for client in clients]
    for client in all_clients:
        client.close()

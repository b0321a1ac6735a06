"""The clients that this process made: what waits for the end of a job asks whether one of them still takes part.

Layer: worker. Threads: functions; any number at once.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

__all__ = ["close_clients", "has_been_client", "is_client", "note_client"]


class _Closable(Protocol):
    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


# Guards _clients; a leaf.
_lock = threading.Lock()
#: What a target means -> the clients made for it that are still referred to; empty where there were some.
_clients: dict[str, weakref.WeakSet[_Closable]] = {}


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
        found = [client for clients in _clients.values() for client in clients]
    for client in found:
        client.close()

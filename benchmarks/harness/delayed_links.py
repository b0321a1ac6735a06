"""Links with a delay: addresses at which tasks of this machine are reached as if they were further away.

A process of its own (`python -m benchmarks.programs.delaying_proxy`) listens at the same ports on another address of
the loopback device, and passes on what it receives after a while, in both directions. Who dials a task there, gets all
of its connections delayed, also those that the task names a port for.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Sequence

from benchmarks.harness.processes import Child, Children

__all__ = ["FAR", "NEAR", "delayed", "free_ports", "round_trip_secs"]

#: Where tasks are, and where they are reached with a delay.
NEAR, FAR = "127.0.0.1", "127.0.0.2"
#: Below those that Linux gives to connections, and to servers that ask for port 0.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Give ports that are free at both addresses now, of those that the system gives nobody who asks for any."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.create_server((NEAR, port)), socket.create_server((FAR, port)):
            found.append(port)
    return found


def delayed(started: Children, ports: Sequence[int], secs: float) -> Child:
    """Start the process that passes on what comes to ports, each way after some time; it listens when this returns."""
    words = ["-m", "benchmarks.programs.delaying_proxy", "--secs", str(secs), "--ports", *map(str, ports)]
    proxy = started.start(words, os.environ)
    proxy.answer()
    return proxy


def round_trip_secs(host: str, port: int, count: int = 50) -> list[float]:
    """Give how long a byte takes to an echo and back, so many times."""
    found = []
    with socket.create_connection((host, port), timeout=10.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            found.append(time.monotonic() - began)
    return found

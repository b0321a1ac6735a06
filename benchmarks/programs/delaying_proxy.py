"""`python -m benchmarks.programs.delaying_proxy`: passes on what comes to some ports, each way after some time.

See `benchmarks.harness.delayed_links`. It ends with its stdin, so that it cannot outlive the command that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import select
import socket
import sys
import time
from collections import deque

from benchmarks.harness.delayed_links import FAR, NEAR

_AT_ONCE = 1 << 16
#: Linux wakes a process up to 50 microseconds late, unless it asks for less.
_PR_SET_TIMERSLACK, _SLACK_NANOS = 29, 1000


class DelayingProxy:
    """Passes on bytes; one thread does all, so that what is due is not held up by another thread's turn.

    Args:
        ports: Where it listens, at FAR; it passes on to the same port at NEAR.
        secs: How long every byte takes.
    """

    def __init__(self, ports: list[int], secs: float) -> None:
        self._secs = secs
        self._listening = {socket.create_server((FAR, port)): port for port in ports}
        #: A connection's end -> its other end.
        self._others: dict[socket.socket, socket.socket] = {}
        #: When it is to be sent, where, and what; b"" for the end.
        self._coming: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self) -> None:
        """Pass on until stdin ends."""
        while True:
            left = max(self._coming[0][0] - time.monotonic(), 0.0) if self._coming else None
            ready, _, _ = select.select([sys.stdin, *self._listening, *self._others], [], [], left)
            if sys.stdin in ready and not sys.stdin.readline():
                return
            for item in ready:
                if item in self._listening:
                    self._accept(item, self._listening[item])
                elif item in self._others:
                    self._receive(item)
            while self._coming and self._coming[0][0] <= time.monotonic():
                self._deliver(*self._coming.popleft()[1:])

    def _accept(self, listening: socket.socket, port: int) -> None:
        near, _ = listening.accept()
        try:
            far = socket.create_connection((NEAR, port))
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = other

    def _receive(self, end: socket.socket) -> None:
        try:
            data = end.recv(_AT_ONCE)
        except OSError:
            data = b""
        other = self._others[end]
        self._coming.append((time.monotonic() + self._secs, other, data))
        if not data:
            del self._others[end]

    def _deliver(self, end: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):  # who does not take it is gone
            if data:
                end.sendall(data)
            else:
                end.shutdown(socket.SHUT_WR)


def main() -> None:
    """Pass on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.delaying_proxy", description=__doc__)
    parser.add_argument("--secs", type=float, required=True, help="how long every byte takes, each way")
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    args = parser.parse_args()
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NANOS)
    proxy = DelayingProxy(args.ports, args.secs)
    print("{}", flush=True)
    proxy.run()


if __name__ == "__main__":
    main()

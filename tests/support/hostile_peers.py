"""Who knocks at a PS task's ports without being a client: scanners, noise, connections that say nothing or too little.

Used by the test of hostile ports, and by the benchmark.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
from collections import Counter
from pathlib import Path

from globalstep.runtime.clock import SYSTEM_CLOCK

_HTTP = b"GET /admin HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scan\r\n\r\n"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TLS = bytes.fromhex("16030100a5010000a10303") + bytes(160)


class HostilePeers:
    """Threads that knock at addresses until they are stopped; use it in a `with` block.

    Args:
        addresses: "host:port", or the name of a unix socket in the abstract namespace, with its zero byte.
        idle: Connections that are opened at each address and say nothing.
        seed: Of the noise.
    """

    def __init__(self, addresses: list[str], idle: int, seed: int = 1) -> None:
        self._addresses = addresses
        self._idle = idle
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._idle_open = threading.Event()
        self.counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=target, args=(address,), name=f"hostile-{at}", daemon=True)
            for at, address in enumerate(addresses)
            for target in (self._knock, self._be_idle, self._drip)
        ]

    def __enter__(self) -> HostilePeers:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096 * len(self._addresses))), hard))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _connect(self, address: str) -> socket.socket:
        if address.startswith("\0"):
            made = socket.socket(socket.AF_UNIX)
            try:
                made.settimeout(1.0)
                made.connect(address)
            except OSError:
                made.close()
                raise
            return made
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), 1.0)

    def _knock(self, address: str) -> None:
        """Send what is no message, one connection after another."""
        kinds = {
            "http": lambda: _HTTP,
            "http2": lambda: _HTTP2 + self._rng.randbytes(200),
            "tls": lambda: _TLS,
            "noise": lambda: self._rng.randbytes(self._rng.randrange(1, 5000)),
            "half a header": lambda: b"gsm1",
            "closed at once": lambda: b"",
        }
        while not self._stop.is_set():
            for kind, make in kinds.items():
                # Refused and reset connections are what is hoped for.
                with contextlib.suppress(OSError), self._connect(address) as made:
                    made.sendall(make())
                    if self._rng.randrange(2):
                        made.shutdown(socket.SHUT_WR)
                    made.settimeout(0.05)
                    made.recv(4096)
                self.counts[kind] += 1
            SYSTEM_CLOCK.wait(self._stop, 0.01)

    def _be_idle(self, address: str) -> None:
        """Hold connections that say nothing; those that are closed are opened again."""
        held: list[socket.socket] = []
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                held.append(self._connect(address))
                self.counts["idle"] += 1
            if len(held) >= self._idle:
                SYSTEM_CLOCK.wait(self._stop, 0.05)
                held.pop(0).close()
        for one in held:
            one.close()

    def _drip(self, address: str) -> None:
        """Say a byte of a message now and then."""
        while not self._stop.is_set():
            with contextlib.suppress(OSError), self._connect(address) as made:
                for byte in _HTTP2 + bytes(100):
                    made.send(bytes([byte]))
                    self.counts["dripped bytes"] += 1
                    if SYSTEM_CLOCK.wait(self._stop, 0.1):
                        break


def threads_of(pid: int) -> int:
    """Count the threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def resident_bytes(pid: int) -> int:
    """Give the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

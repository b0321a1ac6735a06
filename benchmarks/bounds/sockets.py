"""`python -m benchmarks.bounds.sockets`: how fast bytes go to a process and back, by kind and size of buffers.

What a push and its values cost at least, whoever sends them. An echo in a process of its own; all settings
take turns, round after round. Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

_BUFFERS_KIB = (0, 128, 256, 512, 1024, 4096)
_SECS = 0.2


def _receive(connection: socket.socket, into: memoryview) -> bool:
    at = 0
    while at < into.nbytes:
        got = connection.recv_into(into[at:], 0, socket.MSG_WAITALL)
        if not got:
            return False
        at += got
    return True


def _tune(connection: socket.socket, kib: int) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kib:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, kib << 10)


def _pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
        return here, there


def _echo(connection: socket.socket, nbytes: int) -> None:
    received, sent = memoryview(bytearray(nbytes)), np.ones(nbytes, np.uint8).data
    while _receive(connection, received):
        connection.sendall(sent)


def _turn(connection: socket.socket, sent: memoryview, received: memoryview) -> float:
    """Seconds of one exchange."""
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < _SECS:
        connection.sendall(sent)
        _receive(connection, received)
        count += 1
    return (time.perf_counter() - begin) / count


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds.sockets", description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4_000, 400_000, 4_000_000, 40_000_000], metavar="N")
    parser.add_argument("--rounds", type=int, default=7, help="how often every setting has its turn")
    args = parser.parse_args(argv)
    print("Microseconds for so many bytes there and as many back, median (least):\n")
    print("| bytes | socket | " + " | ".join(f"{kib} KiB" if kib else "default" for kib in _BUFFERS_KIB) + " |")
    print("| ---: | --- |" + " ---: |" * len(_BUFFERS_KIB))
    fork = multiprocessing.get_context("fork")
    for nbytes in args.bytes:
        for kind in ("unix", "tcp"):
            sent, received = np.ones(nbytes, np.uint8).data, memoryview(bytearray(nbytes))
            here: list[socket.socket] = []
            echoes = []
            for kib in _BUFFERS_KIB:
                mine, its = _pair(kind)
                _tune(mine, kib)
                _tune(its, kib)
                here.append(mine)
                echoes.append(fork.Process(target=_echo, args=(its, nbytes), daemon=True))
                echoes[-1].start()
                its.close()
            times = [[_turn(connection, sent, received) for connection in here] for _ in range(args.rounds)]
            for connection in here:
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            for echo in echoes:
                echo.join()
            cells = [f"{median(turns) * 1e6:,.0f} ({min(turns) * 1e6:,.0f})" for turns in zip(*times, strict=True)]
            print(f"| {nbytes:,} | {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

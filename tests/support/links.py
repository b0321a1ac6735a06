"""Links that tests cut without a word, as a switch does that fails: a TCP proxy before a PS task."""

from __future__ import annotations

import contextlib
import socket
import threading


class Link:
    """A TCP proxy that can be told to carry nothing any more, in either direction; new connections hang as well.

    Use it in a `with` block, or close it.

    Args:
        address: Where it leads to; nobody needs to listen there yet.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        #: Whether something was to be carried that the cut held up.
        self.has_held = threading.Event()
        self._carries = threading.Event()
        self._carries.set()
        self._ended = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="link")]
        self._threads[0].start()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cut(self) -> None:
        """Carry nothing more."""
        self.has_held.clear()
        self._carries.clear()

    def mend(self) -> None:
        """Carry what comes by new connections; the old ones are lost."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._carries.set()

    def close(self) -> None:
        """End all connections, and the threads."""
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self.mend()
        for thread in self._threads:
            thread.join(5)
        for one in (self._listening, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, target), name="link-pump"))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while not self._carries.is_set() and not self._ended.is_set():
                    self.has_held.set()
                    self._carries.wait(0.1)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

"""TLS sockets with the interface of the plain socket that `globalstep.wire.socket_messages` is written for.

One thread may send while another receives, as on a plain socket. OpenSSL does not allow that on one connection, and
a call of it that waits would hold up the other: so its calls never wait here, are made one at a time, and a
thread that has to wait does so outside of them.

Layer: shared. Imports nothing of globalstep. Threads: any number at once.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["TlsSocket"]

_T = TypeVar("_T")

#: Of one TLS record: smaller pieces are put together up to it.
_RECORD_BYTES = 1 << 14


class TlsSocket:
    """A connection past its handshake.

    Args:
        plain: The connected socket, which is this object's from now on.
        context: See credentials.TlsFiles.context.
        host: On the client's side, the host that the other side's certificate is to name; None on the server's.
        handshake_secs: How long the handshake may take.

    Raises:
        OSError: If the other side does not speak TLS, or one of both does not believe the other.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str | None, handshake_secs: float) -> None:
        plain.settimeout(handshake_secs)
        try:
            self._ssl = context.wrap_socket(
                plain, server_side=host is None, server_hostname=host, suppress_ragged_eofs=True
            )
        except BaseException:
            plain.close()
            raise
        self._ssl.setblocking(False)
        self._timeout: float | None = handshake_secs
        # Guards OpenSSL's state of the connection; a leaf; no thread waits while it holds it.
        self._lock = threading.Lock()

    @property
    def family(self) -> int:
        """See socket.socket."""
        return self._ssl.family

    def peer_certificate(self) -> bytes:
        """Give the certificate that the other side has proven to be its own, DER."""
        return self._ssl.getpeercert(binary_form=True) or b""

    def getpeername(self) -> Any:
        """See socket.socket."""
        return self._ssl.getpeername()

    def getsockname(self) -> Any:
        """See socket.socket."""
        return self._ssl.getsockname()

    def fileno(self) -> int:
        """See socket.socket."""
        return self._ssl.fileno()

    def settimeout(self, secs: float | None) -> None:
        """See socket.socket."""
        self._timeout = secs

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """See socket.socket."""
        self._ssl.setsockopt(level, option, value)

    def recv(self, nbytes: int) -> bytes:
        """See socket.socket."""
        return self._when_ready(lambda: self._ssl.recv(nbytes))

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """See socket.socket. The flag MSG_WAITALL is a wish only, and not granted."""
        return self._when_ready(lambda: self._ssl.recv_into(buffer, nbytes or None))

    def sendall(self, data: bytes) -> None:
        """See socket.socket."""
        left = memoryview(data)
        while left:
            left = left[self.sendmsg([left]) :]

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """See socket.socket."""
        return self.sendmsg([data], (), flags)

    def sendmsg(self, pieces: Sequence[bytes | memoryview], rights: Sequence[Any] = (), flags: int = 0) -> int:
        """See socket.socket. Sends the first piece, or as many small ones as fit one record.

        What was refused with BlockingIOError is to be sent again as it was.
        """
        assert not rights, "descriptors only pass through unix sockets"
        first = memoryview(pieces[0])
        if first.nbytes >= _RECORD_BYTES or len(pieces) == 1:
            data: Any = first.cast("B")
        else:
            small: list[bytes | memoryview] = []
            size = 0
            for piece in pieces:
                small.append(piece)
                size += memoryview(piece).nbytes
                if size >= _RECORD_BYTES:
                    break
            data = memoryview(b"".join(small))[:_RECORD_BYTES]
        if not data.nbytes:
            return 0
        return self._when_ready(lambda: self._ssl.send(data), waits=not flags & socket.MSG_DONTWAIT)

    def shutdown(self, how: int) -> None:
        """See socket.socket. Threads in a call on this connection come back; TLS sends no close_notify."""
        socket.socket.shutdown(self._ssl, how)

    def close(self) -> None:
        """See socket.socket."""
        with self._lock:
            self._ssl.close()

    def __enter__(self) -> TlsSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _when_ready(self, call: Callable[[], _T], waits: bool = True) -> _T:
        """Make a call of OpenSSL; wait for the network outside of it, as often as it asks for that."""
        until = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with self._lock:
                try:
                    return call()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                except ValueError as error:  # it has been closed
                    raise ConnectionAbortedError(str(error)) from None
                descriptor = self._ssl.fileno()
            if not waits:
                raise BlockingIOError("the connection takes no more now")
            poll = select.poll()
            poll.register(descriptor, event)
            if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError("timed out")

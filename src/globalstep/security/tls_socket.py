"""TLS sockets with the interface of the plain socket that `globalstep.wire.socket_messages` is written for.

One thread may send while another receives, as on a plain socket. OpenSSL does not allow that on one connection: so its
calls are made one at a time. It works in memory here, and many records at a time go to the network and come from it:
OpenSSL's own calls on a socket take two of the system for each record of 16 KiB, and have the other end wake up for
each. No call of OpenSSL waits for the network; a thread that has to wait does so outside of them.

Layer: shared. Imports nothing of globalstep. Threads: any number at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

#: One TLS record: smaller pieces are put together up to it.
_RECORD_BYTES = 1 << 14
#: So much is encrypted before it is sent, and received before it is decrypted.
_BATCH_BYTES = 1 << 17


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
        self._socket = plain
        self._timeout: float | None = handshake_secs
        # Guards all below, and OpenSSL's state of the connection; a leaf; no thread waits while it holds it.
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        #: What has come, before OpenSSL has it.
        self._received = memoryview(bytearray(_BATCH_BYTES))
        #: What is encrypted, and not sent yet; and of how many plain bytes, which the caller does not know of yet.
        self._unsent = memoryview(b"")
        self._accepted = 0
        try:
            plain.setblocking(False)
            self._ssl = context.wrap_bio(self._incoming, self._outgoing, host is None, host)
            self._shake_hands()
        except BaseException:
            plain.close()
            raise

    def _shake_hands(self) -> None:
        until = self._until()
        while True:
            with self._lock:
                try:
                    self._ssl.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    done = False
                except ssl.SSLError:
                    with contextlib.suppress(OSError):
                        self._flush()  # why, for the other side
                    raise
                sent = self._flush()
                if done and sent:
                    return
                if sent and self._take_in() is not None:
                    continue
            self._wait(select.POLLIN if sent else select.POLLOUT, until)

    @property
    def family(self) -> int:
        """See socket.socket."""
        return self._socket.family

    def peer_certificate(self) -> bytes:
        """Give the certificate that the other side has proven to be its own, DER."""
        return self._ssl.getpeercert(binary_form=True) or b""

    def getpeername(self) -> Any:
        """See socket.socket."""
        return self._socket.getpeername()

    def getsockname(self) -> Any:
        """See socket.socket."""
        return self._socket.getsockname()

    def fileno(self) -> int:
        """See socket.socket. More may have been received than the system knows of."""
        return self._socket.fileno()

    def settimeout(self, secs: float | None) -> None:
        """See socket.socket."""
        self._timeout = secs

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """See socket.socket."""
        self._socket.setsockopt(level, option, value)

    def recv(self, nbytes: int) -> bytes:
        """See socket.socket."""
        buffer = bytearray(nbytes)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """See socket.socket. The flag MSG_WAITALL is a wish only, and not granted."""
        view = memoryview(buffer).cast("B")[: nbytes or None]
        until = self._until()
        at = 0
        while at < view.nbytes:
            with self._lock:
                got = self._decrypt(view[at:])
                at += got or 0
                if self._outgoing.pending:  # an answer of TLS itself, as to a new key
                    with contextlib.suppress(OSError):
                        self._flush()
                if got is None or at == view.nbytes:
                    return at
                came = self._take_in()
            if came is None:
                if at:
                    return at
                self._wait(select.POLLIN, until)
        return at

    def sendall(self, data: bytes) -> None:
        """See socket.socket."""
        left = memoryview(data)
        while left:
            left = left[self.sendmsg([left]) :]

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """See socket.socket."""
        return self.sendmsg([data], (), flags)

    def sendmsg(self, pieces: Sequence[bytes | memoryview], rights: Sequence[Any] = (), flags: int = 0) -> int:
        """See socket.socket. What was refused with BlockingIOError is to be sent again as it was."""
        assert not rights, "descriptors only pass through unix sockets"
        until = self._until()
        while True:
            with self._lock:
                if not self._accepted:
                    self._accepted = self._encrypt(pieces)
                if self._flush():
                    accepted, self._accepted = self._accepted, 0
                    return accepted
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError("the connection takes no more now")
            self._wait(select.POLLOUT, until)

    def shutdown(self, how: int) -> None:
        """See socket.socket. Threads in a call on this connection come back; TLS is told nothing."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """See socket.socket."""
        with self._lock:
            self._socket.close()

    def __enter__(self) -> TlsSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- OpenSSL, in memory; the caller of each holds the lock --------------------------------

    def _encrypt(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Encrypt what comes first, up to a batch; gives how many plain bytes that are."""
        done = 0
        small: list[bytes | memoryview] = []
        small_bytes = 0
        for piece in pieces:
            view = memoryview(piece).cast("B")
            if view.nbytes < _RECORD_BYTES:
                small.append(view)
                small_bytes += view.nbytes
            if small_bytes and (view.nbytes >= _RECORD_BYTES or small_bytes >= _RECORD_BYTES):
                done += self._write(memoryview(b"".join(small)))
                small, small_bytes = [], 0
            if view.nbytes >= _RECORD_BYTES:
                done += self._write(view[: _BATCH_BYTES - done])
            if done >= _BATCH_BYTES:
                return done
        return done + self._write(memoryview(b"".join(small)))

    def _write(self, view: memoryview) -> int:
        """Encrypt all of it, record by record."""
        at = 0
        while at < view.nbytes:
            at += self._ssl.write(view[at : at + _RECORD_BYTES])
        return at

    def _flush(self) -> bool:
        """Send encrypted bytes, as many as the system takes; return whether that was all."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    def _take_in(self) -> int | None:
        """Let OpenSSL have what has come; gives how many bytes, 0 at the end, None where nothing has come now."""
        try:
            came = self._socket.recv_into(self._received)
        except BlockingIOError:
            return None
        if came:
            self._incoming.write(self._received[:came])
        else:
            self._incoming.write_eof()
        return came

    def _decrypt(self, view: memoryview) -> int | None:
        """Give what has come whole, up to the view's size; None at the end."""
        at = 0
        while at < view.nbytes:
            try:
                got: Any = self._ssl.read(view.nbytes - at, view[at:])
            except ssl.SSLWantReadError:
                return at
            except ssl.SSLEOFError:
                got = 0
            if not got:
                return at or None
            at += got
        return at

    # -------------------------------------------------------------------------------------------

    def _until(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _wait(self, event: int, until: float | None) -> None:
        """Wait for the network. No lock is held."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise ConnectionAbortedError("the connection was closed here")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError("timed out")

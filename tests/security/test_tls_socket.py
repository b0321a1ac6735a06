"""TLS with the interface of a plain socket: what is refused, what is cut off, and how often the system is asked."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading

import pytest
from certificates import Authority

from globalstep.security.tls_socket import TlsSocket


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls")).issue("both", "127.0.0.1")


@pytest.fixture
def pair(files):
    """Both ends of a connection, past the handshake."""
    with contextlib.ExitStack() as stack:
        there, here = socket.socketpair()
        found = []

        def accept():
            found.append(TlsSocket(there, files.context(ssl.PROTOCOL_TLS_SERVER), None, 20.0))

        thread = threading.Thread(target=accept, name="accept")
        thread.start()
        ours = TlsSocket(here, files.context(ssl.PROTOCOL_TLS_CLIENT), "127.0.0.1", 20.0)
        stack.callback(ours.close)
        thread.join()
        stack.callback(found[0].close)
        yield ours, found[0]


def received(connection, nbytes):
    """Receive so many bytes, by pieces of whatever size."""
    buffer = memoryview(bytearray(nbytes))
    at = 0
    while at < nbytes:
        got = connection.recv_into(buffer[at:])
        assert got, f"the end after {at} bytes"
        at += got
    return bytes(buffer)


def test_what_was_refused_is_sent_once_when_it_is_sent_again(pair):
    """MSG_DONTWAIT: a refusal may come when a part is on its way; the bytes must come once, in their order."""
    ours, theirs = pair
    rng = random.Random(3)
    pieces = [rng.randbytes(size) for size in (100, 40_000, 7, 900_000, 16_384, 1, 2_000_000)]
    left = memoryview(b"".join(pieces))
    wanted = bytes(left)
    got = bytearray()
    refusals = 0
    while left:
        try:
            left = left[ours.sendmsg([left[:90], left[90:]], (), socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            refusals += 1
            got += theirs.recv(30_000)
    got += received(theirs, len(wanted) - len(got))
    assert refusals > 3
    assert bytes(got) == wanted


def test_one_thread_sends_while_another_receives(pair):
    ours, theirs = pair
    sent = random.Random(4).randbytes(3_000_000)
    echoed = []

    def echo():
        data = received(theirs, len(sent))
        theirs.sendall(data)

    def receive():
        echoed.append(received(ours, len(sent)))

    threads = [threading.Thread(target=echo, name="echo"), threading.Thread(target=receive, name="receive")]
    for thread in threads:
        thread.start()
    ours.sendall(sent)
    for thread in threads:
        thread.join()
    assert echoed == [sent]


def test_many_records_are_one_call_of_the_system(pair, monkeypatch):
    """OpenSSL on a socket takes one call to send a record of 16 KiB, and two to receive it."""
    ours, theirs = pair
    size = 1 << 17
    calls = []
    with monkeypatch.context() as patched:
        patched.setattr(ours, "_socket", Counted(ours._socket, calls))
        patched.setattr(theirs, "_socket", Counted(theirs._socket, calls))
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.sendall(bytes(size))
        assert received(theirs, size) == bytes(size)
    assert calls.count("send") == 1
    assert calls.count("recv_into") <= 4


class Counted:
    """A socket that takes note of the calls that carry bytes."""

    def __init__(self, plain, calls):
        self._plain, self._calls = plain, calls

    def __getattr__(self, name):
        if name in ("send", "recv_into"):
            self._calls.append(name)
        return getattr(self._plain, name)


@pytest.mark.parametrize("ends", ["close", "shutdown"])
def test_the_end_is_the_end_of_a_plain_socket(pair, ends):
    # The server's end: it has read all, and so closes without a reset.
    ours, theirs = pair
    theirs.sendall(b"last words")
    if ends == "close":
        theirs.close()
    else:
        theirs.shutdown(socket.SHUT_WR)
    assert received(ours, 10) == b"last words"
    assert ours.recv(1) == b""
    assert ours.recv_into(memoryview(bytearray(5))) == 0


def test_a_closed_connection_is_an_error_of_the_connection(pair):
    ours, _ = pair
    ours.close()
    for call in (lambda: ours.recv(1), lambda: ours.sendall(b"x")):
        with pytest.raises(OSError):
            call()


def test_a_thread_that_waits_comes_back_when_the_connection_is_shut_down(pair):
    ours, _ = pair
    ours.settimeout(None)
    came = []

    def receive():
        with contextlib.suppress(OSError):
            came.append(ours.recv(1))

    thread = threading.Thread(target=receive, name="receive")
    thread.start()
    ours.shutdown(socket.SHUT_RDWR)
    thread.join(20.0)
    assert not thread.is_alive()
    assert came in ([], [b""])


def test_a_timeout_is_kept(pair):
    ours, _ = pair
    ours.settimeout(0.01)
    with pytest.raises(TimeoutError):
        ours.recv(1)


def test_who_does_not_answer_the_handshake_is_given_up(files):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        plain = socket.create_connection(silent.getsockname())
        with pytest.raises(TimeoutError):
            TlsSocket(plain, files.context(ssl.PROTOCOL_TLS_CLIENT), "127.0.0.1", 0.05)
        assert plain.fileno() == -1


def test_who_is_refused_is_told_why(files, tmp_path):
    """The alert is sent before the connection is closed: tls_probe makes its words of it."""
    stranger = Authority(tmp_path).issue("stranger", "127.0.0.1")
    there, here = socket.socketpair()
    failed = []

    def accept():
        try:
            TlsSocket(there, files.context(ssl.PROTOCOL_TLS_SERVER), None, 20.0)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=accept, name="accept")
    thread.start()
    context = stranger.context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        TlsSocket(here, context, "127.0.0.1", 20.0).recv(1)
    thread.join()
    here.close()
    assert len(failed) == 1

"""Time and silence: senders that come on, stop and go, by a virtual clock; and HTTP/2 in orders that nobody uses.

Who announces bytes and does not bring them must be cut off within a limit where memory is short, and who brings them
must not. A server that is sent well-formed frames of HTTP/2 in any order must serve the next honest caller at once.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable

import grpc
from fuzz_choices import Finding, noise
from http2_frames import PREFACE, frame, literal

from globalstep.errors import GlobalStepError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.slow_senders import GRACE_SECS, SlowSenders
from globalstep.runtime.clock import ManualClock
from globalstep.wire.frames import Assembler

#: Of a sender that is slow: how many bytes may have come that are not seen, and how many a second must.
_SLACK_BYTES = 2 << 20
_BYTES_PER_SEC = 1 << 20
_PIECE = 1 << 18
_METHODS = ("Status", "Exchange", "Declare", "Heartbeat", "Stop", "none")


class _Stream:
    """A stream of gRPC whose frames come when the fuzzer wants; see slow_senders.Sender."""

    slack_bytes = _SLACK_BYTES
    needs_memory = True

    def __init__(self) -> None:
        self.assembler = Assembler(1 << 26)
        self.announced = 0
        self.came = 0
        self.since = 0.0
        self.cut = False

    def under_way(self) -> tuple[object, int] | None:
        """Say what has come."""
        return self.assembler.under_way

    def cut_off(self, secs: float) -> None:
        """End it."""
        self.cut = True

    def announce(self, now: float, nbytes: int) -> None:
        """Send the first frame of a message."""
        self.assembler.add(pb.Frame(call=1, request=pb.Request(), data_bytes=nbytes).SerializeToString())
        self.announced, self.came, self.since = nbytes, 0, now

    def bring(self, nbytes: int) -> None:
        """Send a frame more."""
        nbytes = min(nbytes, self.announced - self.came)
        last = self.came + nbytes == self.announced
        self.came += nbytes
        if self.assembler.add(pb.Frame(call=1, data=bytes(nbytes), last=last).SerializeToString()) is not None:
            self.announced = 0


class SilenceTargets:
    """Inputs in time. Not thread-safe.

    Args:
        answers: Counts what came of them.
    """

    def __init__(self, answers: Counter[tuple[str, str]]) -> None:
        self._answers = answers
        self._server: PSServer | None = None
        self.targets: dict[str, Callable[[random.Random], None]] = {"silence": self.silence, "http2": self.http2}

    def close(self) -> None:
        """End the server."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def silence(self, rng: random.Random) -> None:
        """Streams that stop half-way, and such as go on slowly, while memory is short or not."""
        clock, short = ManualClock(), [bool(rng.randrange(2))]
        slow = SlowSenders(clock, lambda: short[0])
        streams = [_Stream() for _ in range(rng.randrange(1, 4))]
        short_since = clock.monotonic()
        for stream in streams:
            slow.watch(stream)
        for _ in range(rng.randrange(2, 20)):
            for stream in streams:
                if stream.cut or rng.randrange(2):
                    continue
                if not stream.announced:
                    stream.announce(clock.monotonic(), rng.choice((8, _PIECE, 1 << 25)))
                else:
                    stream.bring(rng.choice((8, _PIECE)))
            if rng.randrange(6) == 0:
                short[0], short_since = not short[0], clock.monotonic()
            for _ in range(rng.choice((1, 1, 1, 12))):
                slow.look()
                clock.advance(1.0)
            slow.look()
            self._judge(streams, clock.monotonic(), short_since if short[0] else None)
        self._answers["silence", "cut" if any(stream.cut for stream in streams) else "OK"] += 1

    @staticmethod
    def _judge(streams: list[_Stream], now: float, short_since: float | None) -> None:
        for stream in streams:
            if not stream.announced:
                continue
            secs = now - stream.since
            owed = (secs - GRACE_SECS) * _BYTES_PER_SEC - stream.came - _SLACK_BYTES
            # It is looked at once a second, and first after its message has begun.
            if short_since is not None and owed > 3 * _BYTES_PER_SEC and now > short_since and not stream.cut:
                raise Finding(f"a stream brought {stream.came} of {stream.announced} bytes in {secs:g} s, and stays")
            if stream.cut and owed <= 0:
                raise Finding(f"a stream was cut that brought {stream.came} bytes in {secs:g} s")

    def http2(self, rng: random.Random) -> None:
        """Well-formed frames of HTTP/2 in an order that no client uses, with and without a token."""
        server = self._serving()
        host, _, port = server.address.rpartition(":")
        sent = PREFACE + frame(4, 0, 0) * bool(rng.randrange(8))
        sent += b"".join(_random_frame(rng) for _ in range(rng.choice((1, 5, 40))))
        status = "closed"
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5.0) as made:
            made.sendall(sent)
            made.settimeout(0.02)
            try:
                while made.recv(1 << 16):
                    pass
            except TimeoutError:
                status = "waits"
        self._answers["http2", status] += 1
        if rng.randrange(20) == 0:
            self._asks(server)

    def _serving(self) -> PSServer:
        if self._server is None:
            self._server = PSServer(PSOptions(grace_secs=0.2, max_clients=4))
            self._server.start()
        return self._server

    def _asks(self, server: PSServer) -> None:
        """Be an honest caller."""
        with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                pb_grpc.ParameterServerStub(channel).Status(pb.StatusRequest(brief=True), timeout=20.0)
            except (grpc.RpcError, GlobalStepError) as error:
                raise Finding(f"after frames of HTTP/2, an honest call: {error}") from error
        threads = threading.active_count()
        if threads > 300:
            raise Finding(f"{threads} threads are there after connections that are closed")


def _random_frame(rng: random.Random) -> bytes:
    """One frame that is as HTTP/2 wants it, but for its place."""
    stream = rng.choice((0, 1, 1, 1, 3, 5, 7, 2, 2**31 - 1))
    kind = rng.randrange(11)
    if kind <= 3:
        headers = b"\x83\x86" + literal(":path", f"/globalstep.v1.ParameterServer/{rng.choice(_METHODS)}")
        headers += literal("content-type", "application/grpc") + literal("te", "trailers")
        headers += literal("authorization", rng.choice(("Bearer x", "Proof a b c", "Proof", "x" * 200)))
        for _ in range(rng.choice((0, 0, 0, 30))):
            headers += literal(rng.choice((":path", "x", "globalstep-session")), "y" * rng.choice((0, 10, 800)))
        return frame(1, rng.choice((4, 4, 5, 0)), stream, headers)
    if kind == 4:
        body = noise(rng, 60)
        return frame(0, rng.randrange(2), stream, rng.choice((b"", b"\0" + struct.pack(">I", len(body)) + body, body)))
    if kind == 5:
        return frame(3, 0, stream, struct.pack(">I", rng.choice((0, 8, 2**32 - 1))))
    if kind == 6:
        pairs = b"".join(struct.pack(">HI", rng.randrange(8), rng.choice((0, 1, 2**31 - 1))) for _ in range(3))
        return frame(4, 0, 0, pairs)
    if kind == 7:
        return frame(6, rng.randrange(2), 0, bytes(8))
    if kind == 8:
        return frame(8, 0, stream, struct.pack(">I", rng.choice((0, 1, 2**31 - 1))))
    if kind == 9:
        return frame(9, rng.choice((0, 4)), stream, literal("x", "y" * rng.randrange(100)))
    return frame(rng.choice((2, 5, 7, 10, 99)), rng.randrange(8), stream, noise(rng, 12))

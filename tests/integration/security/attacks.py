"""Attacks on PS tasks, all that were ever found to do harm: by strangers, and by who has a worker's token.

A program of its own, so that what it costs is told apart from what it attacks:

    python attacks.py --addresses HOST:PORT,... --tokens FILE --out FILE [--made FILE]

FILE of tokens is JSON: "worker", and "revoked", a token that was taken out of the PS tasks' file. It attacks while
standard input says so ("on", "off", a line each), until its end. Then it writes to --out, JSON: how often each attack
came to its end, and every breach: what was accepted though it must not be, or answered with an error that is no clear
refusal. --made gets a line when an attack came to its end for the first time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import resource
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from hostile_peers import HostilePeers
from http2_frames import PREFACE, frame, literal

from globalstep.errors import CancelledError, InternalError, OpError, UnavailableError, UnknownError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.client_ids import new_client_id
from globalstep.security.credentials import Credentials
from globalstep.security.dialing import dial
from globalstep.wire.protocol_version import own_protocol
from globalstep.wire.socket_messages import HEADER, MAGIC, PLACE, PLACED_MAGIC
from globalstep.worker.transport.grpc_transport import GrpcTransport

SERVICE = "/globalstep.v1.ParameterServer/"
TRANSPORTS = ("grpc", "tcp", "unix", "shm")
_KINDS = {"tcp": pb.LANE_TCP, "unix": pb.LANE_UNIX, "shm": pb.LANE_SHM}
_PRIVILEGED = {
    "Begin": pb.BeginRequest(incarnation=2**60, owner="mallory", shards=1, key=bytes(32)),
    "Open": pb.OpenRequest(client="mallory"),
    "Finish": pb.EndRequest(),
    "Stop": pb.EndRequest(force=True),
    "ClaimChief": pb.ClaimChiefRequest(candidate="mallory"),
    "WriteSnapshot": pb.WriteSnapshotRequest(file="shard.safetensors", directory="/tmp"),
    "ReleaseSnapshot": pb.ReleaseSnapshotRequest(),
    "ReadJournal": pb.ReadJournalRequest(),
    "FindLog": pb.LogRequest(directory="/tmp"),
    "Recover": pb.LogRequest(),
    "Settle": pb.SettleRequest(),
}
_HOLD_SECS = 0.3
_MIB = 1 << 20


class Breach(AssertionError):
    """What no attack may bring about."""


def refused(call: Callable[[], Any], what: str) -> None:
    """Have a call that must be refused; raises Breach where it is not."""
    try:
        call()
    except (UnavailableError, CancelledError):
        return  # the task is gone, or has ended the connection
    except (InternalError, UnknownError) as error:
        raise Breach(f"{what}: {type(error).__name__}: {error}") from error
    except OpError:
        return
    raise Breach(f"{what} was accepted")


def allowed(call: Callable[[], Any], what: str) -> Any:
    """Have a call that may be accepted or refused, but for no unknown reason."""
    try:
        return call()
    except (InternalError, UnknownError) as error:
        raise Breach(f"{what}: {type(error).__name__}: {error}") from error
    except OpError:
        return None


class Mallory:
    """Whoever has a worker's token, or none, and makes messages of its own.

    Args:
        addresses: Of the PS tasks, in order.
        token: What it has.
    """

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        self.addresses = addresses
        self.token = token
        self.rng = random.Random(7)
        self.name = new_client_id()
        self.sequence = 0
        self.incarnation = 0
        self.sequencer = 0
        self.variables: list[pb.VariableDecl] = []

    @contextlib.contextmanager
    def transport(self, shard: int, transport: str = "grpc", token: str | None = None) -> Iterator[GrpcTransport]:
        """A connection of its own to a task."""
        shown = Credentials(token=self.token if token is None else token)
        with contextlib.closing(
            GrpcTransport(self.addresses[shard], shard, transport, credentials=shown)
        ) as connection:
            yield connection

    def shards(self) -> Iterable[int]:
        """All tasks' numbers."""
        return range(len(self.addresses))

    def unary(self, shard: int, method: str, request: Any, token: str | None = None) -> Any:
        """A call over a connection of its own."""
        with self.transport(shard, token=token) as connection:
            return connection.unary(method, request, 10.0).result()

    def look(self) -> bool:
        """Find out what run there is; gives whether one is open."""
        status = allowed(lambda: self.unary(0, "Status", pb.StatusRequest(protocol=own_protocol())), "Status")
        if status is None or status.state != pb.STATE_READY:
            return False
        self.sequencer = status.sequencer
        self.variables = [
            decl
            for shard in self.shards()
            for decl in self.unary(shard, "Status", pb.StatusRequest(protocol=own_protocol())).variables
            if decl.shard == shard
        ]
        if self.largest is not None:  # else the chief has not told all tasks yet
            self.incarnation = status.incarnation
        return bool(self.incarnation)

    def request(self, what: str, **fields: Any) -> pb.Request:
        """A data-plane request of its own client."""
        request = pb.Request()
        message = getattr(request, what)
        message.incarnation = self.incarnation
        if what in ("push", "stage", "commit"):
            self.sequence += 1
            message.id.client, message.id.sequence = self.name, self.sequence
        for name, value in fields.items():
            setattr(message, name, value)
        return request

    @property
    def largest(self) -> pb.VariableDecl:
        """The largest of the run's Variables."""
        return max(
            (decl for decl in self.variables if not decl.is_step), key=lambda decl: math.prod(decl.shape), default=None
        )


def _hold() -> None:
    """Let what was begun stand for a while."""
    SYSTEM_CLOCK.wait(threading.Event(), _HOLD_SECS)


def _zeros(nbytes: int) -> memoryview:
    return memoryview(bytes(-(-nbytes // 8) * 8))


# ---- By who has a worker's token: calls ---------------------------------------------------------------


def take_the_chiefs_place(mallory: Mallory) -> None:
    """Call all that is the chief's, or a PS task's."""
    for shard in mallory.shards():
        with mallory.transport(shard) as connection:
            for method, request in _PRIVILEGED.items():
                refused(lambda m=method, r=request: connection.unary(m, r, 10.0).result(), f"{method} by a worker")


def declare_slots_that_are_too_small(mallory: Mallory) -> None:
    """Read and write beyond a slot, by an optimizer whose slot is smaller than its Variable; re-declare the run's."""
    for shard in mallory.shards():
        request = pb.DeclareRequest(incarnation=mallory.incarnation, client=mallory.name)
        request.variables.add(name="big", dtype="float32", shape=[65536], shard=shard)
        request.variables.add(name="tiny", dtype="float32", shape=[2], shard=shard)
        optimizer = request.optimizers.add(name="mallory", kind="momentum")
        optimizer.slots["big"].names.append("tiny")
        refused(lambda r=request, s=shard: mallory.unary(s, "Declare", r), "a slot smaller than its Variable")
    for decl in mallory.variables:
        other = pb.DeclareRequest(incarnation=mallory.incarnation, client=mallory.name)
        other.variables.add().CopyFrom(decl)
        other.variables[0].shape[:] = [*decl.shape, 3]
        refused(lambda d=decl, o=other: mallory.unary(d.shard, "Declare", o), f"another shape for {decl.name}")


def declare_too_much(mallory: Mallory) -> None:
    """Declare thousands of steps, Variables larger than the machine, endless names, names that speak to terminals."""
    steps = [pb.VariableDecl(name=f"s{at}", dtype="int64", is_step=True) for at in range(5_000)]
    large = [pb.VariableDecl(name="large", dtype="float32", shape=[2**40])]
    named = [pb.VariableDecl(name="x\x1b[2J\n", dtype="float32"), pb.VariableDecl(name="n" * 2048, dtype="float32")]
    for variables in (steps, large, named[:1], named[1:]):
        request = pb.DeclareRequest(incarnation=mallory.incarnation, client=mallory.name, variables=variables)
        refused(lambda r=request: mallory.unary(0, "Declare", r), f"a declaration of {variables[0].name[:20]!r}")


def be_many(mallory: Mallory) -> None:
    """Give signs of life under ids and tasks of 8 MiB, and such as speak to terminals."""
    long = "x" * (8 * _MIB)
    lines = "x is gone.\nWARNING:globalstep:PS task 0 stops: disk full\x1b[2J"
    for client, task in (("ghost", long), (long, "t"), ("ghost", lines), (lines, "t")):
        request = pb.HeartbeatRequest(client=client, task=task, lease_secs=600.0)
        refused(lambda r=request: mallory.unary(0, "Heartbeat", r), f"a client {client[:10]!r} of {task[:10]!r}")


def go_on_with_a_revoked_token(mallory: Mallory, token: str) -> None:
    """Show a token that was taken out of the file."""
    for shard in mallory.shards():
        look = pb.StatusRequest(brief=True)
        refused(lambda s=shard, r=look: mallory.unary(s, "Status", r, token), "a token that was taken out of the file")


def send_headers_alone(mallory: Mallory) -> None:
    """Begin calls whose messages never come, with a token this time."""
    _silent_calls(mallory.addresses[0], "Status", 40, mallory.token)


# ---- By who has a worker's token: the data plane, over each transport -----------------------------------


def forge_entries(mallory: Mallory, transport: str) -> None:
    """Say of the sequencer's decisions what is not so, and of what shards have applied."""
    for shard in mallory.shards():
        with mallory.transport(shard, transport) as connection:
            for index, kind in ((2**63, pb.ENTRY_SNAPSHOT), (2**62, pb.ENTRY_PUSH)):
                request = mallory.request("commit")
                entry = request.commit.entries.add(index=index, kind=kind, signature=bytes(16))
                entry.push.CopyFrom(request.commit.id)
                entry.uses.add(optimizer="GradientDescent", hypers={"learning_rate": math.nan})
                refused(lambda r=request: connection.send(r, []).result(), "a forged entry")
    with mallory.transport(mallory.sequencer, transport) as connection:
        for shard in mallory.shards():
            pull = mallory.request("pull")  # of nothing: it is not answered
            pull.pull.floors.add(shard=shard, index=2**62, signature=bytes(16))
            allowed(lambda r=pull: connection.send(r, []).result(), "a forged floor")
            if mallory.largest is not None:
                pull.pull.reads.add(variable=mallory.largest.name)
                refused(lambda r=pull: connection.send(r, []).result(), "a pull with a forged floor")


def push_what_is_not_there(mallory: Mallory, transport: str) -> None:
    """Push where no other shard has a part staged, and take snapshots."""
    with mallory.transport(mallory.sequencer, transport) as connection:
        others = [shard for shard in mallory.shards() if shard != mallory.sequencer]
        request = mallory.request("push")
        request.push.others.extend(others)
        allowed(lambda: connection.send(request, []).result(), "a push without parts")
        snapshot = mallory.request("push", snapshot=True)
        snapshot.push.others.extend(others)
        refused(lambda: connection.send(snapshot, []).result(), "a worker's snapshot")
        read = mallory.request("pull")
        read.pull.snapshot.client = mallory.name
        refused(lambda: connection.send(read, []).result(), "a worker's read of a snapshot")


def speak_for_others(mallory: Mallory, transport: str) -> None:
    """Push in the name of another process's client, with increments."""
    with mallory.transport(mallory.sequencer, transport) as connection:
        request = mallory.request("push")
        request.push.id.client = f"s{'0' * 32}-{'0' * 12}"
        request.push.increments.add(step="global_step", by=100_000)
        refused(lambda: connection.send(request, []).result(), "a push in another's name")


def take_memory(mallory: Mallory, transport: str) -> None:
    """Have few bytes make many: endless reads, spans that unpack, heads of nothing, parts that nobody admits."""
    decl = mallory.largest
    with mallory.transport(decl.shard, transport) as connection:
        pull = mallory.request("pull")
        pull.pull.reads.extend(pb.Read(variable=decl.name) for _ in range(200))
        refused(lambda: connection.send(pull, []).result(), "a Variable read 200 times")
        bomb = mallory.request("push")
        bomb.spans.add(form=pb.FORM_NONZERO, bytes=2**33, packed_bytes=8)
        refused(lambda: connection.send(bomb, [_zeros(8)]).result(), "8 bytes that unpack to 8 GiB")
        heads = mallory.request("push")
        heads.push.ops.extend(pb.Op() for _ in range(50_000))
        refused(lambda: connection.send(heads, []).result(), "50,000 changes of nothing")
        for _ in range(8):
            stage = mallory.request("stage")
            op = stage.stage.ops.add(kind=pb.OP_ASSIGN, variable=decl.name)
            op.value.CopyFrom(pb.TensorRef(dtype=decl.dtype, shape=decl.shape))
            allowed(
                lambda r=stage: connection.send(r, [_zeros(4 * math.prod(decl.shape))]).result(),
                "a part that nobody admits",
            )
        lies = mallory.request("push")
        op = lies.push.ops.add(kind=pb.OP_APPLY, variable=decl.name, optimizer="GradientDescent")
        op.value.CopyFrom(pb.TensorRef(dtype="float32", shape=[2**40], offset=2**40))
        refused(lambda: connection.send(lies, [_zeros(8)]).result(), "a tensor beyond its message")


def change_what_is_read(mallory: Mallory, transport: str) -> None:
    """Write into shared memory while the task reads it: row ids that change between check and use."""
    decl = mallory.largest
    with mallory.transport(decl.shard, transport) as connection:
        room = connection.buffer(1 << 16)
        if room is None:
            return
        ids = room[:8000].view(np.int64)
        ids[:] = 0
        over = threading.Event()

        def flip() -> None:
            while not over.is_set():
                ids[:] = 2**62
                ids[:] = 0

        flipping = threading.Thread(target=flip, name="flipping", daemon=True)
        flipping.start()
        try:
            for _ in range(20):
                pull = mallory.request("pull")
                read = pull.pull.reads.add(variable=decl.name)
                read.indices.CopyFrom(pb.TensorRef(dtype="int64", shape=[1000]))
                allowed(lambda r=pull: connection.send(r, [memoryview(room)]).result(), "rows that change")
        finally:
            over.set()
            flipping.join()


def announce_and_bring_nothing(mallory: Mallory, transport: str) -> None:
    """Say that gigabytes will come, and say nothing more."""
    shard = mallory.sequencer
    with mallory.transport(shard) as connection, contextlib.ExitStack() as left:
        if transport == "grpc":
            call = left.enter_context(_exchange(mallory.addresses[shard], mallory.token))
            call(pb.Frame(call=1, request=pb.Request(), data_bytes=1 << 33).SerializeToString())
        else:
            reply = allowed(
                lambda: connection.unary("OpenLane", pb.OpenLaneRequest(kind=_KINDS[transport]), 10.0).result(),
                "OpenLane",
            )
            if reply is None:
                return
            try:
                connection = left.enter_context(dial(_KINDS[transport], mallory.addresses[shard], reply))
            except OSError:
                return
            header = HEADER.pack(MAGIC, 0, 1, 1 << 33)
            if transport == "shm" and mallory.rng.randrange(2):
                # A block of 64 GiB to share, please.
                header = HEADER.pack(PLACED_MAGIC, 0, 1, 0) + PLACE.pack(0, 0, 0, 0, 1 << 36)
            connection.sendall(header)
        _hold()


# ---- By strangers -----------------------------------------------------------------------------------------


def call_everything(mallory: Mallory) -> None:
    """Call every method without a token, and with a wrong one."""
    for token in ("", "wrong-0123456789abcdef"):
        for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods:
            if method.name == "Exchange":
                continue
            metadata = [("authorization", f"Bearer {token}")] if token else None
            with _channel(mallory.addresses[0]) as channel, contextlib.suppress(grpc.RpcError):
                channel.unary_unary(SERVICE + method.name)(b"", metadata=metadata, timeout=10.0)
                raise Breach(f"{method.name} without a token was accepted")


def call_without_a_message(mallory: Mallory) -> None:
    """Begin calls and streams of every kind, and send nothing more."""
    for method in ("Status", "Exchange", "Heartbeat"):
        _silent_calls(mallory.addresses[0], method, 60, "")


def send_large_messages(mallory: Mallory) -> None:
    """Send megabytes to who has not asked for them."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(mallory.addresses[-1], options=options) as channel:
        calls = [channel.unary_unary(SERVICE + "Declare").future(bytes(16 * _MIB), timeout=10.0) for _ in range(3)]
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                call.result()
                raise Breach("a stranger's message was accepted")


def guess_transport_tokens(mallory: Mallory, places: dict[str, str]) -> None:
    """Show wrong tokens on transports."""
    for transport, place in places.items():
        for _ in range(20):
            with contextlib.suppress(OSError), _connected(mallory.addresses[0], transport, place) as made:
                made.sendall(mallory.rng.randbytes(32))
                made.settimeout(2.0)
                if made.recv(1):
                    raise Breach(f"a wrong token was welcomed over {transport}")


def break_http2(mallory: Mallory) -> None:
    """Speak HTTP/2 well, in an order that nobody would: frames for streams that are not there, windows, resets."""
    host, _, port = mallory.addresses[0].rpartition(":")
    preface = PREFACE + frame(4, 0, 0)
    headers = frame(1, 4, 1, bytes.fromhex("8386") + literal(":path", SERVICE + "Status") + literal("te", "trailers"))
    attacks = [
        b"".join(frame(3, 0, at, bytes(4)) for at in range(1, 99, 2)),
        headers + frame(3, 0, 1, struct.pack(">I", 8)),
        b"".join(
            headers[:5] + struct.pack(">I", at) + headers[9:] + frame(3, 0, at, bytes(4)) for at in range(1, 400, 2)
        ),
        b"".join(frame(4, 0, 0, struct.pack(">HI", 3, at)) for at in range(500)),
        b"".join(frame(6, 0, 0, bytes(8)) for _ in range(500)),
        headers[:4] + b"\0" + headers[5:] + b"".join(frame(9, 0, 1, literal("x", "y" * 900)) for _ in range(100)),
        frame(8, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,
        frame(0, 0, 1, bytes(100)),
    ]
    for attack in attacks:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2.0) as made:
            made.sendall(preface + attack)
            made.settimeout(0.3)
            while made.recv(1 << 16):
                pass


def _channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def _silent_calls(address: str, method: str, count: int, token: str) -> None:
    """Begin calls without a message, hold them for a while, and leave."""
    over = threading.Event()

    def silence() -> Iterator[bytes]:
        over.wait()
        yield from ()

    metadata = [("authorization", f"Bearer {token}")] if token else None
    with _channel(address) as channel:
        if method == "Exchange":
            calls: list[Any] = [
                channel.stream_stream(SERVICE + method)(silence(), metadata=metadata, timeout=10.0)
                for _ in range(count)
            ]
        else:
            calls = [
                channel.stream_unary(SERVICE + method).future(silence(), metadata=metadata, timeout=10.0)
                for _ in range(count)
            ]
        _hold()
        for call in calls:
            call.cancel()
        over.set()


@contextlib.contextmanager
def _exchange(address: str, token: str) -> Iterator[Callable[[bytes], None]]:
    """A stream of frames; gives what sends one."""
    frames: list[bytes] = []
    more, over = threading.Semaphore(0), threading.Event()

    def sent() -> Iterator[bytes]:
        while True:
            more.acquire()
            if over.is_set():
                return
            yield frames.pop(0)

    def send(frame: bytes) -> None:
        frames.append(frame)
        more.release()

    with _channel(address) as channel:
        metadata = [("authorization", f"Bearer {token}")]
        call = channel.stream_stream(SERVICE + "Exchange")(sent(), metadata=metadata, timeout=20.0)
        try:
            yield send
        finally:
            call.cancel()
            over.set()
            more.release()


@contextlib.contextmanager
def _connected(address: str, transport: str, place: str) -> Iterator[socket.socket]:
    if transport == "tcp":
        made = socket.create_connection((address.rpartition(":")[0], int(place)), 5.0)
    else:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(5.0)
        made.connect("\0" + place)
    with made:
        yield made


# ---- All at once ------------------------------------------------------------------------------------------


class Attacks:
    """All attacks, each in a thread of its own; use it in a `with` block.

    Args:
        addresses: Of the PS tasks.
        worker: A worker's token.
        revoked: One that was taken out of the file.
        pause_secs: Between two rounds of each.
        made: Is told when one came to its end for the first time.

    Attributes:
        counts: Rounds of each attack.
        breaches: What came of those that did harm.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        worker: str,
        revoked: str,
        pause_secs: float,
        made: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.on = threading.Event()
        self.over = threading.Event()
        self._pause_secs = pause_secs
        self._made = made
        self._addresses = addresses
        insider, stranger = (lambda: Mallory(addresses, worker)), (lambda: Mallory(addresses, ""))
        attacks: list[tuple[Callable[[], Mallory], Callable[..., None], tuple[Any, ...]]] = []
        for call in (
            take_the_chiefs_place, declare_slots_that_are_too_small, declare_too_much, be_many,
            send_headers_alone,
        ):  # fmt: skip
            attacks.append((insider, call, ()))
        attacks.append((insider, go_on_with_a_revoked_token, (revoked,)))
        for over_transports in (
            forge_entries, push_what_is_not_there, speak_for_others, take_memory,
            announce_and_bring_nothing,
        ):  # fmt: skip
            attacks += [(insider, over_transports, (transport,)) for transport in TRANSPORTS]
        attacks.append((insider, change_what_is_read, ("shm",)))
        self._places = self._find_transports(Mallory(addresses, worker))
        for strange in (call_everything, call_without_a_message, send_large_messages, break_http2):
            attacks.append((stranger, strange, ()))
        attacks.append((stranger, guess_transport_tokens, (self._places,)))
        self._attacks = attacks
        self._threads = [
            threading.Thread(target=self._attack, args=one, name=_name_of(one[1], one[2]), daemon=True)
            for one in attacks
        ]

    @property
    def names(self) -> list[str]:
        """Of all attacks."""
        return [_name_of(call, args) for _, call, args in self._attacks]

    @staticmethod
    def _find_transports(mallory: Mallory) -> dict[str, str]:
        with mallory.transport(0) as connection:
            return {
                kind: connection.unary("OpenLane", pb.OpenLaneRequest(kind=_KINDS[kind]), 10.0).result().address
                for kind in ("tcp", "unix")
            }

    def knocked_at(self) -> list[str]:
        """Where HostilePeers can knock."""
        host = self._addresses[0].rpartition(":")[0]
        return [self._addresses[0], f"{host}:{self._places['tcp']}", "\0" + self._places["unix"]]

    def _attack(self, make: Callable[[], Mallory], call: Callable[..., None], args: tuple[Any, ...]) -> None:
        mallory, name = make(), _name_of(call, args)
        while not self.over.is_set():
            if not SYSTEM_CLOCK.wait(self.on, 0.2):
                continue
            try:
                if mallory.token and not mallory.incarnation and not mallory.look():
                    SYSTEM_CLOCK.wait(self.over, 0.2)
                    continue
                call(mallory, *args)
            except Breach as breach:
                self.breaches.append(f"{name}: {breach}")
                SYSTEM_CLOCK.wait(self.over, 1.0)
            except (OSError, OpError, grpc.RpcError):
                pass  # it did not get through
            except Exception as error:
                self.breaches.append(f"{name} failed by itself: {error!r}")
                SYSTEM_CLOCK.wait(self.over, 1.0)
            self.counts[name] += 1
            if self.counts[name] == 1:
                self._made(name)
            SYSTEM_CLOCK.wait(self.over, self._pause_secs)

    def __enter__(self) -> Attacks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.on.set()
        for thread in self._threads:
            thread.join(30.0)


def _name_of(call: Callable[..., None], args: tuple[Any, ...]) -> str:
    over = f" over {args[0]}" if args and args[0] in TRANSPORTS else ""
    return call.__name__.replace("_", " ") + over


def main() -> int:
    """Attack until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two rounds of each attack")
    parser.add_argument("--idle", type=int, default=300, help="connections at each port that say nothing")
    parser.add_argument("--made", type=Path, help="gets a line for each attack that was made")
    args = parser.parse_args()
    tokens = json.loads(args.tokens.read_text())

    def made(name: str) -> None:
        if args.made is not None:
            with args.made.open("a") as file:
                file.write(f"{name}\n")

    with Attacks(args.addresses.split(","), tokens["worker"], tokens["revoked"], args.pause, made) as attacks:
        knocks: Counter[str] = Counter()
        with contextlib.ExitStack() as knocking:
            print("ready", flush=True)
            for line in sys.stdin:
                attacks.on.clear()
                knocking.close()
                if line.strip() == "on":
                    attacks.on.set()
                    peers = knocking.enter_context(HostilePeers(attacks.knocked_at(), args.idle))
                    knocks = peers.counts
        used = resource.getrusage(resource.RUSAGE_SELF)
        report = {
            "rounds": {name: attacks.counts[name] for name in attacks.names},
            "breaches": attacks.breaches,
            "knocks": sum(knocks.values()),
            "cpu_secs": used.ru_utime + used.ru_stime,
        }
        args.out.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())

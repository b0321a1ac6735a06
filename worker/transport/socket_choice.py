"""What carries the data to a PS task: which sockets are tried, in which order, and what is said about it.

docs/design/transports.md has the whole story.

Layer: worker. Does no input or output of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from globalstep.errors import OpError, UnavailableError, UnimplementedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.transport.connection import SocketConnection

#: Transport -> the sockets that it tries to open, in order; where none can be, gRPC it is.
SOCKETS: dict[str, tuple[pb.LaneKind.ValueType, ...]] = {
    "auto": (pb.LANE_SHM, pb.LANE_UNIX, pb.LANE_TCP),
    "shm": (pb.LANE_SHM, pb.LANE_UNIX),
    "unix": (pb.LANE_UNIX,),
    "tcp": (pb.LANE_TCP,),
}
#: What a connection is made of -> how people call it.
CALLED = {"shm": "shared memory", "unix": "unix socket", "tcp": "TCP connection"}
_KINDS = {pb.LANE_SHM: "shm", pb.LANE_UNIX: "unix", pb.LANE_TCP: "tcp"}
#: How long a connection may take to stand: one that was asked for, and a TCP connection that was not, where a firewall
#: may say nothing.
_ASKED_SECS = 5.0
_UNASKED_TCP_SECS = 1.5


@dataclass(frozen=True, slots=True)
class SocketChoice:
    """What came of it.

    Attributes:
        connection: The socket; None where gRPC must do.
        over: Whether there is no use in trying again.
        text: For the log, where it is not the first choice: what carries the data, and why; "" for nothing.
    """

    connection: SocketConnection | None = None
    over: bool = False
    text: str = ""


def choose_socket(
    label: str,
    kinds: tuple[pb.LaneKind.ValueType, ...],
    ask: Callable[[pb.OpenLaneRequest], pb.OpenLaneReply],
    dial: Callable[[pb.LaneKind.ValueType, pb.OpenLaneReply, float], SocketConnection],
) -> SocketChoice:
    """Open the first of some sockets that can be opened.

    Args:
        label: What messages call the task.
        kinds: What to try, in order: see SOCKETS.
        ask: Asks the task to be ready for a connection, over gRPC; raises OpError.
        dial: Connects, within so many seconds; raises OSError.
    """
    refused: Exception | None = None
    unused = b""
    for kind in kinds:
        if kind == pb.LANE_UNIX and isinstance(refused, OSError):
            continue  # it is reached in the same way as shared memory
        unasked = kind == pb.LANE_TCP and len(kinds) > 1
        try:
            reply = ask(pb.OpenLaneRequest(kind=kind, unused=unused))
            unused = reply.token
            connection = dial(kind, reply, _UNASKED_TCP_SECS if unasked else _ASKED_SECS)
        except UnavailableError:
            return SocketChoice()  # the task itself cannot be reached now; the call will say so
        except (UnimplementedError, OSError) as error:
            refused = error  # the next one may do
        except OpError as error:
            return _grpc(label, kind, error)
        else:
            text = "" if refused is None else _text(label, kind, reply, refused)
            return SocketChoice(connection, text=text)
    return _grpc(label, kinds[-1], refused) if kinds else SocketChoice(over=True)


def _grpc(label: str, kind: pb.LaneKind.ValueType, error: Exception | None) -> SocketChoice:
    return SocketChoice(over=True, text=f"No {CALLED[_KINDS[kind]]} to {label}, its data goes over gRPC: {error}")


def _text(label: str, kind: pb.LaneKind.ValueType, reply: pb.OpenLaneReply, refused: Exception) -> str:
    if kind != pb.LANE_TCP:
        return f"No shared memory with {label}, its data goes over a unix socket: {refused}"
    # The name of its unix socket is not known here.
    elsewhere = isinstance(refused, ConnectionRefusedError)
    why = "it is on another machine, or in another network namespace" if elsewhere else refused
    return f"The data of {label} goes over TCP, port {reply.address}: {why}"

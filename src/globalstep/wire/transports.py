"""Transports: ways for a client to reach PS tasks. They carry the same messages; nothing else differs.

A transport is found by the scheme of a target, through `globalstep.roles`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.cluster.cluster import described_task, is_address, session_tasks, target_of
from globalstep.errors import InvalidArgumentError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.roles import ENTRIES
from globalstep.wire.message import Message

#: What may carry the data plane to tasks of other processes; see chosen_transport.
TRANSPORTS = ("auto", "shm", "unix", "grpc", "tcp")
_VARIABLE = "GLOBALSTEP_TRANSPORT"


class Ticket(Protocol):
    """A data-plane call in flight."""

    def result(self) -> Message:
        """Wait for the reply.

        Raises:
            UnavailableError: If the task could not be reached; the call may have been carried out.
            OpError: What the task answered instead.
        """
        ...


class Pending(Protocol):
    """A unary call in flight."""

    def result(self) -> Any:
        """Wait for the reply message; raises as Ticket.result."""
        ...


class Transport(Protocol):
    """The way to one PS task. Thread-safe.

    What a transport can do beyond carrying messages is declared here, too, and asked for nowhere else: a transport
    around another one says what that one can do.
    """

    @property
    def label(self) -> str:
        """How messages name the task, e.g. "/job:ps/task:1 at 10.0.0.7:2222"."""
        ...

    @property
    def address(self) -> str:
        """Where others reach the task, "host:port"; "" in process."""
        ...

    def buffer(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Give memory in which a request's tensors, so many bytes, can be written where the task reads them.

        They are sent as one piece, this memory from its beginning. A caller that does not use it drops the reference.
        None where there is no such memory now.
        """
        ...

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> Ticket:
        """Send a data-plane request, and do not wait. The pieces must not change until the result."""
        ...

    def tell(self, request: pb.Request) -> None:
        """Send a data-plane request without tensors whose reply nobody reads; it may be lost."""
        ...

    def unary(self, method: str, request: Any, timeout_secs: float) -> Pending:
        """Start a control-plane call, and do not wait."""
        ...

    def expire(self) -> None:
        """Break off calls that are past their deadline; called now and then by the client's heartbeat."""
        ...

    def break_off(self, error: OpError) -> None:
        """Break the connection off; calls in flight fail with the error, the next one opens another."""
        ...

    def give_up(self, error: OpError | None) -> None:
        """Hope for no more answers of the task, which this process, about to end, has found silent.

        Args:
            error: What all calls in flight fail with, unary ones too; later ones are still tried, for a moment. None
                to hope again, since it has answered after all.
        """
        ...

    def close(self) -> None:
        """Give up connections and threads. Calls in flight fail."""
        ...


def ask_each(
    transports: Sequence[Transport], method: str, requests: Mapping[int, Any], timeout_secs: float
) -> Iterator[tuple[int, Any]]:
    """Call several PS tasks at once, each once, and wait for one after the other.

    Yields:
        Index, and the reply, or the OpError that is there instead, in the order of the requests.
    """
    calls = {index: transports[index].unary(method, request, timeout_secs) for index, request in requests.items()}
    for index, call in calls.items():
        try:
            reply = call.result()
        except OpError as error:
            yield index, error
        else:
            yield index, reply


def ask_all(
    transports: Sequence[Transport], method: str, request: Any, timeout_secs: float
) -> Iterator[tuple[int, Any]]:
    """Call every PS task at once with the same message; see ask_each."""
    return ask_each(transports, method, dict.fromkeys(range(len(transports)), request), timeout_secs)


@dataclass(frozen=True)
class KnownTarget:
    """What a target means in this process.

    Attributes:
        target: The target that names all PS tasks.
        task: Name of the task that this process is, "/job:worker/task:1"; "" where not known.
        session_tasks: Names of all tasks that run sessions; empty where not known.
        in_process: Whether the only PS task is in this process.
        program: Where this process is a PS task of a cluster with workers: to be called now and then while its program
            waits, since it serves meanwhile; raises SystemExit when the task is to end. Else None.
    """

    target: str
    task: str = ""
    session_tasks: tuple[str, ...] = ()
    in_process: bool = False
    program: Callable[[], None] | None = None


# A Server's target -> what it means. Written before sessions start.
_registered: dict[str, KnownTarget] = {}


def register_target(
    target: str,
    addresses: Sequence[str],
    task: str = "",
    session_tasks: Sequence[str] = (),
    in_process: bool = False,
    program: Callable[[], None] | None = None,
) -> None:
    """Make `target` mean the PS tasks at `addresses` within this process.

    A TensorFlow program passes its own server's target; sessions here need the PS tasks' addresses.
    """
    _registered[target] = KnownTarget("grpc://" + ",".join(addresses), task, tuple(session_tasks), in_process, program)


def known_target(target: str) -> KnownTarget:
    """Give what a target means.

    One that was not registered means itself; but where this process has described a cluster in which a worker has that
    address, it means that cluster's PS tasks: the worker's server is another process, which holds nothing.
    """
    known = _registered.get(target)
    if known is not None:
        return known
    described = described_task(target.removeprefix("grpc://"))
    if described is None:
        return KnownTarget(target)
    cluster, job, index = described
    return KnownTarget(target_of(cluster), f"/job:{job}/task:{index}", session_tasks(cluster))


def is_in_process(target: str) -> bool:
    """Whether a target means a PS within this process."""
    known = known_target(target)
    return known.in_process or (known.target or "local://").startswith("local://")


def forget_target(target: str) -> None:
    """Undo register_target."""
    _registered.pop(target, None)


def chosen_transport(asked: str | None) -> str:
    """Decide what carries the data plane; control calls always take gRPC.

    Args:
        asked: "auto": memory shared with a task on this machine, a unix socket to it where there is none, a TCP
            connection to all others. "shm": the first two alone. "unix": a unix socket to a task on this machine.
            "tcp": a TCP connection, also on this machine. "grpc": gRPC. None for what the environment variable
            GLOBALSTEP_TRANSPORT says, which is "auto" where it is not set. What cannot be had is gRPC.

    Raises:
        InvalidArgumentError: If it is none of them.

    >>> chosen_transport("tcp")
    'tcp'
    """
    chosen = asked or os.environ.get(_VARIABLE) or "auto"
    if chosen not in TRANSPORTS:
        raise InvalidArgumentError(f"The transport (or {_VARIABLE}) is {chosen!r}; it must be one of {TRANSPORTS}.")
    return chosen


def transports_to(target: str, transport: str | None = None) -> list[Transport]:
    """Make the transports to all PS tasks of a target.

    Args:
        target: "" for a PS of its own in this process, "local://NAME" for a named one, a registered
            Server's target, or "grpc://host:port[,host:port...]" with every PS task in order.
        transport: See chosen_transport; a task in this process needs none.

    Raises:
        InvalidArgumentError: If the target or the transport makes no sense.
    """
    target = known_target(target).target
    scheme, _, rest = (target or "local://").partition("://")
    if scheme not in ("local", "grpc"):
        raise InvalidArgumentError(
            f"Target {target!r} is not one of '' (in process), 'grpc://host:port,...' (every PS task, in order) "
            "or a Server's target."
        )
    if scheme == "grpc":
        for address in rest.split(","):
            if not is_address(address.strip()) or int(address.rpartition(":")[2]) == 0:
                raise InvalidArgumentError(
                    f'Could not interpret "{address.strip()}" as a host-port pair: target {target!r} is to have the '
                    '"host:port" of every PS task, with a port from 1 to 65535 and nothing before it: "ps0:2222".'
                )
    transports: list[Transport] = ENTRIES[scheme](rest, chosen_transport(transport))
    return transports

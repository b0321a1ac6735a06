"""The in-process transport: a PS in the same process, reached by function calls instead of sockets.

Sessions without a target have one each, as TensorFlow's have Variables of their own. A named one
("local://NAME") is shared by the sessions of a process until `drop` is called.

Layer: ps. Threads: calls run in the caller's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.errors import GlobalStepError, OpError, UnavailableError, error_from_code
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.faults import NO_FAULTS, ConnectionCutError, Faults
from globalstep.wire.message import Message

if TYPE_CHECKING:
    from globalstep.ps.wal.log_file import LogFiles


class LocalPS:
    """PS tasks in this process.

    Args:
        shards: How many.
        clock: Their time.
        faults: What a test makes fail.
        log_files: Writes their write-ahead logs; None for this machine's.
    """

    def __init__(
        self,
        shards: int = 1,
        *,
        clock: Clock = SYSTEM_CLOCK,
        faults: Faults = NO_FAULTS,
        log_files: LogFiles | None = None,
    ) -> None:
        self.controls = [
            Control(Handler(Shard(clock), faults), uuid.uuid4().hex, "localhost", log_files=log_files)
            for _ in range(shards)
        ]

    def transports(self) -> list[LocalTransport]:
        """New transports to the tasks."""
        return [LocalTransport(control, index) for index, control in enumerate(self.controls)]


@dataclass(slots=True, eq=False)
class _Done:
    """A call that has been carried out."""

    _value: Any
    _error: GlobalStepError | None = None

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class LocalTransport:
    """A transport that calls the handler. Thread-safe.

    Args:
        control: The task.
        index: Its number.
    """

    def __init__(self, control: Control, index: int) -> None:
        self._control = control
        self.label = f"/job:ps/task:{index} in this process"
        self.address = ""
        self._memory = LayoutMemory()

    def buffer(self, nbytes: int) -> None:
        """See Transport; there is none."""

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> _Done:
        """See Transport. The task gets bytes of its own, as over any other: the caller may reuse its arrays."""
        joined = bytearray()
        for piece in pieces:
            joined += piece
            joined += bytes(-len(joined) % 8)
        try:
            answered = self._control.handler.begin(request, memoryview(joined), self._memory)
        except ConnectionCutError as error:
            return _Done(None, UnavailableError(f"{self.label}: {error}"))
        assert answered is not None  # without a line it waits here
        reply, answer = answered
        if reply.HasField("error"):
            return _Done(
                None,
                error_from_code(
                    reply.error.code, reply.error.message, reply.error.type, reply.error.retry_millis / 1000
                ),
            )
        data = bytearray()
        for piece in answer:
            data += piece
            data += bytes(-len(data) % 8)
        return _Done(Message(0, None, reply, memoryview(data).toreadonly()))

    def tell(self, request: pb.Request) -> None:
        """See Transport."""
        self.send(request, ())

    def unary(self, method: str, request: Any, timeout_secs: float) -> _Done:
        """See Transport."""
        try:
            return _Done(self._control.call(method, request))
        except ConnectionCutError as error:
            return _Done(None, UnavailableError(f"{self.label}: {error}"))
        except GlobalStepError as error:
            return _Done(None, error)

    def expire(self) -> None:
        """See Transport; nothing is ever under way here."""

    def break_off(self, error: OpError) -> None:
        """See Transport; there is no connection."""

    def give_up(self, error: OpError | None) -> None:
        """See Transport; it answers always."""

    def close(self) -> None:
        """See Transport."""


# Guards _named; a leaf.
_lock = threading.Lock()
_named: dict[str, LocalPS] = {}


def named(name: str, shards: int = 1, *, clock: Clock = SYSTEM_CLOCK, faults: Faults = NO_FAULTS) -> LocalPS:
    """Give the shared in-process PS of a name, made on first use."""
    with _lock:
        if name not in _named:
            _named[name] = LocalPS(shards, clock=clock, faults=faults)
        return _named[name]


def drop(name: str) -> None:
    """Forget a shared in-process PS and all it holds."""
    with _lock:
        _named.pop(name, None)


def transports_to(name: str, transport: str = "auto") -> list[LocalTransport]:
    """Make transports: to a new PS for "", to the shared one of that name otherwise. Nothing needs transport here."""
    return (named(name) if name else LocalPS()).transports()

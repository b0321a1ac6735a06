"""A simulated PS task: the real state machine, handler, control plane and settler, in a process that can be killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from greenlet import getcurrent
from simulated_disk import Crashed, Disk
from simulated_network import Call, Network, SimulatedLane
from simulated_time import Hub, Process, ProcessClock

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.control import Control
from globalstep.ps.handler import Handler, encode_error
from globalstep.ps.layouts import LayoutMemory
from globalstep.ps.log_file import LOG_FILES
from globalstep.ps.settler import Settler
from globalstep.ps.shard import Shard
from globalstep.ps.write_ahead_log import WriteAheadLog

__all__ = ["SimulatedTask"]

_SETTLE_SECS = 5.0


class SimulatedTask:
    """One PS task. It begins vacant, and does so again whenever it is started again.

    Args:
        hub: Time.
        network: What its settler asks over.
        index: Its number.
        skew_secs: How far its machine's wall clock is wrong.
        failed: Told of an exception that ends one of its threads.
        handled: Told of every call that was carried out, with the error that it got, if any.
        interrupted: Told of every call within which the process was killed.
        disk: Where its logs are; None for a run without.

    Attributes:
        up: Whether its process runs.
        process: The one that runs, or ran last.
        shard: Its state.
        starts: How often it was started.
    """

    def __init__(
        self,
        hub: Hub,
        network: Network,
        index: int,
        skew_secs: float,
        failed: Callable[[Process, BaseException], None],
        handled: Callable[[SimulatedTask, Call, pb.Error | None], None],
        interrupted: Callable[[SimulatedTask, Call], None],
        disk: Disk | None = None,
    ) -> None:
        self.index = index
        self.up = False
        self.starts = 0
        self._hub = hub
        self._network = network
        self._skew_secs = skew_secs
        self._failed = failed
        self._handled = handled
        self._interrupted = interrupted
        self._disk = disk
        if disk is not None:
            disk.at = self._at_disk
        self.start()

    def start(self) -> None:
        """Start a process that knows nothing; one that runs ends first."""
        if self.up:
            self.crash()
        self.starts += 1
        self.up = True
        self.process = Process(self._hub, f"ps {self.index}", self._failed)
        clock = ProcessClock(self.process, self._skew_secs)
        self.shard = Shard(clock)
        self._control = Control(
            Handler(self.shard),
            f"{self.index}.{self.starts}",
            "simulated",
            log_dir="" if self._disk is None else str(self._disk.folder),
            log_files=LOG_FILES if self._disk is None else self._disk.files,
        )
        self._control.durability._clock = clock
        # A stream's memory ends with its process.
        self._memories: defaultdict[Any, LayoutMemory] = defaultdict(LayoutMemory)
        self.process.start(Settler(self.shard, clock, self._ask)._run)

    def crash(self, machine: bool = True) -> None:
        """Kill the process: all that it held in memory is gone.

        Args:
            machine: Whether its machine fails with it, which perhaps loses what was on its way to the disk. Else the
                next process reads it, though it is not on the disk.
        """
        self.up = False
        self.process.kill()
        if self._disk is not None:
            log = self.shard.witness
            if isinstance(log, WriteAheadLog):
                log._release()
            if machine:
                self._disk.crash()

    def _at_disk(self, point: str) -> None:
        """The log is between two steps: a fault may strike. Those of the settler's thread are left out."""
        if getcurrent() is not self._hub.greenlet:
            return
        for watch in self._network.watchers:
            watch(point, self.process, "log")
        if not self.process.alive:
            raise Crashed

    def _ask(self, address: str, request: pb.SettleRequest) -> pb.SettleReply:
        lane = SimulatedLane(self._network, self.process, int(address.rpartition(":")[2]))
        reply: pb.SettleReply = lane.unary("Settle", request, _SETTLE_SECS).result()
        return reply

    def handle(self, call: Call, data: memoryview) -> tuple[Any, pb.Error | None, Sequence[memoryview]] | None:
        """See simulated_network.Task."""
        try:
            return self._handle(call, data)
        except Crashed:
            self._interrupted(self, call)
            return None

    def _handle(self, call: Call, data: memoryview) -> tuple[Any, pb.Error | None, Sequence[memoryview]]:
        value: Any = None
        error: pb.Error | None = None
        pieces: Sequence[memoryview] = ()
        if call.connection is not None:
            value, pieces = self._control.handler.handle(call.request, data, self._memories[call.connection])
            error = value.error if value.HasField("error") else None
        else:
            try:
                value = self._control.call(call.method, call.request)
            except Exception as failure:
                error = encode_error(failure)
        self._handled(self, call, error)
        return value, error, pieces

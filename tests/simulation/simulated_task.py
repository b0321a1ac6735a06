"""A simulated PS task: the real state machine, handler, control plane and settler, in a process that can be killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from greenlet import getcurrent
from simulated_calls import SimulatedLine, WaitingCalls
from simulated_disk import Crashed, Disk
from simulated_network import LATER, PARKED, Answer, Call, Network, SimulatedTransport
from simulated_time import Hub, Process, ProcessClock, Threads, Violation

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.aggregates.step_waits import OpenCall
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler, encode_error
from globalstep.ps.service.settler import Settler
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.ps.wal.log_file import LOG_FILES
from globalstep.ps.wal.write_ahead_log import WriteAheadLog

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
        turns: Decides when its threads leave each other the turn; None where one carries out all that comes.
        decided: Told of a call that has had a push decided, by a thread that goes on with it.

    Attributes:
        is_calm: Whether nothing goes wrong in the scenario.
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
        handled: Callable[[SimulatedTask, Call | None, pb.Error | None], None],
        interrupted: Callable[[SimulatedTask, Call], None],
        disk: Disk | None = None,
        turns: Random | None = None,
        decided: Callable[[SimulatedTask, Call], None] = lambda *_: None,
    ) -> None:
        self._decided = decided
        self._turns = turns
        self.is_calm = False
        self.index = index
        self.up = False
        self.starts = 0
        # A second process that was started on the same log; see `start_twin`.
        self._twin: SimulatedTask | None = None
        self._routes: dict[Any, bool] = {}
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
        self._clock = clock = ProcessClock(self.process, self._skew_secs)
        self.shard = Shard(clock)
        self._control = Control(
            Handler(self.shard),
            f"{self.index}.{self.starts}",
            "simulated",
            log_dir="" if self._disk is None else str(self._disk.folder),
            log_files=LOG_FILES if self._disk is None else self._disk.files,
        )
        self._control.durability._clock = clock
        self.threads = None
        if self._turns is not None:
            decided = self._has_decided if self._disk is None else None
            self.threads = Threads(self.process, self._turns, self.shard, decided)
            self._control.durability._changing = self.threads.lock()
        self.waiting = WaitingCalls(self, self.process, self._control.handler)
        # A stream's memory ends with its process.
        self._memories: defaultdict[Any, LayoutMemory] = defaultdict(LayoutMemory)
        self.process.start(Settler(self.shard, clock, partial(self._ask, self.process))._run)

    def crash(self, machine: bool = True) -> None:
        """Kill the process: all that it held in memory is gone.

        Args:
            machine: Whether its machine fails with it, which perhaps loses what was on its way to the disk. Else the
                next process reads it, though it is not on the disk.
        """
        if self._twin is not None:
            self._end_twin()
        self.up = False
        self.process.kill()
        if self.threads is not None:
            self.threads.lose_all()
        if self._disk is not None:
            log = self.shard.log
            if isinstance(log, WriteAheadLog):
                log._release()
            if machine:
                self._disk.crash()

    def set_clock_back(self, secs: float) -> None:
        """Have somebody set the wall clock of its machine back."""
        self._skew_secs -= secs
        self._clock.set_back(secs)

    def damage_log(self) -> bool:
        """Change a byte of its log that was on the disk; False where none is known to have been."""
        return self._disk is not None and self._disk.damage()

    def make_unreadable(self, secs: float) -> None:
        """Have its log be one that cannot be read for a while."""
        disk = self._disk
        if disk is not None:
            disk.readable = False
            self._hub.after(secs, setattr, disk, "readable", True)

    # ---- Two processes on one log ---------------------------------------------------------------

    def start_twin(self, secs: float, rng: Random) -> None:
        """Start a second process on the log of this one, which some calls lead to from now on.

        Args:
            secs: After so long the first one ends, and the second is the task's; or the second ends.
            rng: Decides which, and where calls lead to.
        """
        if self._twin is not None or self._disk is None:
            return
        self._rng = rng
        disk, at = self._disk, self._disk.at
        twin = self._twin = SimulatedTask(
            self._hub, self._network, self.index, self._skew_secs, self._failed, lambda *_: None, lambda *_: None, disk
        )
        disk.at = at
        self._routes.clear()
        self._hub.after(secs, self._one_is_left, twin, rng.random() < 0.5)

    def _one_is_left(self, twin: SimulatedTask, first_ends: bool) -> None:
        if self._twin is not twin:
            return
        if first_ends and self.up:
            self._exchange(twin)
        self._end_twin()

    def _exchange(self, twin: SimulatedTask) -> None:
        """Make the second process the task's, and the first one its twin."""
        self.starts += 1
        self.process, twin.process = twin.process, self.process
        self.shard, twin.shard = twin.shard, self.shard
        self._control, twin._control = twin._control, self._control
        self._clock, twin._clock = twin._clock, self._clock
        self._memories, twin._memories = twin._memories, self._memories
        self.waiting, twin.waiting = twin.waiting, self.waiting
        self.waiting.task, twin.waiting.task = self, twin
        self._routes = {connection: not to_twin for connection, to_twin in self._routes.items()}

    def _end_twin(self) -> None:
        twin, self._twin = self._twin, None
        if twin is not None:
            twin.crash(machine=False)

    def _leads_to_twin(self, call: Call) -> bool:
        """Whether a call comes to the second process: a connection leads to one of them, any other call to either."""
        if call.connection is None:
            return call.method in ("Status", "FindLog", "Recover") and self._rng.random() < 0.5
        return self._routes.setdefault(call.connection, self._rng.random() < 0.3)

    def _at_disk(self, point: str) -> None:
        """The log is between two steps: a fault may strike. Those of the settler's thread are left out."""
        if getcurrent() is not self._hub.greenlet and not (self.threads and self.threads.is_one()):
            return
        for watch in self._network.watchers:
            watch(point, self.process, "log")
        if not self.process.alive:
            raise Crashed

    def _ask(self, process: Process, address: str, request: pb.SettleRequest) -> pb.ShardEntries:
        transport = SimulatedTransport(self._network, process, int(address.rpartition(":")[2]))
        reply: pb.ShardEntries = transport.unary("Settle", request, _SETTLE_SECS).result()
        return reply

    def handle(self, call: Call, data: memoryview) -> Answer | None:
        """See simulated_network.Task."""
        if self.threads is None:
            return self._handle(call, data)
        network = self._network
        act = partial(self._handle_and_answer, call, data)
        self.threads.run(call.connection or call, act, lambda: network._notice(call, "the task died"))
        return LATER

    def _handle_and_answer(self, call: Call, data: memoryview) -> None:
        self._network.handled(call, self, self._handle(call, data))

    def _handle(self, call: Call, data: memoryview) -> Answer | None:
        twin = self._twin if self._twin is not None and self._leads_to_twin(call) else None
        waiting = (twin or self).waiting
        call.began_in = (twin or self).shard.now.number
        try:
            answer = (twin or self)._carry_out(call, data)
        except Crashed:
            self._interrupted(self, call)
            return None
        if twin is not None:
            if not twin.shard.now.number:
                return answer
            if self.shard.now.number:
                raise Violation("log", f"two processes have the log of task {self.index}, after {call.method}")
            # The one that holds the state is the task, to which the watch looks.
            self._exchange(twin)
        if answer is not PARKED:
            self._handled(self, call, answer[1])
        elif call.method == "push":
            self._handled(self, call, None)  # a contribution, which is decided, and waits for its step
        if self.threads is not None:
            waiting.answer_resumed()  # of other threads' doing, too, so what this one has done is checked first
        if call.connection is not None:
            waiting.look()
        return answer

    def _has_decided(self, call: Call) -> None:
        """Have checked at once what a call has had decided; what is wrong is no error of that call."""
        try:
            self._decided(self, call)
        except Violation as violation:
            self._failed(self.process, violation)

    def finish(self, waiting: WaitingCalls, call: OpenCall, asked: Call) -> None:
        """Answer a call that was parked, and is resumed."""
        before = self.threads.carry_out(asked) if self.threads is not None else None
        asked.began_in = self.shard.now.number
        try:
            reply, pieces = waiting.handler.finish(call)
        except Crashed:
            self._interrupted(self, asked)
            self._network._notice(asked, "the task died")
            return
        if self.threads is not None:
            self.threads.carry_out(before)
        error = reply.error if reply.HasField("error") else None
        self._check(asked.method)
        self._handled(self, asked, error)
        self._network.answer(asked, self, (reply, error, pieces))

    def heard(self, waiting: WaitingCalls) -> None:
        """Check what looking after calls that wait has come to."""
        if self.waiting is waiting and self.shard.now.number:
            self._check("a look after calls that wait")
            self._handled(self, None, None)

    def _check(self, what: str) -> None:
        if found := problems(self.shard.now):
            raise Violation("state", f"task {self.index} after {what}: {'; '.join(found)}")

    def _carry_out(self, call: Call, data: memoryview) -> Answer:
        value: Any = None
        error: pb.Error | None = None
        pieces: Sequence[memoryview] = ()
        if self.threads is not None:
            self.threads.carry_out(call)
        if call.connection is not None:
            memory, line = self._memories[call.connection], SimulatedLine(self.waiting, call)
            answered = self._control.handler.begin(call.request, data, memory, line=line)
            if self.threads is None:
                self.waiting.answer_resumed()
            if answered is None:
                return PARKED
            value, pieces = answered
            error = value.error if value.HasField("error") else None
        else:
            try:
                value = self._control.call(call.method, call.request)
            except Exception as failure:
                error = encode_error(failure)
        self._check(call.method)
        return value, error, pieces

"""Calls of a simulated PS task that wait for a step without a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulated_disk import Crashed
from simulated_time import Process

from globalstep.ps.aggregates.step_waits import OpenCall, ParkedCall

if TYPE_CHECKING:
    from simulated_network import Call
    from simulated_task import SimulatedTask

__all__ = ["SimulatedLine", "WaitingCalls"]


class SimulatedLine:
    """A client's call, as far as a handler needs to know its connection; see step_waits.ServedLine."""

    def __init__(self, waiting: WaitingCalls, call: Call) -> None:
        self._waiting = waiting
        self._call = call

    def park(self, call: OpenCall) -> ParkedCall:
        """See ServedLine."""
        waiting = self._waiting
        return ParkedCall(waiting.handler.step_waits.now(), lambda _: waiting.resume(call, self._call))


class WaitingCalls:
    """The calls that are parked in one process of a PS task.

    Args:
        task: Whose process it is.
        process: It.
        handler: Its.
    """

    def __init__(self, task: SimulatedTask, process: Process, handler: Any) -> None:
        self.task = task
        self.process = process
        self.handler = handler
        self.hub = task._hub
        self._resumed: list[tuple[OpenCall, Call]] = []
        self._looks = False

    def resume(self, call: OpenCall, asked: Call) -> None:
        """Have a call answered once what goes on now is done."""
        self._resumed.append((call, asked))

    def answer_resumed(self) -> None:
        """Answer what was resumed."""
        while self._resumed and self.process.alive:
            call, asked = self._resumed.pop(0)
            self.task.finish(self, call, asked)

    def look(self) -> None:
        """Look after what is parked, once in a while; what is said on the way may need the disk, and the task die."""
        try:
            secs = self.handler.step_waits.look_after()
        except Crashed:
            return
        self.answer_resumed()
        if secs is not None and not self._looks:
            self._looks = True
            self.hub.after(secs + 1e-6, self._look)

    def _look(self) -> None:
        self._looks = False
        if self.process.alive:
            if self.hub.now < self.process.stopped_until:
                self._looks = True
                self.hub.at(self.process.stopped_until, self._look)
            else:
                self.look()
                if self.process.alive:
                    self.task.heard(self)

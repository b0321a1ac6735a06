"""Simulated links between the sequencer and the other shards: their messages are late, lost, doubled and overtaken too.

The real Voter and VoteCount are at the ends; what is between them does more than TCP would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulated_disk import Crashed
from simulated_time import Process, Threads, Violation

from globalstep.errors import GlobalStepError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.links.parked_call import LONGEST_SECS, OpenCall, ParkedCall
from globalstep.ps.shard.layouts import LayoutMemory

if TYPE_CHECKING:
    from simulated_network import Call
    from simulated_task import SimulatedTask

__all__ = ["Links", "SimulatedLine"]

_DIAL_SECS = 0.05


class SimulatedLine:
    """A client's call, as far as a handler needs to know its connection; see parked_call.ServedLine."""

    def __init__(self, links: Links, call: Call) -> None:
        self._links = links
        self._call = call

    def park(self, call: OpenCall) -> ParkedCall:
        """See ServedLine."""
        return ParkedCall(self._links.handler.voting.now(), lambda _: self._links.resume(call, self._call))

    def tell(self, decisions: pb.Decisions) -> None:
        """See ServedLine; votes do not come on a client's connection."""
        raise AssertionError

    def when_ended(self, ended: Callable[[], None]) -> None:
        """See ServedLine."""
        raise AssertionError


class _Pair:
    """A link: what a participant sends on, and the line at the sequencer."""

    def __init__(self, here: Links, there: Links, incarnation: int) -> None:
        self.incarnation = incarnation
        self.here, self.there = here, there
        self.over = False
        self._ended: Callable[[], None] | None = None
        self._last = [0.0, 0.0]

    # ---- The participant's end ------------------------------------------------------------------

    def send(self, request: pb.VoteRequest) -> None:
        """See voter.Link."""
        self._carry(0, self.there, lambda: self.there.hear_votes(request, self))

    # ---- The sequencer's end --------------------------------------------------------------------

    def tell(self, decisions: pb.Decisions) -> None:
        """See parked_call.Line."""
        self._carry(1, self.here, lambda: self.here.hear_decisions(decisions, self))

    def when_ended(self, ended: Callable[[], None]) -> None:
        """See parked_call.Line."""
        self._ended = ended

    # ---------------------------------------------------------------------------------------------

    def _carry(self, way: int, to: Links, deliver: Callable[[], None]) -> None:
        """Have a message arrive once, twice, late or never."""
        network, hub = to.network, to.hub
        for copy in range(2):
            if copy and (network.calm or network.draw() >= network.weather.doubled):
                return
            arrival = network.arrival()
            if arrival is None:
                continue
            if network.weather.ordered and not copy:
                arrival = self._last[way] = max(arrival, self._last[way])
            hub.at(arrival, self._arrive, to, deliver)

    def _arrive(self, to: Links, deliver: Callable[[], None]) -> None:
        if self.over or not to.process.alive:
            return
        if to.hub.now < to.process.stopped_until:
            to.hub.at(to.process.stopped_until, self._arrive, to, deliver)
            return
        deliver()

    def end(self) -> None:
        """Break it; both ends notice a little later."""
        if not self.over:
            self.over = True
            network = self.here.network
            for side, notice in ((self.here, self._here_notices), (self.there, self._there_notices)):
                side.hub.after(network.weather.notice_secs * network.draw(), self._notice, side, notice)

    def _notice(self, side: Links, notice: Callable[[], None]) -> None:
        if side.process.alive:
            notice()
            side.answer_resumed()

    def _here_notices(self) -> None:
        self.here.pair = None
        self.here.handler.voting.voter.ended(self)

    def _there_notices(self) -> None:
        if self._ended is not None:
            self._ended()


class Links:
    """The links of one process of a PS task, and its calls that are parked.

    Args:
        task: Whose process it is.
        process: It.
        handler: Its.
        threads: Its, where each link has one.
    """

    def __init__(self, task: SimulatedTask, process: Process, handler: Any, threads: Threads | None = None) -> None:
        self._threads = threads
        if threads is not None:
            handler.voting.count._lock, handler.voting.voter._lock = threads.lock(), threads.lock()
        self.task = task
        self.process = process
        self.handler = handler
        self.hub, self.network = task._hub, task._network
        self.pair: _Pair | None = None
        self.lines: list[_Pair] = []
        self._resumed: list[tuple[OpenCall, Call]] = []
        self._dials = self._looks = False
        handler.voting.voter.wanted = self._wanted

    # ---- Dialling -------------------------------------------------------------------------------

    def _wanted(self) -> None:
        if self.pair is None and not self._dials:
            self._dials = True
            self.hub.after(_DIAL_SECS * (0.5 + self.network.draw()), self._dial)

    def _dial(self) -> None:
        self._dials = False
        now = self.task.shard.now if self.process.alive else None
        if now is None or not now.sequencer_address or self.task.links is not self:
            return
        sequencer = self.network.tasks[int(now.sequencer_address.rpartition(":")[2])]
        if not sequencer.up or self.hub.now < self.process.stopped_until:
            return
        greeting = self.handler.voting.voter.greeting()
        pair = self.pair = _Pair(self, sequencer.links, greeting.incarnation)
        sequencer.links.lines.append(pair)
        pair.send(greeting)
        self.handler.voting.voter.linked(pair)

    def crash(self) -> None:
        """The process is gone."""
        for pair in [*self.lines, *([self.pair] if self.pair is not None else [])]:
            pair.end()
        self.lines.clear()

    # ---- What comes over a link -----------------------------------------------------------------

    def hear_votes(self, request: pb.VoteRequest, pair: _Pair) -> None:
        """At the sequencer."""
        self._do("vote", pair, lambda: self.handler.hear_votes(pb.Request(vote=request), LayoutMemory(), pair))

    def hear_decisions(self, decisions: pb.Decisions, pair: _Pair) -> None:
        """At a participant."""
        self._do("decisions", pair, lambda: self.handler.voting.voter.hear(pair, [decisions]))

    def _do(self, method: str, pair: _Pair, act: Callable[[], None]) -> None:
        if self._threads is None:
            self._carry_out(method, pair, act)
        else:
            self._threads.run(pair, lambda: self._carry_out(method, pair, act))

    def _carry_out(self, method: str, pair: _Pair, act: Callable[[], None]) -> None:
        for where in ("arrive", "handled"):
            for watch in self.network.watchers:
                watch(where, self.process, method)
            if not self.process.alive:
                return
            if where == "arrive":
                try:
                    act()
                except GlobalStepError:
                    pair.end()
                except Crashed:
                    return
                self.answer_resumed()
                if self.process.alive:
                    self.task.heard(self)
                    self.look()

    # ---- Calls that were parked -----------------------------------------------------------------

    def resume(self, call: OpenCall, asked: Call) -> None:
        """Have a call answered once what goes on now is done."""
        self._resumed.append((call, asked))

    def answer_resumed(self) -> None:
        """Answer what was resumed."""
        while self._resumed and self.process.alive:
            call, asked = self._resumed.pop(0)
            self.task.finish(self, call, asked)

    def _check_waits(self) -> None:
        """Nobody waits until it gives up where all that it waits for has come."""
        voting, now = self.handler.voting, self.hub.now
        waiting = {push: call.since for push, call in voting.voter._parked.items()}
        waiting |= {push: found.since for push, found in voting.count._rounds.items() if found.call is not None}
        for push, since in waiting.items():
            if now - since > LONGEST_SECS:
                raise Violation("wait", f"task {self.task.index}: a call of {push} has waited for {now - since:.1f} s")

    def look(self) -> None:
        """Look after what is parked, once in a while; what is said on the way may need the disk, and the task die."""
        if self.task.is_calm:
            self._check_waits()
        try:
            secs = self.handler.voting.look_after_calls()
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

"""Simulation of a cluster's steps, event by event, on its cores, locks and links. Pure; time and chance are arguments.

A worker computes, and then exchanges messages with the PS tasks in phases: those of a phase are sent one after another,
and all are answered before the next. A message takes its sender's processor and its link, the PS task's link, its
interpreter (one thread of a process at a time), a core, and its lock while values are changed; the reply goes back
alike. What waits, waits in line.

What is simplified: a processor works on one thing until it is done; a message is on a sender's link and on its
receiver's at the same time, as fast as the slower of them; switches between them carry all of it. A leg may stand
for several PS tasks, to which the same happens at nearly the same time.

Layer: deploy.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from globalstep.deploy.plan.cluster import Leg, Phase, SimulatedCluster, SimulationResult
from globalstep.deploy.plan.resources import Link, Lock, SimulatedCores

__all__ = ["simulate"]

#: A large message is worked on while the rest of it is still on its way, in pieces of so many bytes.
_PIECE_BYTES = 2 << 20


class _Shard:
    def __init__(self, cluster: SimulatedCluster, cores: SimulatedCores) -> None:
        self.into, self.out = Link(cluster.ps_bytes_sec), Link(cluster.ps_bytes_sec)
        self.interpreter, self.lock = Lock(), Lock()
        self.cores = cores
        self.held = self.most_held = 0.0


class _SimulatedWorker:
    def __init__(self, cluster: SimulatedCluster, cores: SimulatedCores | None) -> None:
        self.into, self.out = Link(cluster.worker_bytes_sec), Link(cluster.worker_bytes_sec)
        self.cores = cores or SimulatedCores(1)
        self.seen = 0
        self.phase = 0
        self.awaited = 0
        self.last = 0.0


@dataclass(slots=True)
class _LegInFlight:
    """A leg in flight."""

    worker: _SimulatedWorker
    phase: Phase
    leg: Leg
    #: When the worker began and ended to send it, and when its last byte was on the way.
    sent: float
    arrived: float = 0.0


@dataclass(slots=True)
class _Tally:
    pushes: int = 0
    warm_at: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    step_secs: float = 0.0


class _Simulation:
    def __init__(self, cluster: SimulatedCluster, phases: Sequence[Phase], rng: random.Random) -> None:
        self._cluster = cluster
        self._phases = phases
        self._rng = rng
        shared = SimulatedCores(cluster.shared_cores) if cluster.shared_cores else None
        self._shared = shared
        self.shards = [_Shard(cluster, shared or SimulatedCores(cluster.ps_cores)) for _ in range(cluster.shards)]
        self.workers = [_SimulatedWorker(cluster, shared) for _ in range(cluster.workers)]
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._number = 0
        self._now = 0.0
        self._step = 0
        self._tally = _Tally()
        self._computed = 0.0

    def at(self, time: float, what: Callable[..., None], about: Any) -> None:
        """Let something happen at a time, not before now."""
        self._number += 1
        heapq.heappush(self._events, (time if time > self._now else self._now, self._number, what, about))

    def run(self, pushes: int, warm: int) -> SimulationResult:
        """Go on until so many pushes are done, of which the first few only warm up."""
        cluster, tally = self._cluster, self._tally
        for worker in self.workers:
            # Where in its step a worker is at first is unknown.
            self.at(cluster.compute_secs * self._rng.random(), self._begin, worker)
        events = self._events
        while tally.pushes < pushes:
            self._now, _, what, about = heapq.heappop(events)
            what(about)
            if tally.pushes >= warm and not tally.busy:
                tally.warm_at, tally.busy = self._now, self._busy_secs()
                tally.step_secs, tally.staleness, warm = 0.0, Counter(), tally.pushes
        took = self._now - tally.warm_at
        counted = tally.pushes - warm
        busy = {name: min(1.0, (secs - tally.busy[name]) / took) for name, secs in self._busy_secs().items()}
        return SimulationResult(
            steps_sec=counted / took,
            step_secs=tally.step_secs / counted,
            staleness=dict(sorted(tally.staleness.items())),
            busy=busy,
            held_bytes=max(shard.most_held for shard in self.shards),
        )

    # ---- The worker -----------------------------------------------------------------------------

    def _begin(self, worker: _SimulatedWorker) -> None:
        cluster = self._cluster
        worker.last, worker.phase = self._now, 0
        secs = cluster.compute_secs
        if cluster.spread and secs:
            secs *= max(0.0, self._rng.gauss(1.0, cluster.spread))
        self._computed += secs
        takes_core = self._shared is not None and cluster.compute_takes_core
        self.at(worker.cores.work(self._now, secs) if takes_core else self._now + secs, self._send, worker)

    def _send(self, worker: _SimulatedWorker) -> None:
        """Begin a phase."""
        phase = self._phases[worker.phase]
        worker.awaited = len(phase.legs) if phase.waits else 0
        if self._shared is not None:
            self._send_next((worker, phase, 0))
            return
        now = self._now
        for leg in phase.legs:
            now = self._put_out(worker, phase, leg, now)
        if not phase.waits:
            self.at(now, self._phase_over, worker)

    def _send_next(self, about: tuple[_SimulatedWorker, Phase, int]) -> None:
        """Send the next message where others want the same cores."""
        worker, phase, number = about
        done = self._put_out(worker, phase, phase.legs[number], self._now)
        if number + 1 < len(phase.legs):
            self.at(done, self._send_next, (worker, phase, number + 1))
        elif not phase.waits:
            self.at(done, self._phase_over, worker)

    def _put_out(self, worker: _SimulatedWorker, phase: Phase, leg: Leg, now: float) -> float:
        done = worker.cores.work(now, leg.send_secs * leg.stands_for)
        began = done - leg.send_secs * leg.stands_for
        first = max(began, worker.out.free)
        last = worker.out.send(began, leg.out_bytes * leg.stands_for)
        half = self._cluster.round_trip_secs / 2
        tail = min(leg.out_bytes, _PIECE_BYTES) / worker.out.bytes_sec
        call = _LegInFlight(
            worker, phase, leg, done + half, max(last, done + tail + min(0.0, leg.delay_secs / 2)) + half
        )
        self.at(first + half, self._arrive, call)
        return done

    # ---- The PS task ----------------------------------------------------------------------------

    def _arrive(self, call: _LegInFlight) -> None:
        """The first byte is there."""
        leg, shard = call.leg, self.shards[call.leg.shard]
        call.arrived = max(call.arrived, shard.into.send(self._now, leg.out_bytes))
        if leg.held_bytes > 0:
            shard.held += leg.held_bytes
            shard.most_held = max(shard.most_held, shard.held)
        # What came before the last piece has been received by then.
        early = leg.take_secs * (1.0 - _last_piece(leg.out_bytes))
        self.at(max(call.sent + leg.delay_secs / 2, call.arrived - early), self._handle, call)

    def _handle(self, call: _LegInFlight) -> None:
        if call.leg.handle_secs:
            self.shards[call.leg.shard].interpreter.enter(self._interpret, call)
        else:
            self._take(call)

    def _interpret(self, call: _LegInFlight) -> None:
        shard = self.shards[call.leg.shard]
        shard.interpreter.busy += call.leg.handle_secs
        self.at(shard.cores.work(self._now, call.leg.handle_secs), self._interpreted, call)

    def _interpreted(self, call: _LegInFlight) -> None:
        self.shards[call.leg.shard].interpreter.leave()
        self._take(call)

    def _take(self, call: _LegInFlight) -> None:
        leg, shard = call.leg, self.shards[call.leg.shard]
        done = self._now
        if leg.take_secs:
            done = shard.cores.work(done, leg.take_secs)
        done = max(done, call.arrived + leg.take_secs * _last_piece(leg.out_bytes))
        if leg.apply_secs or leg.shard == 0:
            self.at(done, self._decide, call)
        else:
            self.at(done, self._give, call)

    def _decide(self, call: _LegInFlight) -> None:
        self.shards[call.leg.shard].lock.enter(self._apply, call)

    def _apply(self, call: _LegInFlight) -> None:
        leg, shard = call.leg, self.shards[call.leg.shard]
        if leg.shard == 0:
            if call.phase.admits:
                self._tally.staleness[self._step - call.worker.seen] += 1
                self._step += 1
            if call.phase.sees:
                call.worker.seen = self._step
        shard.lock.busy += leg.apply_secs
        self.at(shard.cores.work(self._now, leg.apply_secs) if leg.apply_secs else self._now, self._applied, call)

    def _applied(self, call: _LegInFlight) -> None:
        self.shards[call.leg.shard].lock.leave()
        self._give(call)

    def _give(self, call: _LegInFlight) -> None:
        """Send the reply, which takes the worker's processor when it is there."""
        leg, shard, worker = call.leg, self.shards[call.leg.shard], call.worker
        if leg.held_bytes < 0 or call.phase.admits:
            shard.held -= abs(leg.held_bytes)
        began = self._now
        done = shard.cores.work(began, leg.give_secs) if leg.give_secs else began
        last = shard.out.send(began, leg.in_bytes)
        tail = min(leg.in_bytes, _PIECE_BYTES) / shard.out.bytes_sec
        half = self._cluster.round_trip_secs / 2
        arrived = max(last, done + tail + min(0.0, leg.delay_secs / 2)) + half
        arrived = max(arrived, worker.into.send(began + half, leg.in_bytes * leg.stands_for))
        early = leg.receive_secs * leg.stands_for * (1.0 - _last_piece(leg.in_bytes * leg.stands_for))
        call.arrived = arrived
        self.at(max(done + half + leg.delay_secs / 2, arrived - early), self._receive, call)

    def _receive(self, call: _LegInFlight) -> None:
        leg = call.leg
        secs = leg.receive_secs * leg.stands_for
        done = call.worker.cores.work(self._now, secs) if secs else self._now
        done = max(done, call.arrived + secs * _last_piece(leg.in_bytes * leg.stands_for))
        if call.phase.waits:
            self.at(done, self._received, call.worker)

    def _received(self, worker: _SimulatedWorker) -> None:
        worker.awaited -= 1
        if not worker.awaited:
            self._phase_over(worker)

    def _phase_over(self, worker: _SimulatedWorker) -> None:
        worker.phase += 1
        if worker.phase < len(self._phases):
            self._send(worker)
            return
        self._tally.pushes += 1
        self._tally.step_secs += self._now - worker.last
        self._begin(worker)

    # ---- What was in use ------------------------------------------------------------------------

    def _busy_secs(self) -> dict[str, float]:
        """Give the seconds of use of each resource so far, on average over those of its kind."""
        busy = {"workers' computing": self._computed / len(self.workers)}
        busy["workers' links"] = max(
            _mean(worker.out.busy for worker in self.workers), _mean(worker.into.busy for worker in self.workers)
        )
        if self._shared is not None:
            busy["shared cores"] = self._shared.busy / self._shared.count
        else:
            busy["workers' messages"] = _mean(worker.cores.busy for worker in self.workers)
        for name, shards in (("sequencer", self.shards[:1]), ("other PS", self.shards[1:])):
            if shards:
                busy[f"{name}: link in"] = _mean(shard.into.busy for shard in shards)
                busy[f"{name}: link out"] = _mean(shard.out.busy for shard in shards)
                busy[f"{name}: interpreter"] = _mean(shard.interpreter.busy for shard in shards)
                busy[f"{name}: applying"] = _mean(shard.lock.busy for shard in shards)
                if self._shared is None:
                    busy[f"{name}: cores"] = _mean(shard.cores.busy / shard.cores.count for shard in shards)
        return busy


def _last_piece(nbytes: float) -> float:
    """Give the part of a message that its last piece is."""
    return min(1.0, _PIECE_BYTES / nbytes) if nbytes else 1.0


def _mean(values: Any) -> float:
    found = list(values)
    return float(sum(found) / len(found))


def simulate(
    cluster: SimulatedCluster,
    phases: Sequence[Phase],
    rng: random.Random,
    steps_per_worker: float = 20,
    warm_part: float = 0.25,
) -> SimulationResult:
    """Simulate the steps of a cluster.

    Args:
        cluster: Who works.
        phases: What a worker exchanges with the PS tasks after computing, in every step.
        rng: For the spread, and for where workers are at first.
        steps_per_worker: How many steps are simulated, at least 40 in all.
        warm_part: The part of them that comes before anything is counted.

    Returns:
        What came of it; the same for the same arguments.

    >>> from globalstep.deploy.plan.cluster import SimulatedCluster, Leg, Phase
    >>> step = Phase((Leg(0, apply_secs=0.25),), admits=True, sees=True)
    >>> simulate(SimulatedCluster(workers=1, shards=1, compute_secs=0.75), [step], random.Random(1)).steps_sec
    1.0
    >>> simulate(SimulatedCluster(workers=9, shards=1, compute_secs=0.75), [step], random.Random(1)).steps_sec
    4.0
    """
    pushes = max(40, round(cluster.workers * steps_per_worker))
    return _Simulation(cluster, phases, rng).run(pushes, max(1, round(pushes * warm_part)))

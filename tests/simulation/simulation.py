"""Runs one scenario: PS tasks, workers and a chief under a simulated network and clock (docs/design/simulation.md)."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_history import RecordedHistory
from simulated_disk import Disk, disks
from simulated_intruder import Intruder
from simulated_invariants import Watch
from simulated_network import Network
from simulated_programs import Program, transports_beside
from simulated_scenarios import Fault, Scenario, scenario_of
from simulated_task import SimulatedTask
from simulated_time import Hub, Process, Violation
from simulated_workload import STEP

from globalstep.deploy.audit.history_checker import BadHistoryError, Judgement, judge
from globalstep.worker.client import snapshot

__all__ = ["Report", "Simulation", "run", "simulating"]

#: Simulated seconds after which nothing goes wrong any more, and after which the job must have come to its end.
_CALM_SECS, _LATEST_SECS = 120.0, 1000.0
#: And what the settlers may need then.
_SETTLING_SECS = 200.0
_MOST_EVENTS = 60_000


@dataclass
class Report:
    """What came of a scenario.

    Attributes:
        scenario: It.
        violation: What did not hold; None when all did.
        judgement: What the checker of histories says of what clients saw; None where it cannot.
        faults: Those that struck, by kind.
        messages: What the network did, by kind.
        events: How many things happened.
        secs: How much time passed, simulated.
        pushes: Training pushes that were accepted.
        lives: Incarnations.
    """

    scenario: Scenario
    violation: BaseException | None
    judgement: Judgement | None
    faults: Counter[str]
    messages: Counter[str]
    events: int
    secs: float
    pushes: int
    lives: int


class Simulation:
    """A cluster under a scenario.

    Args:
        scenario: It.
        trace: Whether to print every point that is passed.
    """

    def __init__(self, scenario: Scenario, trace: bool = False) -> None:
        self.scenario = scenario
        self.shards, self.sequencer, self.limit = scenario.shards, scenario.sequencer, scenario.limit
        self.heartbeats, self.whole_pushes = scenario.heartbeats, scenario.whole_pushes
        self.save_every, self.logged = scenario.save_every, scenario.logged
        self.contributions, self.units = scenario.contributions, scenario.units
        self.most_lead, self.slow = scenario.most_lead, scenario.slow
        self.finishing = self.damaged = False
        self.newest_incarnation = 0
        self.struck: Counter[str] = Counter()
        self._rng = random.Random(f"{scenario.seed} run")
        self._failure: BaseException | None = None
        self._numbers = 0
        self._intruder: Intruder | None = None
        self._trace = trace
        self.hub = Hub()
        self.events: list[dict[str, Any]] = []
        self.history = RecordedHistory(self.events.append, lambda: self.hub.now)
        self.network = Network(self.hub, random.Random(f"{scenario.seed} network"), scenario.weather)
        self.network.lasting_leases = not scenario.heartbeats
        if trace or scenario.faults:
            self.network.watchers.append(self._passed)
        self.tasks: list[SimulatedTask] = []
        self.watch = Watch(scenario.shards, self.tasks, self)
        self._folder = tempfile.TemporaryDirectory(prefix="simulated") if scenario.logged else None
        self._disks: list[Disk] = []
        for index, skew in enumerate(scenario.skews_secs):
            disk = None
            if self._folder is not None:
                disk = Disk(Path(self._folder.name, f"ps-{index}"), random.Random(f"{scenario.seed} disk {index}"))
                self._disks.append(disk)
            watch = self.watch
            self.tasks.append(
                SimulatedTask(
                    self.hub,
                    self.network,
                    index,
                    skew,
                    self._failed,
                    watch.handled,
                    watch.interrupted,
                    disk,
                    random.Random(f"{scenario.seed} turns {index}") if scenario.threads else None,
                    watch.decided,
                )
            )
            self.tasks[-1].is_calm = scenario.is_calm
        self.network.tasks.extend(self.tasks)
        self._programs: dict[str, Program] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._faults: dict[tuple[str, str, str], list[Fault]] = {}
        for fault in scenario.faults:
            self._faults.setdefault((fault.who, fault.where, fault.method), []).append(fault)

    def next_number(self) -> int:
        """See simulated_programs.Job."""
        self._numbers += 1
        return self._numbers

    def run(self) -> Report:
        """Run it to its end."""
        for name in ("chief", *(f"worker {at}" for at in range(self.scenario.workers))):
            self._start(name)
        if self.scenario.intruder:
            self._start_intruder()
        self.hub.at(_CALM_SECS, self._calm)
        try:
            if not self.hub.run(self._over, _LATEST_SECS, _MOST_EVENTS):
                self._raise_failure()
                left = [name for name, program in self._programs.items() if not program.done]
                raise Violation("end", f"after {self.hub.now:.0f} s and {self.hub.events} events {left} still run")
            self._raise_failure()
            if self._intruder is not None:
                self._intruder.over = True
            self.hub.run(self._settled, self.hub.now + _SETTLING_SECS, 2 * _MOST_EVENTS)
            self._raise_failure()
            self._check_end()
        except Violation as violation:
            self._failure = violation
        except Exception as error:
            self._failure = error
        finally:
            for process in [
                *(program.process for program in self._programs.values()),
                *(t.process for t in self.tasks),
                *([self._intruder.process] if self._intruder is not None else []),
            ]:
                process.kill()
            for task in self.tasks:
                task.crash()
            if self._folder is not None:
                self._folder.cleanup()
        judgement = self._judge_history()
        return Report(
            self.scenario,
            self._failure,
            judgement,
            self.struck,
            Counter(self.network.counts),
            self.hub.events,
            self.hub.now,
            self.watch.admitted,
            len(self.watch.lives),
        )

    def _judge_history(self) -> Judgement | None:
        """Have what clients saw judged by itself."""
        run = {"limit": {STEP: self.limit}, "durable": self.logged and not self.damaged}
        judgement, wrong = None, ""
        try:
            judgement = judge([{"f": "run", "value": run}, *self.events])
            wrong = "" if not judgement.wrong else "\n".join([judgement.wrong, *judgement.operations])
        except BadHistoryError as error:
            wrong = str(error)
        if wrong and self._failure is None:
            self._failure = Violation("history", wrong)
        return judgement

    # ---- Processes ----------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        """Start a program's process; one that runs already stays."""
        last = self._programs.get(name)
        if last is not None and (last.process.alive or last.done):
            return
        life = 0 if last is None else int(last.process.name.partition("#")[2]) + 1
        process = Process(self.hub, f"{name}#{life}", self._failed)
        program = Program(self, process, random.Random(f"{self.scenario.seed} {process.name}"), name == "chief")
        process.program = program
        self._programs[name] = program
        process.start(program.run)

    def _start_intruder(self) -> None:
        process = Process(self.hub, "intruder#0", self._failed)
        rng = random.Random(f"{self.scenario.seed} intruder")
        self._intruder = Intruder(self.network, process, rng, self.shards)
        process.start(self._intruder.run)

    def _failed(self, process: Process, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if not isinstance(error, Violation):
                self._failure = Violation("end", f"{process.name} ended with {type(error).__name__}: {error}")
                self._failure.__cause__ = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _over(self) -> bool:
        if self._failure is not None:
            return True
        # The chief is mostly the last.
        return self._programs["chief"].done and all(program.done for program in self._programs.values())

    # ---- Faults -------------------------------------------------------------------------------

    def _passed(self, where: str, process: Process, method: str) -> None:
        if self._trace:
            print(f"{self.hub.now:10.4f}  {process.name:12} {where:8} {method}")
        key = (process.role, where, method)
        faults = self._faults.get(key)
        if faults is None:
            return
        self._counts[key] += 1
        for fault in faults:
            if fault.count == self._counts[key] and not self.network.calm:
                self._strike(fault, process)

    def _strike(self, fault: Fault, process: Process) -> None:
        is_ps = fault.who.startswith("ps")
        if is_ps and fault.kind not in ("stop", "cut", "clock") and self.finishing:
            # With the chief gone nobody would restore.
            return
        self.struck[f"{fault.kind} {fault.who.partition(' ')[0]}"] += 1
        if self._trace:
            print(f"{self.hub.now:10.4f}  {fault}")
        if fault.kind == "cut":
            self.network.cut[process, fault.peer] = self.hub.now + fault.secs
        elif fault.kind == "stop":
            process.stop_for(fault.secs)
        elif is_ps:
            self._strike_task(fault, self.tasks[int(fault.who.partition(" ")[2])])
        elif fault.kind == "clock":
            process.program.clock.set_back(fault.secs)
        else:
            self.hub.after(0.0, process.kill)
            self.hub.after(fault.secs, self._start, fault.who)
            process.park()

    def _strike_task(self, fault: Fault, task: SimulatedTask) -> None:
        if fault.kind == "clock":
            task.set_clock_back(fault.secs)
        elif fault.kind in ("power", "past"):
            for one in self.tasks:
                if fault.kind == "past":
                    one.set_clock_back(1e7)
                one.crash()
                self.hub.after(fault.secs, one.start)
        elif fault.kind == "twin":
            task.start_twin(fault.secs, random.Random(f"{self.scenario.seed} twin"))
        else:
            task.crash(machine=fault.kind == "kill")
            if fault.kind == "damage":
                self.damaged |= task.damage_log()
            elif fault.kind == "unreadable":
                task.make_unreadable(5 * fault.secs)
            self.hub.after(fault.secs, task.start)

    def _calm(self) -> None:
        self.network.calm = True

    # ---- The end ------------------------------------------------------------------------------

    def _settled(self) -> bool:
        """Whether every part is decided and every increment visible; the settlers see to that."""
        lives = [task.shard.now for task in self.tasks]
        ledger = lives[self.sequencer].ledger
        if self._failure is not None or ledger is None:
            return True
        # A task that dies after the last save has nothing more to say.
        lost = any(life.number != lives[self.sequencer].number for life in lives)
        return (lost or ledger.visible == ledger.steps) and not any(life.staged for life in lives)

    def _check_end(self) -> None:
        if not self._settled():
            staged = [len(task.shard.now.staged) for task in self.tasks]
            raise Violation("end", f"nobody settled: {staged} parts are staged, and steps may not be visible")
        ledger = self.tasks[self.sequencer].shard.now.ledger
        last = self.watch.checkpoints[-1].steps
        # A sequencer that dies after the last save has nothing more to say.
        steps = last if ledger is None else ledger.steps
        if not steps["global_step"] == last["global_step"] == self.limit:
            raise Violation("I5", f"the limit is {self.limit}; the run ends at {steps}, saved at {last}")


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    """Put the simulated network in the place of the few things that are not arguments."""
    log = logging.getLogger("globalstep")
    level, transports_to, thresholds = log.level, snapshot.transports_to, gc.get_threshold()
    log.setLevel(logging.CRITICAL)
    snapshot.transports_to = transports_beside  # type: ignore[assignment]
    # A fourth of the time would go into looking for garbage among what is imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        with disks():
            yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        snapshot.transports_to = transports_to
        log.setLevel(level)


def run(seed: int, without: Collection[str] = (), trace: bool = False) -> Report:
    """Run the scenario of a seed; call it within `simulating()`.

    Args:
        seed: Any number.
        without: Features to leave out.
        trace: Whether to print what happens.
    """
    return Simulation(scenario_of(seed, without), trace).run()

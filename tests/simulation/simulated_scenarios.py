"""What a seed stands for: a small cluster, the weather of its network, and faults at named points.

A scenario is a set of features, each with what it adds to the cluster. A new kind of trouble or a new promise of the
PS is a new feature here: a function that draws its details from the scenario's random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from simulated_network import Weather

__all__ = ["FEATURES", "Fault", "Scenario", "scenario_of"]


@dataclass(frozen=True)
class Fault:
    """Something that happens once, at a named point.

    Attributes:
        kind: "kill" (and start again after `secs`), "end" (a PS process, whose machine goes on), "stop" (for `secs`),
            "cut" (a link, for `secs`), "twin" (a second process on a PS task's log, for `secs`), "damage" (kill it, its
            log damaged where it was on the disk), "unreadable" (kill it, its log cannot be read for five times as
            long), "clock" (is set back by `secs`), "power" (the machines of all PS tasks fail at once), "past" (the
            same, and their clocks are months back).
        who: "ps 0", "worker 1", "chief".
        where: "send" (before a client sends), "arrive" (before a task handles a request), "handled" (after it did),
            "append" and "fsync" (a record of its log has been written, is on the disk; the method is "log").
        method: Which.
        count: At the how manieth of these, from 1.
        secs: How long it lasts.
        peer: For "cut": the PS task at the other end.
    """

    kind: str
    who: str
    where: str
    method: str
    count: int
    secs: float
    peer: int = 0


@dataclass
class Scenario:
    """A small cluster and its troubles.

    Attributes:
        seed: It decides everything.
        features: Names of those that are on.
        shards: How many PS tasks.
        sequencer: Which of them has the steps.
        workers: How many besides the chief.
        limit: The last step.
        save_every: The chief saves after so many of its own pushes.
        weather: Of the network.
        faults: What happens, in no order.
        skews_secs: How far each PS task's wall clock is wrong.
        heartbeats: Whether clients keep leases.
        whole_pushes: Whether every push has a part on every shard.
        logged: Whether the run has durability="log".
        intruder: Whether a worker lies.
        contributions: Of how many contributions a step is made; 0 where each push moves it on by itself.
        units: Whether these are units of work.
        most_lead: By how many pushes a worker may be ahead of the slowest; None where none waits.
        slow: Programs that compute for seconds.
        threads: Whether each connection of a PS task has a thread, and they leave each other the turn.
    """

    seed: int
    features: frozenset[str]
    shards: int
    sequencer: int
    workers: int
    limit: int
    save_every: int
    weather: Weather = field(default_factory=Weather)
    faults: list[Fault] = field(default_factory=list)
    skews_secs: list[float] = field(default_factory=list)
    heartbeats: bool = False
    whole_pushes: bool = False
    logged: bool = False
    intruder: bool = False
    contributions: int = 0
    units: bool = False
    most_lead: int | None = None
    slow: frozenset[str] = frozenset()
    threads: bool = False

    @property
    def is_calm(self) -> bool:
        """Whether no message is lost, late or doubled, nobody dies, stops or lies: then nobody waits in vain."""
        weather = self.weather
        return not (self.faults or weather.lost or weather.late or weather.doubled or self.intruder)


def _loss(scenario: Scenario, rng: random.Random) -> None:
    scenario.weather = replace(
        scenario.weather, lost=rng.choice([0.01, 0.03, 0.08]), deadline_secs=rng.choice([0.5, 5.0, 30.0])
    )


def _doubling(scenario: Scenario, rng: random.Random) -> None:
    scenario.weather = replace(scenario.weather, doubled=rng.choice([0.05, 0.3]))


def _lateness(scenario: Scenario, rng: random.Random) -> None:
    scenario.weather = replace(scenario.weather, late=rng.choice([0.02, 0.1]), late_secs=rng.choice([0.1, 3.0, 20.0]))


def _reordering(scenario: Scenario, rng: random.Random) -> None:
    scenario.weather = replace(scenario.weather, ordered=False, delay_secs=0.02)


def _serializing(scenario: Scenario, rng: random.Random) -> None:
    scenario.weather = replace(scenario.weather, serialize=True)


def _skew(scenario: Scenario, rng: random.Random) -> None:
    scenario.skews_secs = [rng.uniform(-30.0, 30.0) for _ in range(scenario.shards)]


def _heartbeats(scenario: Scenario, rng: random.Random) -> None:
    scenario.heartbeats = True


def _whole_pushes(scenario: Scenario, rng: random.Random) -> None:
    scenario.whole_pushes = True


#: What a PS task is asked in the course of a run, and a client sends: the points of the protocol.
_METHODS = ("stage", "push", "commit", "pull")
_RARE_METHODS = ("Begin", "Declare", "Open", "pull", "Status", "Settle", "ReleaseSnapshot")


def _point(rng: random.Random) -> tuple[str, int]:
    """A method, and at the how manieth of them."""
    if rng.random() < 0.75:
        return rng.choice(_METHODS), 1 + int(20 * rng.random() ** 2)
    return rng.choice(_RARE_METHODS), 1 + int(4 * rng.random() ** 2)


def _ps_crashes(scenario: Scenario, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 2])):
        who = f"ps {rng.randrange(scenario.shards)}"
        where, secs = rng.choice(["arrive", "handled"]), rng.choice([0.05, 1.0, 3.0])
        scenario.faults.append(Fault("kill", who, where, *_point(rng), secs))


def _ps_stops(scenario: Scenario, rng: random.Random) -> None:
    who = f"ps {rng.randrange(scenario.shards)}"
    scenario.faults.append(Fault("stop", who, rng.choice(["arrive", "handled"]), *_point(rng), rng.choice([2.0, 12.0])))


def _worker_crashes(scenario: Scenario, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 2])):
        who = f"worker {rng.randrange(scenario.workers)}"
        scenario.faults.append(Fault("kill", who, "send", *_point(rng), rng.choice([0.1, 3.0])))


def _worker_stops(scenario: Scenario, rng: random.Random) -> None:
    who = f"worker {rng.randrange(scenario.workers)}"
    secs = rng.choice([2.0, 15.0, 15.0, 100.0])
    scenario.faults.append(Fault("stop", who, "send", *_point(rng), secs))


def _chief_crashes(scenario: Scenario, rng: random.Random) -> None:
    scenario.faults.append(Fault("kill", "chief", "send", *_point(rng), rng.choice([0.1, 1.0])))


def _chief_stops(scenario: Scenario, rng: random.Random) -> None:
    scenario.faults.append(Fault("stop", "chief", "send", *_point(rng), rng.choice([2.0, 15.0])))


def _cuts(scenario: Scenario, rng: random.Random) -> None:
    who = rng.choice(["chief", *(f"worker {at}" for at in range(scenario.workers))])
    secs = rng.choice([1.0, 8.0])
    scenario.faults.append(Fault("cut", who, "send", *_point(rng), secs, rng.randrange(scenario.shards)))


def _log(scenario: Scenario, rng: random.Random) -> None:
    """Tasks come back from their logs; some die between two steps of writing them."""
    scenario.logged = True
    for _ in range(rng.choice([0, 1, 2, 3])):
        who = f"ps {rng.randrange(scenario.shards)}"
        count = 1 + int(60 * rng.random() ** 2)
        scenario.faults.append(
            Fault("kill", who, rng.choice(["append", "fsync"]), "log", count, rng.choice([0.05, 1.0, 3.0]))
        )


def _machine_after_process(scenario: Scenario, rng: random.Random) -> None:
    """A PS process dies within a write of its log, comes back from what nobody synced, and then its machine fails."""
    scenario.logged = True
    who, count = f"ps {rng.randrange(scenario.shards)}", 8 + rng.randrange(40)
    later = count + 1 + rng.randrange(12)
    scenario.faults.append(Fault("end", who, "append", "log", count, rng.choice([0.05, 1.0])))
    scenario.faults.append(Fault("kill", who, rng.choice(["append", "fsync"]), "log", later, rng.choice([0.05, 1.0])))


def _intruder(scenario: Scenario, rng: random.Random) -> None:
    scenario.intruder = scenario.shards > 1


def _frequent(scenario: Scenario, rng: random.Random) -> str:
    """A method that every training push has."""
    return "push" if scenario.shards == 1 else rng.choice(["stage", "push", "commit"])


def _two_tasks(scenario: Scenario, rng: random.Random) -> None:
    """A PS task is taken for dead, and a second process is started on its log."""
    scenario.logged = True
    who, where = f"ps {rng.randrange(scenario.shards)}", rng.choice(["arrive", "handled"])
    scenario.faults.append(
        Fault("twin", who, where, _frequent(scenario, rng), rng.randrange(3, 20), rng.choice([0.3, 2.0]))
    )


def _log_damaged(scenario: Scenario, rng: random.Random) -> None:
    """The recovery is refused: all go back to the checkpoint."""
    scenario.logged = True
    # Of other tasks' logs the sequencer may know how far they went.
    who, where = f"ps {scenario.sequencer}", rng.choice(["arrive", "handled"])
    scenario.faults.append(Fault("damage", who, where, _frequent(scenario, rng), rng.randrange(3, 20), 0.05))


def _log_unreadable(scenario: Scenario, rng: random.Random) -> None:
    """The recovery is refused for a while: nobody goes back."""
    scenario.logged = True
    who, where = f"ps {rng.randrange(scenario.shards)}", rng.choice(["arrive", "handled"])
    secs = rng.choice([0.05, 1.0, 3.0])
    scenario.faults.append(Fault("unreadable", who, where, _frequent(scenario, rng), rng.randrange(3, 20), secs))


def _clocks_back(scenario: Scenario, rng: random.Random) -> None:
    """Somebody sets wall clocks back, at any moment, of any task; perhaps all PS tasks are started again by then."""
    everybody = [
        *(f"ps {at}" for at in range(scenario.shards)),
        "chief",
        *(f"worker {at}" for at in range(scenario.workers)),
    ]
    for who in rng.sample(everybody, rng.randrange(1, len(everybody) + 1)):
        where = rng.choice(["arrive", "handled"]) if who.startswith("ps") else "send"
        scenario.faults.append(Fault("clock", who, where, *_point(rng), rng.choice([1.0, 100.0, 1e7])))
    if rng.random() < 0.5:
        who, where = f"ps {rng.randrange(scenario.shards)}", rng.choice(["arrive", "handled"])
        scenario.faults.append(Fault("past", who, where, _frequent(scenario, rng), rng.randrange(6, 16), 0.05))


def _contributions(scenario: Scenario, rng: random.Random) -> None:
    """Steps are made of the mean of several workers' gradients."""
    scenario.whole_pushes = True
    scenario.contributions = rng.choice([1, 2, 2, 2])


def _bounded_staleness(scenario: Scenario, rng: random.Random) -> None:
    """The fast wait for the slow, and for nobody who is gone: clients keep leases, and some sleep past them."""
    scenario.heartbeats = True
    scenario.contributions = 0
    scenario.limit += rng.choice([0, 8, 16])
    scenario.most_lead = rng.choice([0, 0, 1, 2])
    programs = ["chief", *(f"worker {at}" for at in range(scenario.workers))]
    scenario.slow = frozenset(rng.sample(programs, rng.choice([0, 1, 1])))
    for _ in range(rng.choice([0, 1, 2])):
        who, kind = f"worker {rng.randrange(scenario.workers)}", rng.choice(["kill", "stop", "stop"])
        method, count = rng.choice(["await_slower", _frequent(scenario, rng)]), 1 + int(10 * rng.random() ** 2)
        scenario.faults.append(Fault(kind, who, "send", method, count, rng.choice([0.1, 3.0, 30.0])))


def _work_units(scenario: Scenario, rng: random.Random) -> None:
    """Steps are made of units of work, each of which any worker may compute."""
    scenario.whole_pushes, scenario.units, scenario.contributions = True, True, 3
    scenario.most_lead, scenario.slow = None, frozenset()


def _threads(scenario: Scenario, rng: random.Random) -> None:
    """Threads of a PS task come between two events of what another one carries out; often nothing else is wrong."""
    scenario.threads = not any(fault.kind == "twin" for fault in scenario.faults)
    if rng.random() < 0.3:
        scenario.faults.clear()
        scenario.weather = replace(scenario.weather, lost=0.0, late=0.0, doubled=0.0, deadline_secs=60.0)


#: Drawn apart, since they came later: so that seeds mean what they did.
_LATER = (
    "log",
    "intruder",
    "machine after process",
    "two tasks on one log",
    "log damaged",
    "log unreadable",
    "clocks set back",
    "contributions",
    "bounded staleness",
    "units of work",
    "threads",
)

#: Name -> (how likely it is on, what it adds).
FEATURES: dict[str, tuple[float, Callable[[Scenario, random.Random], None]]] = {
    "loss": (0.5, _loss),
    "doubling": (0.4, _doubling),
    "lateness": (0.4, _lateness),
    "reordering": (0.5, _reordering),
    "serializing": (0.15, _serializing),
    "skew": (0.3, _skew),
    "heartbeats": (0.2, _heartbeats),
    "whole pushes": (0.4, _whole_pushes),
    "ps crashes": (0.4, _ps_crashes),
    "ps stops": (0.2, _ps_stops),
    "worker crashes": (0.3, _worker_crashes),
    "worker stops": (0.3, _worker_stops),
    "chief crashes": (0.25, _chief_crashes),
    "chief stops": (0.1, _chief_stops),
    "cuts": (0.2, _cuts),
    "log": (0.25, _log),
    "intruder": (0.2, _intruder),
    "machine after process": (0.05, _machine_after_process),
    "two tasks on one log": (0.05, _two_tasks),
    "log damaged": (0.05, _log_damaged),
    "log unreadable": (0.05, _log_unreadable),
    "clocks set back": (0.1, _clocks_back),
    "contributions": (0.25, _contributions),
    "bounded staleness": (0.2, _bounded_staleness),
    "units of work": (0.12, _work_units),
    "threads": (0.3, _threads),
}


def scenario_of(seed: int, without: Collection[str] = ()) -> Scenario:
    """Give the scenario of a seed.

    Args:
        seed: Any number.
        without: Features to leave out, to find which one a failure needs. What the others add stays the same.
    """
    rng = random.Random(seed)
    shards = rng.choice([1, 2, 2, 3, 3])
    chosen = {name for name, (chance, _) in FEATURES.items() if name not in _LATER and rng.random() < chance}
    chosen |= {name for name in _LATER if random.Random(f"{seed} {name} at all").random() < FEATURES[name][0]}
    scenario = Scenario(
        seed=seed,
        features=frozenset(chosen.difference(without)),
        shards=shards,
        sequencer=rng.randrange(shards),
        workers=rng.choice([1, 2, 2, 3]),
        limit=rng.randrange(4, 13),
        save_every=rng.choice([2, 4, 6]),
        skews_secs=[0.0] * shards,
    )
    for name, (_, add) in FEATURES.items():
        # Each feature has random numbers of its own, so that leaving one out does not change the others.
        if name in scenario.features:
            add(scenario, random.Random(f"{seed} {name}"))
    return scenario

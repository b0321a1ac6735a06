"""Faults of messages at random, all the time: the soak's half of planned_faults. For tests.

Written as `GLOBALSTEP_FAULTS="random seed=7 rate=0.002"`: whenever a process passes a point, one of the faults that
can be there happens with the probability `rate`. Which ones come is decided by the seed, the task and the process's
start (GLOBALSTEP_FAULTS_START, a number that the starter counts up), so that a process that is started again does not
repeat itself. Each adds a line to the trace right before it happens, as a planned one does.

Layer: shared.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from globalstep.errors import UnavailableError
from globalstep.runtime.faults import AFTER, APPLY, BEFORE, CUT, REPLY, SEND, ConnectionCutError, TransportFault

START_VARIABLE = "GLOBALSTEP_FAULTS_START"

_PLAN = re.compile(r"random seed=(\d+) rate=(\d*\.?\d+)")
#: What can happen at a point, the most instructive oftener: a request that is late or doubled may be applied twice.
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    SEND: ("late", "double", "double", "drop", "cut"),
    REPLY: ("drop", "drop", "cut"),
    BEFORE: ("cut",),
    AFTER: ("cut",),
}
_VERDICTS = {"double": TransportFault.TWICE, "late": TransportFault.LATE}


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """What a process makes fail.

    Attributes:
        seed: Of the whole run.
        rate: Probability of a fault at each passing of a point.
    """

    seed: int
    rate: float


def parse_random(plan: str) -> RandomPlan | None:
    """Read "random seed=S rate=P"; None if it is another plan.

    Raises:
        ValueError: If it begins so and goes on otherwise, or the rate is no probability.

    >>> parse_random("random seed=7 rate=0.002")
    RandomPlan(seed=7, rate=0.002)
    """
    if not plan.startswith("random"):
        return None
    match = _PLAN.fullmatch(plan.strip())
    if match is None or not 0.0 <= float(match[2]) <= 1.0:
        raise ValueError(f"GLOBALSTEP_FAULTS: {plan!r} is not 'random seed=S rate=P', with P from 0 to 1.")
    return RandomPlan(int(match[1]), float(match[2]))


class RandomFaults:
    """The faults of a process. Thread-safe.

    Args:
        plan: How often.
        task: Which process this is, "ps:1".
        trace: The file with a line for every fault that has happened.
        start: How many processes were this task before.
    """

    def __init__(self, plan: RandomPlan, task: str, trace: str, start: int = 0) -> None:
        self._task = task
        self._trace = trace
        self._rate = plan.rate
        self._rng = random.Random(f"{plan.seed}/{task}/{start}")
        # Guards the generator; a leaf.
        self._lock = threading.Lock()

    def at(self, point: str, method: str) -> TransportFault | None:
        """See Faults."""
        if method in (APPLY, CUT):
            # Within a critical section only a whole process can fail.
            return None
        with self._lock:
            if self._rng.random() >= self._rate:
                return None
            action = self._rng.choice(_ACTIONS[point])
        fault = f"{self._task} {action} at {method}.{point}"
        with open(self._trace, "a", encoding="utf-8") as trace:
            trace.write(f"{fault} pid={os.getpid()}\n")
        if action == "drop":
            raise UnavailableError(f"injected: {fault}")
        if action == "cut":
            if point in (SEND, REPLY):
                return TransportFault.CUT
            raise ConnectionCutError(f"injected: {fault}")
        return _VERDICTS[action]

"""Faults of a process that a test has planned, read from its environment. For tests; nothing happens without it.

GLOBALSTEP_FAULTS is a list of faults, "TASK ACTION at METHOD.POINT [nth=N]; ...", e.g.

    ps:1 kill at apply.before nth=40; worker:0 double at stage.send

They happen one after the other: a fault is waited for once all before it have happened, at the N-th time from then
on (default 1) that a process which is TASK, by its TF_CONFIG, passes the point. GLOBALSTEP_FAULTS_TRACE names a file
that each fault adds a line to right before it happens: "TASK ACTION at METHOD.POINT pid=P". The lines prove that it
did, keep the processes in step, and see to it that a process that is started again does not do it twice. Instead of a
list there may be a rate of faults by chance: see random_faults.

| action | what happens |
|---|---|
| kill | the process kills itself with SIGKILL |
| stop | it stops itself with SIGSTOP, until SIGCONT |
| hold | it waits there until the next fault of the plan has happened, at most 20 s: a meeting point |
| cut | the connection ends: at `before` and `send` the request is lost with it, at `after` and `reply` the reply |
| drop | at `send` the request is lost, at `reply` the reply |
| double | at `send`: the request leaves twice |
| late | at `send`: its deadline passes, and it leaves later, behind others |

Layer: shared.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faulty_transport import FaultyTransport
from random_faults import START_VARIABLE, RandomFaults, parse_random

from globalstep.cluster.cluster import from_tf_config
from globalstep.errors import UnavailableError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.faults import (
    APPLY,
    CUT,
    FAULTS_VARIABLE,
    NO_FAULTS,
    REPLY,
    SEND,
    ConnectionCutError,
    Faults,
    TransportFault,
)
from globalstep.wire.transports import Transport

TRACE_VARIABLE = "GLOBALSTEP_FAULTS_TRACE"

_FAULT = re.compile(r"(\w+:\d+) (\w+) at (\w+)\.(before|after|send|reply)(?: nth=(\d+))?")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_VERDICTS = {"double": TransportFault.TWICE, "late": TransportFault.LATE, "cut": TransportFault.CUT}
_HOLD_SECS = 20.0
_POLL_SECS = 0.01


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan; see the module."""

    task: str
    action: str
    method: str
    point: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.task} {self.action} at {self.method}.{self.point}"


def parse(plan: str) -> list[PlannedFault]:
    """Read a plan.

    Raises:
        ValueError: If it cannot be read, or an action cannot be at its point.

    >>> [str(fault) for fault in parse("ps:1 kill at apply.before nth=40; worker:0 double at stage.send")]
    ['ps:1 kill at apply.before', 'worker:0 double at stage.send']
    """
    faults = []
    for text in filter(None, (part.strip() for part in plan.split(";"))):
        match = _FAULT.fullmatch(text)
        if match is None:
            raise ValueError(f"{FAULTS_VARIABLE}: {text!r} is not 'TASK ACTION at METHOD.POINT [nth=N]'.")
        task, action, method, point, nth = match.groups()
        possible = {*_SIGNALS, "hold"}
        if method not in (APPLY, CUT):
            possible |= {SEND: {"drop", *_VERDICTS}, REPLY: {"drop", "cut"}}.get(point, {"cut"})
        if action not in possible:
            raise ValueError(f"{FAULTS_VARIABLE}: {text!r}: at {method}.{point} there may be {sorted(possible)}.")
        faults.append(PlannedFault(task, action, method, point, int(nth or 1)))
    return faults


class PlannedFaults:
    """The faults of a process. Thread-safe.

    Args:
        plan: Of all processes.
        task: Which this one is, "ps:1".
        trace: The file with a line for every fault that has happened.
        clock: Paces the waiting of "hold".
    """

    def __init__(self, plan: Sequence[PlannedFault], task: str, trace: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._plan = plan
        self._task = task
        self._trace = trace
        self._clock = clock
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._counting_for = -1
        self._passed = 0

    def at(self, point: str, method: str) -> TransportFault | None:
        """See Faults."""
        with self._lock:
            at = self._happened()
            if at >= len(self._plan):
                return None
            fault = self._plan[at]
            if (fault.task, fault.method, fault.point) != (self._task, method, point):
                return None
            if self._counting_for != at:
                self._counting_for, self._passed = at, 0
            self._passed += 1
            if self._passed < fault.nth:
                return None
            with open(self._trace, "a", encoding="utf-8") as trace:
                trace.write(f"{fault} pid={os.getpid()}\n")
        return self._carry_out(fault, at)

    def _happened(self) -> int:
        """Give how many faults have happened, in all processes."""
        try:
            with open(self._trace, "rb") as trace:
                return trace.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def _carry_out(self, fault: PlannedFault, at: int) -> TransportFault | None:
        if fault.action in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[fault.action])
        elif fault.action == "hold":
            until = self._clock.monotonic() + _HOLD_SECS
            while self._happened() < min(at + 2, len(self._plan)) and self._clock.monotonic() < until:
                self._clock.sleep(_POLL_SECS)
        elif fault.action == "drop":
            raise UnavailableError(f"injected: {fault}")
        elif fault.point in (SEND, REPLY):
            return _VERDICTS[fault.action]
        else:
            raise ConnectionCutError(f"injected: {fault}")
        return None


@cache
def _faults(plan: str, task: str, trace: str, start: int) -> Faults:
    by_chance = parse_random(plan)
    if by_chance is not None:
        return RandomFaults(by_chance, task, trace, start)
    return PlannedFaults(parse(plan), task, trace)


def faults_of_this_process(environ: Mapping[str, str] | None = None) -> Faults:
    """Give the faults that the environment has planned: NO_FAULTS, unless a test has set GLOBALSTEP_FAULTS.

    Raises:
        ValueError: If the plan cannot be read, or there is no file for the trace.
    """
    environ = os.environ if environ is None else environ
    plan = environ.get(FAULTS_VARIABLE)
    if not plan:
        return NO_FAULTS
    trace = environ.get(TRACE_VARIABLE)
    if not trace:
        raise ValueError(f"{FAULTS_VARIABLE} needs {TRACE_VARIABLE}, the file that the faults are written to.")
    config = from_tf_config(environ)
    return _faults(plan, f"{config.job}:{config.index}", trace, int(environ.get(START_VARIABLE, "0")))


def with_faults(transports: Sequence[Transport]) -> Sequence[Transport]:
    """Put each transport into a FaultyTransport that fails as the environment has planned."""
    faults = faults_of_this_process()
    return [FaultyTransport(transport, faults) for transport in transports]


def environ_with(plan: str, trace: str | os.PathLike[str]) -> dict[str, str]:
    """Give what a process needs in its environment for a plan: the plan, the trace, and where this module is."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {FAULTS_VARIABLE: plan, TRACE_VARIABLE: os.fspath(trace), "PYTHONPATH": os.pathsep.join(paths)}

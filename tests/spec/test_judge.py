"""Traces of simulated runs, judged by the specification alone."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
import simulated_task
from judge import Rejected, judge
from planted_bugs import PLANTED, planted
from recording import recording
from simulated_invariants import Watch
from simulation import run, simulating

SEEDS = int(os.environ.get("GLOBALSTEP_SIMULATION_SEEDS", "1000"))
FIRST = int(os.environ.get("GLOBALSTEP_SIMULATION_FROM", "0"))
PARTS = 40
#: Planted bugs that a trace may not show to be wrong, and why.
NOT_SEEN = {
    "torn record accepted": "a task that gives up its log has lost its state, which the protocol allows",
    "adopted without a sync": "as above",
    "unreadable counts as lost": "as above",
    "PUSH without STAGE stops the run": "refusing what is right for ever is refusing it for want of memory, each time",
    "the dead are waited for": "the specification does not say who is waited for",
    "a free push too many": "as above",
    "who comes back is where it was": "as above",
}
#: Bug -> a seed whose trace is rejected; tried first.
REJECTED_BY = {
    "a log without a lock": 141,
    "recovered without floors": 159,
    "numbered by clocks alone": 134,
    "damage taken for a torn end": 206,
    "a gap between entries is passed over": 96,
    "rows that repeat where those told did not": 148,
    "retry under a new id": 58,
    "values of before the step": 46,
}
MOST_SEEDS = 100
#: Kind of event -> another answer to it.
_CHANGED = {
    "Push": lambda reply: ((reply[0][0], reply[0][1] + 1, reply[0][2]), *reply[1:]),
    "Commit": lambda reply: (reply[0], reply[1] + 1, reply[2]),
    "Pull": lambda reply: (reply[0], reply[1] + 1, reply[2]),
    "GetSteps": lambda reply: {name: step + 1 for name, step in reply.items()},
}


@contextlib.contextmanager
def _nobody_else_looks():
    """Have the simulation go on where it would stop, so that the trace has what follows."""
    with contextlib.ExitStack() as stack:
        for name in ("_check_book", "_check_values", "_served", "pushed", "read", "looked", "_check_lead"):
            stack.enter_context(mock.patch.object(Watch, name, return_value=None))
        stack.enter_context(mock.patch.object(simulated_task, "problems", return_value=[]))
        yield


def _rejected(seed):
    with recording() as trace:
        run(seed)
    try:
        judge(trace)
    except Rejected as verdict:
        return str(verdict)
    return ""


@pytest.mark.seeds
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_specification_accepts_every_run(part):
    with simulating():
        found = {seed: _rejected(seed) for seed in range(FIRST + part, SEEDS, PARTS)}
    assert not {seed: verdict for seed, verdict in found.items() if verdict}


def test_a_trace_is_rejected_in_which_one_answer_is_another_one():
    with simulating(), recording() as trace:
        run(1)
    judge(trace)
    changed = Counter()
    for at, seen in enumerate(trace):
        if seen.kind in _CHANGED and not seen.error and changed[seen.kind] < 5:
            other = replace(seen, reply=_CHANGED[seen.kind](seen.reply))
            with pytest.raises(Rejected, match=f"step {at},"):
                judge([*trace[:at], other, *trace[at + 1 :]])
            changed[seen.kind] += 1
    assert changed.keys() == _CHANGED.keys()


@pytest.mark.parametrize(
    "bug", ["limit off by one", "read before it is applied", "snapshot of its time, not of its place"]
)
def test_a_trace_that_shows_a_bug_is_rejected(bug):
    with simulating(), planted(bug), _nobody_else_looks():
        assert any(_rejected(seed) for seed in range(10))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", [name for name in PLANTED if name not in NOT_SEEN])
def test_the_traces_of_a_planted_bug_are_rejected(bug):
    with simulating(), planted(bug), _nobody_else_looks():
        for seed in [*([REJECTED_BY[bug]] if bug in REJECTED_BY else []), *range(MOST_SEEDS)]:
            verdict = _rejected(seed)
            if verdict:
                print(f"{bug}: seed {seed}: {verdict}")
                return
    pytest.fail(f"the traces of {MOST_SEEDS} seeds are accepted, with: {bug}")


def test_what_traces_do_not_show_is_planted():
    assert NOT_SEEN.keys() <= PLANTED.keys()

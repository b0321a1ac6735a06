"""The simulation finds what is wrong: each planted bug within a bounded number of seeds."""

from __future__ import annotations

import itertools

import pytest
from planted_bugs import PLANTED, planted
from simulation import run, simulating

#: More than any of them has needed.
MOST_SEEDS = 600
#: Bug -> a seed that has found it, where that took many; tried first. With other code another seed may be needed: then
#: all are tried, and the test prints which one it was.
FOUND_BY = {
    "torn record accepted": 224,
    "adopted without a sync": 226,
    "forgotten once it is applied": 92,
    "recovered as if none were behind": 99,
    "on the disk once it is applied": 92,
    "a log without a lock": 141,
    "unreadable counts as lost": 69,
    "damage taken for a torn end": 206,
    "numbered by clocks alone": 66,
    "a vote is looked for twice": 85,
}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name, record_property):
    with simulating(), planted(name):
        for seed in itertools.chain([FOUND_BY.get(name, 0)], range(MOST_SEEDS)):
            violation = run(seed).violation
            if violation is not None:
                record_property("seed", seed)
                print(f"{name}: seed {seed}: {violation}")
                return
    pytest.fail(f"{MOST_SEEDS} seeds did not find: {name}")


@pytest.mark.long
def test_the_same_seeds_find_nothing_in_the_code_as_it_is():
    """What was planted is gone again; test_simulation.py has many more seeds."""
    with simulating():
        assert [seed for seed in (*range(20), *FOUND_BY.values()) if run(seed).violation is not None] == []

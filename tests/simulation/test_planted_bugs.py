"""The simulation finds what is wrong: each planted bug within a bounded number of seeds."""

from __future__ import annotations

import pytest
from planted_bugs import PLANTED, planted
from simulation import run, simulating

#: More than any of them has needed.
MOST_SEEDS = 600


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name, record_property):
    with simulating(), planted(name):
        for seed in range(MOST_SEEDS):
            violation = run(seed).violation
            if violation is not None:
                record_property("seeds", seed + 1)
                print(f"{name}: {seed + 1} seeds: {violation}")
                return
    pytest.fail(f"{MOST_SEEDS} seeds did not find: {name}")


@pytest.mark.long
def test_the_same_seeds_find_nothing_in_the_code_as_it_is():
    with simulating():
        assert [seed for seed in range(100) if run(seed).violation is not None] == []

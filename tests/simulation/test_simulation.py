"""The invariants under thousands of simulated runs; see docs/design/simulation.md (rung 2, without a socket)."""

from __future__ import annotations

import os

import pytest
from simulated_scenarios import FEATURES
from simulation import run, simulating

#: How many seeds in all; `make nightly` asks for two hundred times as many.
SEEDS = int(os.environ.get("GLOBALSTEP_SIMULATION_SEEDS", "1000"))
#: The first of them; `make test` has had those before when `make test-all` goes on.
FIRST = int(os.environ.get("GLOBALSTEP_SIMULATION_FROM", "0"))
#: Parts, so that the processes of pytest share them.
PARTS = 40


@pytest.mark.seeds
@pytest.mark.timeout(7200 if SEEDS > 10_000 else 600)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_invariants_hold(part):
    failed = []
    with simulating():
        for seed in range(FIRST + part, SEEDS, PARTS):
            report = run(seed)
            if report.violation is not None:
                failed.append(f"{report.violation}\n    replay: python tests/simulation {seed}")
    assert not failed, "\n".join(failed[:5])


def test_a_seed_is_the_same_every_time():
    with simulating():
        reports = [[run(seed) for seed in range(8)] for _ in range(2)]
    for one, other in zip(*reports, strict=True):
        assert (one.events, one.secs, one.messages, one.faults) == (
            other.events,
            other.secs,
            other.messages,
            other.faults,
        )


@pytest.mark.long
def test_every_kind_of_trouble_happens():
    messages = {"messages", "lost", "doubled", "late", "broken"}
    faults = {f"{kind} {who}" for kind in ("kill", "stop") for who in ("ps", "worker", "chief")}
    seen, troubles, struck, cut, lives = set(), set(), set(), set(), 0
    with simulating():
        for seed in range(300):
            report = run(seed)
            seen |= set(report.scenario.features)
            troubles |= {name for name, count in report.messages.items() if count}
            struck |= set(report.faults)
            lives = max(lives, report.lives)
            cut = {"cut worker", "cut chief"} & struck
            if seen >= set(FEATURES) and troubles >= messages and struck >= faults and cut and lives > 2:
                break
    assert seen == set(FEATURES)
    assert troubles == messages
    assert struck >= faults
    assert cut
    assert lives > 2


def test_a_feature_that_is_left_out_changes_nothing_of_the_others():
    with simulating():
        whole = run(8).scenario
        reduced = run(8, without=["loss"]).scenario
    assert "loss" in whole.features
    assert reduced.features == whole.features - {"loss"}
    assert (reduced.faults, reduced.shards, reduced.limit) == (whole.faults, whole.shards, whole.limit)

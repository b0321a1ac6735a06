"""An honest job while every known attack is made on its PS tasks: exact, PROVEN, within its memory. `make nightly` has
two minutes of it, and judges the rate: under_attack.py."""

from __future__ import annotations

import sys

import pytest
import under_attack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is read from /proc; unix sockets by names"),
]


def test_a_job_ends_exactly_while_every_known_attack_is_made(tmp_path):
    clients = {"chief": "auto", "worker0": "tcp"}
    found = under_attack.run(tmp_path, 2000, 0.0, clients=clients, save_steps=500, pause_secs=5.0, idle=20)
    assert found.faults == []
    assert len(found.rounds) == under_attack.ATTACK_COUNT
    assert min(found.rounds.values()) > 0

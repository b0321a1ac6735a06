"""Whose turn it is not keeps off the processor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.harness.contestants import Program, Team
from benchmarks.harness.processes import children
from globalstep.runtime.clock import SYSTEM_CLOCK

_ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def state(child):
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("spins", [True, False])
def test_who_spins_is_stopped_except_when_asked(spins):
    with children() as started:
        worker, server = (started.start(["-c", _ECHO], os.environ) for _ in range(2))
        team = Team(Program("spinner", spins=spins), [server], [worker], [])
        assert team.ask(1, {"n": 1}) == [{"n": 1}]
        team.rest()
        for number in range(3):
            for child in (worker, server):
                until = SYSTEM_CLOCK.monotonic() + 20.0
                while (state(child) == "T") != spins:  # a signal takes a moment
                    assert SYSTEM_CLOCK.monotonic() < until
            assert team.ask(1, {"n": number}) == [{"n": number}]
        team.end()
        assert worker.gone
        assert server.gone

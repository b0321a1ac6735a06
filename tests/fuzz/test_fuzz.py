"""Thousands of inputs that nobody would write; `make fuzz` gives a million. docs/design/testing.md."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fuzz_choices import ByteChoices, mutated
from fuzz_task import TaskTargets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from globalstep.ps.store import checking

_HERE = Path(__file__).parent
#: In all, over the parts.
INPUTS = int(os.environ.get("GLOBALSTEP_FUZZ_INPUTS", "12000"))
PARTS = 4
_FIRST = 20777


def fuzz(tmp_path, *args):
    """Run a campaign in a process of its own, whose memory is limited; gives its report."""
    out = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, _HERE, "--out", out, *map(str, args)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(out.read_text())


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_no_input_crashes_hangs_or_changes_what_it_may_not(tmp_path, part):
    # The same inputs each time; `make fuzz` takes others.
    inputs = INPUTS // PARTS
    report = fuzz(tmp_path, "--inputs", inputs, "--from", (_FIRST * PARTS + part) * 1_000_000)
    assert report["findings"] == []
    assert report["inputs"] == inputs
    assert min(report["by_target"].values()) > inputs / 1000


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="the extra 'fuzz' is not installed")
def test_inputs_that_are_guided_by_the_code_they_reach_find_nothing_either(tmp_path):
    report = fuzz(tmp_path, "--engine", "atheris", "--inputs", 1500)
    assert report["findings"] == []
    assert report["inputs"] == 1500


@pytest.fixture
def targets(monkeypatch):
    monkeypatch.setattr(checking, "available_bytes", checking.available_bytes)  # the targets give it another value
    logging.disable(logging.CRITICAL)
    made = TaskTargets(Counter(), lifetime=10)
    yield made
    made.close()
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["data_plane", "control"])
def test_sequences_of_requests_that_hypothesis_draws(targets, kind):
    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.randoms(use_true_random=False), st.integers(1, 9))
    def requests(rng, count):
        targets.renew()
        for _ in range(count):
            getattr(targets, kind)(rng)

    requests()


def test_bytes_decide_everything_and_their_end_is_no_loop():
    first, again = ByteChoices(b"\x07\x93abcdefgh"), ByteChoices(b"\x07\x93abcdefgh")
    assert [first.randrange(100) for _ in range(20)] == [again.randrange(100) for _ in range(20)]
    assert ByteChoices(b"").choice("abc") == "a"
    assert mutated(ByteChoices(b""), b"as it was") == b"as it was"

"""The benchmark of the plain front."""

import re

import pytest

from benchmarks.modes.front import main

pytestmark = pytest.mark.processes


def test_a_short_run_says_what_a_step_takes(capsys):
    assert main(["--sizes", "1000", "--rounds", "1", "--secs", "0.05"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| 1,000 \| \d+ \| \d+ \| \d+\.\d\d \| \d+\.\d\d \|", line)

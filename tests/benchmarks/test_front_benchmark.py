"""The benchmark of the plain front."""

import re
import sys

import pytest

from benchmarks.modes.front import BUDGET, main

pytestmark = pytest.mark.processes


def test_a_short_run_says_what_a_step_takes(capsys):
    assert main(["--sizes", "1000", "--rounds", "1", "--secs", "0.05"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| 1,000 \| \d+ \| \d+ \| \d+\.\d\d \| \d+\.\d\d \|", line)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the budget is bytecodes of CPython 3.11")
def test_a_step_of_the_front_is_within_its_budget(capsys):
    assert main(["--sizes", "1000", "--count"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    client, front = (int(cell) for cell in line.strip("| ").split(" | ")[1:])
    # It counts at all.
    assert client > 1500
    assert client < front <= client + BUDGET

"""Runs of the protocol, message by message, are as tests/transcripts/*.txt have them.

A change of the protocol changes them: write them anew, and read what has changed, as

    GLOBALSTEP_WRITE_TRANSCRIPTS=1 pytest tests/transcripts; git diff tests/transcripts

docs/design/push-protocol.md shows some of them.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulation"))

from simulation import simulating
from transcript_runs import RUNS

FOLDER = Path(__file__).resolve().parent


@pytest.fixture(scope="module", autouse=True)
def _simulated():
    with simulating():
        yield


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_as_its_transcript(name):
    text = "\n".join(RUNS[name]()) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("GLOBALSTEP_WRITE_TRANSCRIPTS"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_transcript_is_of_a_run():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(RUNS)

"""The benchmark of a step's computing runs, and its table says what was measured (rung 4: real processes)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compute import table

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = {
    "date": "2026-11-23", "cpu": "a processor", "cores": 2, "threads": 2, "load_before": 0.1, "load_after": 0.2,
    "python": "3.11.7", "numpy": "2.4.6", "rounds": 2, "secs": 0.3,
}  # fmt: skip


def turn(library, number, secs, cpu_secs):
    return {
        "model": "mlp", "form": "step", "library": library, "round": number, "steps": 10, "secs": secs,
        "cpu_secs": cpu_secs,
    }  # fmt: skip


def test_a_ratio_is_taken_within_a_round():
    mine = [turn("globalstep", 0, 1.0, 1.0), turn("globalstep", 1, 4.0, 2.0), turn("globalstep", 2, 1.0, 1.0)]
    theirs = [turn("tensorflow", 0, 2.0, 0.5), turn("tensorflow", 1, 4.0, 1.0), turn("tensorflow", 2, 1.0, 0.5)]
    text = table([*mine, *theirs], DESCRIPTION)
    assert "| step | 100.00 | 200.00 | 1.00 (1.00 to 2.00) | 0.50 | 0.85 | yes |" in text
    assert "other work" not in text
    assert "| step | 100.00 | absent |" in table(mine, DESCRIPTION)


@pytest.mark.full_matrix
@pytest.mark.processes
def test_every_model_runs_without_tensorflow(tmp_path):
    subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.compute", "--rounds", "2", "--secs", "0.01", "--threads", "1"),
            *("--peers-python", sys.executable, "--out", tmp_path),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=200,
    )
    first, *records = [json.loads(line) for line in (tmp_path / "compute.jsonl").read_text().splitlines()]
    assert (first["machine"]["rounds"], first["machine"]["threads"]) == (2, 1)
    cases = [(model, form) for model in ("cnn", "mlp", "lstm", "deepfm") for form in ("compute", "step")]
    assert [(record["model"], record["form"], record["round"]) for record in records] == [
        (*case, number) for case in cases for number in (0, 1)
    ]
    for record in records:
        assert record["steps"] >= 2
        assert record["secs"] > 0
    assert "| LSTM language model" in (tmp_path / "compute.md").read_text()

"""The benchmark of saving runs, and says what it is asked for (rung 4: real processes)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.processes


@pytest.mark.full_matrix
def test_a_short_run_writes_records_a_table_and_a_plot(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.saving", "--rounds", "2", "--megabytes", "4", "--ps", "1", "2"),
            *("--dir", checkpoints, "--out", tmp_path),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    machine, *records = [json.loads(line) for line in (tmp_path / "saving.jsonl").read_text().splitlines()]
    assert (machine["rounds"], machine["megabytes"]) == (2, 4)
    assert [(record["ps"], record["round"]) for record in records] == [(p, r) for p in (1, 2) for r in (-1, 0, 1)]
    for record in records:
        busy = record["busy"]
        assert busy["pushes_during"] >= 1
        assert 0 < busy["longest_push_secs"] <= max(secs for _, secs in busy["pushes"])
        assert 0 < busy["cut_secs"] <= busy["save_secs"]
    table = (tmp_path / "saving.md").read_text()
    assert "|  | 1 PS | 2 PS |" in table
    assert "longest push during a save" in table
    assert (tmp_path / "saving.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(checkpoints) == []

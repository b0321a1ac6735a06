"""Each row of a click model's data is trained as often as docs/training.md says, however its batches are divided."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Processes

pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "programs" / "rows_of_clicks.py"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        # Batches of its own: the chief has all of its 24, or most of them, before the other comes.
        ("sampler", "--late=20"),
        ("stream", "--late=24"),
        ("function", "--die"),
        # Shared ones: the chief has had all that is not the other's.
        ("list", "--late=47"),
        ("loader", "--die"),
        # A loop over epochs of the program's own.
        ("list", "--passes"),
        ("sampler", "--passes"),
    ],
)
def test_each_row_is_trained_twice_in_two_epochs(tmp_path, kind, option):
    """Where a worker comes late, and where it is killed within a step and started again."""
    with Processes(tmp_path) as processes:
        tasks = ["--ps", 1, "--workers", 2, "--max-restarts", 1]
        processes.start("launch", "-m", "globalstep", "launch", *tasks, PROGRAM, kind, option)
        assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
        printed = processes.output("launch")
    assert "TRAINED 48 {2: 192}" in printed, printed

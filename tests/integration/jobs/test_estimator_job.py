"""A job of an Estimator: chief, workers, PS tasks and an evaluator end by themselves, and a second run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from processes import Processes, tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "programs" / "estimator_job.py"
TASKS = ["--ps", 2, "--workers", 2, "--chief", "--evaluator", "--max-restarts", 2]


def newest(model_dir: Path) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    return int((latest_checkpoint(str(model_dir)) or "model.ckpt-0").rpartition("-")[2])


@pytest.mark.timeout(240)
def test_it_ends_by_itself_and_goes_on(tmp_path):
    model_dir = tmp_path / "model"
    for run, last_step in (("first", 200), ("second", 400)):
        (tmp_path / run).mkdir()
        with Processes(tmp_path / run) as processes:
            processes.start("launch", "-m", "globalstep", "launch", *TASKS, PROGRAM, model_dir, last_step)
            assert processes.wait(110.0) == {"launch": 0}, processes.output("launch")
            printed = processes.output("launch")
        assert {f"ENDED {job}" for job in ("chief", "worker", "evaluator")} <= set(
            printed.replace("] ", "\n").splitlines()
        )
        assert latest_checkpoint(str(model_dir)) == str(model_dir / f"model.ckpt-{last_step}")
    assert len(os.listdir(model_dir / "export" / "final")) == 2


@pytest.mark.timeout(240)
def test_a_worker_and_a_ps_task_that_are_killed_are_made_up_for(tmp_path):
    model_dir = tmp_path / "model"
    with Processes(tmp_path) as processes:
        mark = {"TEST_MARK": str(tmp_path)}
        processes.start("launch", "-m", "globalstep", "launch", *TASKS, PROGRAM, model_dir, 4000, env=mark)
        for task, step in (("worker:0", 50), ("ps:1", 100)):
            processes.until_true("launch", lambda step=step: newest(model_dir) >= step, 90.0, what=f"step {step}")
            os.kill(tasks_marked("TEST_MARK", str(tmp_path))[task], signal.SIGKILL)
        assert processes.wait(150.0) == {"launch": 0}, processes.output("launch")
    assert latest_checkpoint(str(model_dir)) == str(model_dir / "model.ckpt-4000")
    assert len(os.listdir(model_dir / "export" / "final")) == 1

"""A job of an Estimator: chief, workers, PS tasks and an evaluator end by themselves, and a second run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from census import assert_done
from processes import EXAMPLES, Processes, tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint

pytestmark = pytest.mark.processes

TASKS = ["--ps", 2, "--workers", 2, "--chief", "--evaluator", "--max-restarts", 2]


def newest(run_dir: Path) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    return int((latest_checkpoint(str(run_dir)) or "model.ckpt-0").rpartition("-")[2])


@pytest.mark.timeout(300)
def test_it_ends_by_itself_with_tasks_killed_and_goes_on(tmp_path, capsys):
    run_dir = tmp_path / "model"
    for run, last_step, killed in (("first", 3000, ("worker:0", "ps:0", "chief:0")), ("second", 3200, ())):
        (tmp_path / run).mkdir()
        with Processes(tmp_path / run) as processes:
            mark = {"TEST_MARK": str(tmp_path)}
            job = [EXAMPLES / "census.py", "--run-dir", run_dir, "--steps", last_step]
            processes.start("launch", "-m", "globalstep", "launch", *TASKS, *job, env=mark)
            for task in killed:
                step = newest(run_dir)
                processes.until_true("launch", lambda step=step: newest(run_dir) > step, 90.0, what=f"step {step}")
                os.kill(tasks_marked("TEST_MARK", str(tmp_path))[task], signal.SIGKILL)
            assert processes.wait(150.0) == {"launch": 0}, processes.output("launch")
            printed = processes.output("launch")
        for job in ("chief", "worker", "evaluator"):
            assert f"ended: {job}\n" in printed
        assert printed.count("was ended by SIGKILL") == len(killed)
        assert_done(run_dir, last_step, capsys)
    assert len(os.listdir(run_dir / "export" / "final")) == 2


@pytest.mark.parametrize(("how", "last_step"), [("data", 450), ("steps", 150), ("max_steps", 150)])
def test_it_trains_again_after_an_evaluation(tmp_path, how, last_step):
    program = Path(__file__).parent / "programs" / "training_loop.py"
    with Processes(tmp_path) as processes:
        job = ["--ps", 1, "--workers", 2, "--chief", program, tmp_path / "model", how]
        processes.start("launch", "-m", "globalstep", "launch", *job)
        assert processes.wait(60.0) == {"launch": 0}, processes.output("launch")
    printed = processes.output("launch")
    assert f"[chief:0] ended at {last_step}\n" in printed
    assert printed.count("] ended at") == 3
    assert "exit codes: ps:0 0, chief:0 0, worker:0 0, worker:1 0\n" in printed

"""A launched job whose PS is killed is audited: nothing lost, nothing doubled, and said so (rung 4)."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path

import pytest
from processes import Processes, tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.deploy.audit.audit import audit
from globalstep.deploy.cli import main

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 800


def test_a_job_whose_sequencer_was_killed_is_proven(tmp_path, capsys):
    mark = uuid.uuid4().hex
    run = tmp_path / "run"
    with Processes(tmp_path) as processes:
        processes.start(
            "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 2, "--max-restarts", 2,
            JOB, "--last-step", LAST_STEP, "--dir", run, "--say-steps", 5, "--save-steps", 20,
            "--slow-until", tmp_path / "fast", 0, env={"TEST_MARK": mark},
        )  # fmt: skip

        def has_saved():
            newest = latest_checkpoint(str(run))
            return newest is not None and int(newest.rpartition("-")[2]) >= 20

        processes.until_true("launch", has_saved, what="a checkpoint")
        os.kill(tasks_marked("TEST_MARK", mark)["ps:0"], signal.SIGKILL)
        (tmp_path / "fast").touch()
        codes = processes.wait()
        assert set(codes.values()) == {0}, processes.output("launch")
    found = audit(str(run))
    assert found.proven, found.findings
    assert (found.steps["global_step"].base, found.steps["global_step"].pushes) == (0, LAST_STEP)
    assert found.steps["global_step"].value == found.checkpoint_steps["global_step"] == LAST_STEP
    assert len(found.incarnations) == 2
    assert found.incarnations[1].parent == found.incarnations[0].number
    assert sum(worker.pushes for worker in found.workers.values()) == LAST_STEP
    # A worker that comes up late may find nothing left to do.
    assert "/job:chief/task:0" in found.workers
    assert set(found.workers) <= {"/job:chief/task:0", "/job:worker/task:0", "/job:worker/task:1"}
    assert main(["audit", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proven"]

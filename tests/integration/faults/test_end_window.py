"""Tasks that are killed between the last step and the checkpoint of it: the job ends at its step, and on disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from counted import assert_counted
from processes import Processes, tasks_marked

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
EPOCHS = Path(__file__).parents[1] / "jobs" / "programs" / "held_epochs.py"
FIT = Path(__file__).parents[1] / "jobs" / "programs" / "held_fit.py"
LAST_STEP = 100


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", [["ps:0"], ["ps:1"], ["ps:0", "ps:1"], ["chief:0"], ["worker:0"]], ids="+".join)
def test_the_last_step_is_on_disk_whoever_is_killed_before_it_is(tmp_path, killed):
    """All pushes were acknowledged, the chief is about to save, and the workers wait for that."""
    go_on = tmp_path / "go-on"  # no save comes shortly before: the others might come to the last step meanwhile
    job = [JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--save-steps", 1000, "--hold-last", go_on]
    printed = launched(tmp_path, ["--chief", "--workers", 1, *job, "--verbose"], go_on, killed)
    assert_proven(tmp_path / "run", printed)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", [["ps:0"], ["ps:1"], ["ps:0", "ps:1"], ["worker:0"], ["worker:1"]], ids="+".join)
def test_gs_fit_has_its_last_step_on_disk_whoever_is_killed_before_it_is(tmp_path, killed):
    go_on = tmp_path / "go-on"
    printed = launched(tmp_path, ["--workers", 2, FIT, go_on, LAST_STEP], go_on, killed)
    assert f"RESULT {LAST_STEP}" in printed
    (again,) = re.findall("restarts: (.*)", printed)
    assert again == ", ".join(f"{task} 1" for task in killed), printed
    assert_proven(tmp_path / "run", printed)


@pytest.mark.timeout(240)
def test_a_worker_that_has_had_its_last_batches_trains_those_again_that_a_ps_loses(tmp_path):
    """It had left its loop by then, and the run ended short of its last step by the steps that it had made."""
    go_on, mark = tmp_path / "go-on", uuid.uuid4().hex
    with Processes(tmp_path) as processes:
        command = ["-m", "globalstep", "launch", "--ps", 2, "--max-restarts", 3, "--workers", 2, EPOCHS, go_on]
        processes.start("launch", *command, env={"TEST_MARK": mark})
        processes.until("launch", "had its last batches; waiting for")
        os.kill(tasks_marked("TEST_MARK", mark)["ps:0"], signal.SIGKILL)
        processes.until("launch", r"ps:0.*(restart|again)")
        go_on.touch()
        assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
        results = re.findall(r"RESULT (.*) (.*) (.*) (.*)", processes.output("launch"))
    for step, trained, least, most in results:
        # The step that was under way takes the place of another batch of its worker's: docs/training.md.
        assert (step, float(trained)) == ("48", 48.0), results
        assert 1.0 <= float(least) <= float(most) <= 3.0, results
    assert len(results) == 2


def launched(folder, words, go_on, killed):
    """Launch a job, kill tasks while its last save is held, and let it come to its end; gives what it prints."""
    mark = uuid.uuid4().hex
    with Processes(folder) as processes:
        command = ["-m", "globalstep", "launch", "--ps", 2, "--max-restarts", 3, *words]
        processes.start("launch", *command, env={"TEST_MARK": mark})
        processes.until_true("launch", Path(f"{go_on}.reached").exists, 90.0, what="the last save")
        tasks = tasks_marked("TEST_MARK", mark)
        for task in killed:
            os.kill(tasks[task], signal.SIGKILL)
        processes.until("launch", rf"{killed[0]}.*(restart|again)")
        go_on.touch()
        assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
        return processes.output("launch")


def assert_proven(run, printed):
    """Fail unless the newest checkpoint of a job that counts is of its last step, and the audit has proven that."""
    assert_counted(run, LAST_STEP, printed)
    audit = subprocess.run([sys.executable, "-m", "globalstep", "audit", str(run)], capture_output=True, text=True)
    assert (audit.returncode, "PROVEN" in audit.stdout) == (0, True), audit.stdout + audit.stderr

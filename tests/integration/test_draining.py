"""SIGTERM on each task of a job of real processes: its work is handed over, and the job ends exactly."""

from __future__ import annotations

import os
import re
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest
from processes import Processes, tasks_marked

from globalstep.chief.checkpoint_state import latest_checkpoint
from globalstep.chief.checkpoint_variables import list_variables, load_checkpoint

pytestmark = pytest.mark.processes

JOB = Path(__file__).with_name("counting_job.py")
LAST_STEP = 800
ENDED = r"{} was ended by SIGTERM \(exit code 143\); restart 1 of 2"


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as running:
        yield running


@pytest.fixture
def launch(processes, tmp_path):
    """Launches the job, which saves no checkpoints by itself; gives the pids of its tasks once it is at a step."""

    def start(*options, last_step=LAST_STEP, **environ):
        mark = uuid.uuid4().hex
        processes.start(
            "launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 3, "--max-restarts", 2, *options,
            JOB, "--last-step", last_step, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 10**9,
            "--pause-secs", 0.005, "--verbose", env={"TEST_MARK": mark, **environ},
        )  # fmt: skip
        processes.until("launch", r"step \d\d\d$")
        return tasks_marked("TEST_MARK", mark)

    return start


def ends_exactly(processes, tmp_path):
    codes = processes.wait()
    printed = processes.output("launch")
    assert set(codes.values()) == {0}, printed
    prefix = latest_checkpoint(str(tmp_path / "run"))
    assert prefix == str(tmp_path / "run" / f"model.ckpt-{LAST_STEP}"), printed
    reader = load_checkpoint(prefix)
    for name, _ in list_variables(prefix):
        assert np.all(reader.get_tensor(name) == LAST_STEP), name
    return printed


def test_a_worker_leaves_and_its_place_is_taken(launch, processes, tmp_path):
    os.kill(launch()["worker:0"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path)
    assert "[worker:0] WARNING:globalstep:SIGTERM: this task hands over its work and exits with 143" in printed
    assert re.search(ENDED.format("worker:0"), printed)
    assert "is gone" not in printed


def test_the_chief_saves_and_its_successor_goes_on_from_the_running_model(launch, processes, tmp_path):
    os.kill(launch()["chief:0"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path)
    before, after = re.split(ENDED.format("chief:0"), printed)
    saved = [int(step) for step in re.findall(r"\[chief:0\].*Saving checkpoints for (\d+) into", before)]
    assert len(saved) == 2
    assert saved[0] == 0
    assert saved[1] >= 100
    assert "[chief:0] INFO:globalstep:Taking over a running model" in after
    assert "go back" not in printed


@pytest.mark.parametrize("task", ["ps:0", "ps:1"])
def test_a_ps_waits_for_a_checkpoint_and_the_job_goes_on_from_it(launch, processes, tmp_path, task):
    os.kill(launch()[task], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path)
    before, after = re.split(ENDED.format(task), printed)
    asked = re.search(rf"Saving a checkpoint now: .*{task[-1]} .* about to end", before)
    assert asked, printed
    drained = int(re.search(r"Saving checkpoints for (\d+) into", before[asked.end() :])[1])
    back = re.search(r"go back together, from (?:step (\d+)|an unknown step) to step (\d+), to checkpoint", after)
    # Pushes go on until the cut is taken.
    assert drained <= int(back[2]) <= drained + 20
    if back[1] is not None:
        assert int(back[1]) - int(back[2]) < 300


def test_a_ps_with_a_log_loses_nothing(launch, processes, tmp_path):
    pids = launch(GLOBALSTEP_RUN_POLICY="durability=log")
    os.kill(pids["ps:1"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path)
    assert re.search(ENDED.format("ps:1"), printed)
    assert "go back" not in printed
    assert "about to end" not in printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_whole_job_that_is_asked_to_end_leaves_a_checkpoint(launch, processes, tmp_path, number):
    launch(last_step=10**6)
    os.kill(processes.pid("launch"), number)
    codes = processes.wait()
    printed = processes.output("launch")
    assert codes == {"launch": 128 + number}, printed
    assert "killing" not in printed
    step = int(latest_checkpoint(str(tmp_path / "run")).rpartition("-")[2])
    assert step >= 100
    for name, _ in list_variables(str(tmp_path / "run" / f"model.ckpt-{step}")):
        assert np.all(load_checkpoint(str(tmp_path / "run" / f"model.ckpt-{step}")).get_tensor(name) == step), name

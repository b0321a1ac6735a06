"""What `globalstep launch` says at its end."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from globalstep.deploy.launch.launcher import Conclusion, Task, read_conclusion, summary


def ended(name, code, restarts=0):
    task = Task(name, [], {}, restarts=restarts)
    task.process = types.SimpleNamespace(returncode=code)
    return task


def test_it_tells_codes_restarts_steps_checkpoint_and_logs():
    tasks = [ended("ps:0", 0), ended("worker:0", 0), ended("worker:1", -9, restarts=2)]
    line, below = summary(tasks, 137, 65.0, Conclusion(3000, 1000, 4.0, "runs/x/model.ckpt-3000"), Path("logs"))
    assert line == "globalstep launch: ended with code 137 after 1 min 5 s"
    assert below == [
        "exit codes: ps:0 0, worker:0 0, worker:1 137",
        "restarts: worker:1 2",
        "global_step 3,000: 1,000 steps in 4.0 s, 250.0 steps/s",
        "checkpoint: runs/x/model.ckpt-3000",
        "logs: logs/ (ps-0.log, worker-0.log, worker-1.log)",
    ]


def test_what_is_not_known_is_left_out():
    line, below = summary([Task("ps:0", [], {})], 1, 0.2, None, None)
    assert line == "globalstep launch: ended with code 1 after 0 s"
    assert below == ["exit codes: ps:0 not started"]


def test_the_task_that_the_job_ended_for_is_named():
    tasks = [ended("chief:0", 1), ended("worker:0", -9)]
    line, _ = summary(tasks, 137, 5.0, None, None, "worker:0 was ended by SIGKILL (exit code 137)")
    assert line == "globalstep launch: ended with code 137 after 5 s: worker:0 was ended by SIGKILL (exit code 137)"


def test_a_run_that_made_no_step_has_no_rate():
    _, below = summary([ended("ps:0", 0)], 0, 1.0, Conclusion(5, 0, 0.0, ""), None)
    assert below[1:] == ["global_step 5: 0 steps in 0.0 s", "checkpoint: none"]


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"step": null, "steps": 1, "secs": 1, "checkpoint": ""}',
                                  '{"step": 1e999, "steps": 1, "secs": 1, "checkpoint": ""}'])  # fmt: skip
def test_what_a_program_prints_need_be_no_conclusion(text):
    assert read_conclusion(text) is None

"""What goes wrong around `globalstep launch` itself: scripts that fail, Ctrl-C, two launches, a port that is taken."""

from __future__ import annotations

import re
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest
from processes import tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import load_checkpoint

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"


def launch(processes, name, *arguments, **options):
    return processes.start(name, "-m", "globalstep", "launch", "--grace-secs", 5, *arguments, **options)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [("raise RuntimeError('a bug of the user')", 1, "RuntimeError: a bug of the user"), ("sys.exit(3)", 3, "ready")],
    ids=["raises", "exits with 3"],
)
def test_a_worker_that_fails_in_the_middle_is_named_with_its_last_lines(processes, tmp_path, line, code, said):
    script = tmp_path / "fails.py"
    text = JOB.read_text().replace("            runs += 1\n", f"            runs += 1\n            if fails: {line}\n")
    told = "    fails = json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'worker'\n"
    marked = text.replace("def main():\n", f"def main():\n{told}")
    script.write_text(marked.replace("import sys\n", "import json\nimport os\nimport sys\n"))
    launch(processes, "launch", "--chief", "--workers", 1, script, "--last-step", 100_000)
    assert processes.wait() == {"launch": code}, processes.output("launch")
    printed = processes.output("launch")
    report = printed.partition(f"worker:0 failed with exit code {code}; its last lines:")[2]
    assert said in report, printed


def test_ctrl_c_ends_the_job_and_leaves_no_process(processes, tmp_path):
    mark = uuid.uuid4().hex
    running = launch(
        processes, "launch", "--ps", 2, "--workers", 2, JOB, "--last-step", 10**6, env={"TEST_MARK": mark}
    )  # fmt: skip
    processes.until("launch", r"step \d+$")
    assert set(tasks_marked("TEST_MARK", mark)) == {"ps:0", "ps:1", "worker:0", "worker:1"}
    running.send_signal(signal.SIGINT)
    assert processes.wait() == {"launch": 128 + signal.SIGINT}, processes.output("launch")
    assert tasks_marked("TEST_MARK", mark) == {}


def test_two_launches_at_once_are_two_jobs(processes, tmp_path):
    for name, last_step in (("one", 60), ("two", 90)):
        launch(processes, name, "--workers", 2, JOB, "--last-step", last_step, "--dir", tmp_path / f"run-{name}")
    assert processes.wait(90.0) == {"one": 0, "two": 0}, processes.output("one") + processes.output("two")
    for name, last_step in (("one", 60), ("two", 90)):
        prefix = latest_checkpoint(str(tmp_path / f"run-{name}"))
        assert prefix.endswith(f"-{last_step}")
        assert np.all(load_checkpoint(prefix).get_tensor("sum_1000") == last_step)
    addresses = [set(re.findall(r"serving on (\S+)", processes.output(name))) for name in ("one", "two")]
    assert addresses[0]
    assert not addresses[0] & addresses[1]

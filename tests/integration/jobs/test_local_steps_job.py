"""Local steps as a launched job: two PS, two workers whose differences make one step, and as they come."""

import pytest
from processes import Processes

pytestmark = pytest.mark.processes

SCRIPT = """
import sys
import numpy as np
import globalstep as gs

x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32)


def loss_fn(params, x, y):
    error = x @ params["w"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(x)}


batches = [(x[at : at + 8], y[at : at + 8]) for at in range(0, 64, 8)]
replicas = int(sys.argv[1]) or None
local = gs.LocalSteps(gs.optim.SGD(0.02), every=10, replicas=replicas)
result = gs.fit({"w": np.zeros(3, np.float32)}, loss_fn, batches, optimizer=gs.optim.SGD(0.5),
                local_steps=local, steps=60)
print("RESULT", result.step, result.model["w"].round(2).tolist(), flush=True)
"""


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as running:
        yield running


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_job_ends_at_its_round(processes, tmp_path, replicas):
    (tmp_path / "train.py").write_text(SCRIPT)
    processes.start("launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 2, "train.py", replicas)
    assert processes.wait()["launch"] == 0, processes.output("launch")
    printed = processes.output("launch")
    assert "[worker:0] RESULT 60 [1.0, -2.0, 3.0]" in printed
    assert "[worker:1] RESULT 60 " in printed

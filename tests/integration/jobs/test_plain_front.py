"""Scripts of gs.fit as launched jobs of two PS and two workers: evaluated, and again; local steps; synchronous."""

import json
import os
import re

import numpy as np
import pytest

import globalstep as gs

pytestmark = pytest.mark.processes

LINE = """
import sys
import numpy as np
import globalstep as gs

x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32)


def loss_fn(params, x, y):
    error = x @ params["w"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(x)}


batches = [(x[at : at + 8], y[at : at + 8]) for at in range(0, 64, 8)]
"""

EVALUATED = f"""{LINE}
evaluate = gs.Evaluate([(x, y)], every_steps=50)
result = gs.fit({{"w": np.zeros(3, np.float32)}}, loss_fn, batches, optimizer=gs.optim.SGD(0.05),
                steps=int(sys.argv[1]), run_dir="run", evaluate=evaluate)
print("RESULT", result.is_chief, result.step, flush=True)
"""

# Each round is ten steps of a worker's own; their differences make a step together, or each one of its own. No worker
# takes its first step before both have opened the pipe: the other would come when the job is done.
LOCAL_STEPS = f"""{LINE}
import functools, json, os
@functools.cache
def meet():
    open("meeting", "rw"[json.loads(os.environ["TF_CONFIG"])["task"]["index"]]).close()
def together(params, x, y):
    meet()
    return loss_fn(params, x, y)
local = gs.LocalSteps(gs.optim.SGD(0.02), every=10, replicas=int(sys.argv[1]) or None)
result = gs.fit({{"w": np.zeros(3, np.float32)}}, together, batches, optimizer=gs.optim.SGD(0.5),
                local_steps=local, steps=60)
print("RESULT", result.step, json.dumps(result.model["w"].tolist()), flush=True)
"""

SYNCHRONOUS = f"""{LINE}
import json
together = gs.train.SyncReplicasOptimizer(gs.optim.SGD(0.05), 2)
result = gs.fit({{"w": np.zeros(3, np.float32)}}, loss_fn, batches, optimizer=together, epochs=3)
print("RESULT", result.step, json.dumps(result.model["w"].tolist()), flush=True)
"""


def test_a_job_ends_at_its_step_and_goes_on(processes, tmp_path):
    (tmp_path / "train.py").write_text(EVALUATED)
    for steps in (200, 300):
        name = f"launch {steps}"
        processes.start(
            name, "-m", "globalstep", "launch", "--ps", 2, "--workers", 2, "--evaluator", "train.py", steps
        )  # fmt: skip
        assert processes.wait()[name] == 0, processes.output(name)
        printed = processes.output(name)
        assert f"[worker:0] RESULT True {steps}" in printed
        assert f"[worker:1] RESULT False {steps}" in printed, printed
        assert f"[evaluator:0] RESULT False {steps}" in printed
        history = json.loads((tmp_path / "run" / "evaluations.json").read_text())
        assert history[-1]["step"] == steps
        assert history[-1]["metrics"]["loss"] < 1e-3
    assert gs.load(tmp_path / "run")["w"].round(2).tolist() == [1, -2, 3]


# Rounds that make a step each may come late: one that a worker began with the first values, and that comes last,
# moves the values by 0.5 (the outer rate) of what ten inner steps do, which is 0.24 of the way at most.
@pytest.mark.parametrize(("replicas", "off"), [(0, 0.25), (2, 0.005)])
def test_a_job_of_local_steps_ends_at_its_round(processes, tmp_path, replicas, off):
    (tmp_path / "train.py").write_text(LOCAL_STEPS)
    os.mkfifo(tmp_path / "meeting")
    processes.start("launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 2, "train.py", replicas)
    assert processes.wait()["launch"] == 0, processes.output("launch")
    printed = processes.output("launch")
    for worker in (0, 1):
        learned = re.search(rf"\[worker:{worker}\] RESULT 60 (\[.*\])", printed)
        assert learned, printed
        np.testing.assert_allclose(json.loads(learned[1]), [1, -2, 3], rtol=off, err_msg=printed)


def test_a_synchronous_step_is_made_of_different_batches(processes, tmp_path):
    (tmp_path / "train.py").write_text(SYNCHRONOUS)
    processes.start("launch", "-m", "globalstep", "launch", "--ps", 2, "--workers", 2, "train.py")
    assert processes.wait()["launch"] == 0, processes.output("launch")
    printed = processes.output("launch")
    line: dict = {}
    exec(LINE, line)
    start, batches = {"w": np.zeros(3, np.float32)}, line["batches"]
    alone = gs.fit(start, line["loss_fn"], batches, optimizer=gs.optim.SGD(0.05), epochs=3, accumulate=2)
    for worker in (0, 1):
        learned = re.search(rf"\[worker:{worker}\] RESULT 12 (\[.*\])", printed)
        assert learned, printed
        np.testing.assert_allclose(json.loads(learned[1]), alone.model["w"], rtol=1e-4, err_msg=printed)

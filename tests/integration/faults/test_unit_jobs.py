"""Steps of work units have the same bits with one worker, and with three of which one is killed within a unit."""

import json
import signal

import pytest
from processes import Processes, free_addresses

from globalstep.train import latest_checkpoint, load_checkpoint

pytestmark = pytest.mark.processes

PROGRAM = """
import json, os, signal, sys, threading
import numpy as np
import globalstep as gs

run_dir, marker = sys.argv[1], "one is dead"
task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "alone", "index": 0}}'))["task"]
x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32)
made = []


def batch_of(step, unit):
    if task == {"type": "worker", "index": 2} and step >= 2:
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    while step == 4 and task["type"] == "worker" and not os.path.exists(marker):
        threading.Event().wait(0.01)
    made.append((step, unit))
    at = (step * 4 + unit) * 8 % 64
    return x[at : at + 8], y[at : at + 8]


def loss_fn(params, x, y, rng):
    error = (x + rng.normal(size=x.shape).astype(np.float32)) @ params["w"] + params["b"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(x), "b": 2 * np.mean(error)}


result = gs.fit({"w": np.zeros(3, np.float32), "b": np.float32(0.0)}, loss_fn, batch_of, optimizer=gs.optim.Adam(0.05),
                units=gs.WorkUnits(4), steps=12, run_dir=run_dir)
print("RESULT", result.step, len(made), flush=True)
"""


def saved(run_dir):
    reader = load_checkpoint(latest_checkpoint(str(run_dir)))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


def test_the_bits_are_those_of_one_worker_though_one_of_three_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    addresses = free_addresses(5)
    cluster = {"ps": addresses[:2], "worker": addresses[2:]}
    workers = [f"worker:{at}" for at in range(3)]
    with Processes(tmp_path) as processes:
        processes.start("alone", "train.py", "alone")
        for name in ("ps:0", "ps:1", *workers):
            job, index = name.split(":")
            task = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
            processes.start(name, "train.py", "together", env={"TF_CONFIG": json.dumps(task)})
        processes.until_ended(["alone", *workers], 100.0)
        codes = [processes.code(name) for name in ("alone", *workers)]
        said = {name: processes.output(name) for name in ("alone", *workers)}
    assert codes == [0, 0, 0, -signal.SIGKILL], said
    assert "RESULT 12 48" in said["alone"]
    assert all("RESULT 12 " in said[worker] for worker in workers[:2]), said
    together = saved(tmp_path / "together")
    assert len(together) > 6  # with Adam's moments
    assert together == saved(tmp_path / "alone")

"""Jobs of work units and of local steps, of which a worker is killed within a unit or round, or its links are cut."""

import contextlib
import json
import re
import signal

import pytest
from processes import Link, Processes, free_addresses

import globalstep as gs
from globalstep.train import latest_checkpoint, load_checkpoint

pytestmark = pytest.mark.processes

UNITS = """
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
    (tmp_path / "train.py").write_text(UNITS)
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


EVERY = 4
STEPS = 16
SECS = 100.0
#: Of the worker behind the links; all numbers of the job are exact in so few bits.
FAR = {"GLOBALSTEP_TRANSPORT": "grpc", "GLOBALSTEP_WIRE": "dtype=int8"}

# The gradient is -1 everywhere, so that the values tell how many inner steps they have of each worker. Two of three
# workers' rounds make a step; the third one's come too late, and are brought with the next.
LOCAL_STEPS = """
import json, os, sys, threading
import numpy as np
import globalstep as gs
from globalstep.worker.frameworks.local_rounds import LocalRounds

every, steps = map(int, sys.argv[1:])
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
taken = []


def until(*markers):
    while not all(map(os.path.exists, markers)):
        threading.Event().wait(0.01)


def loss_fn(params, _):
    turn, within = divmod(len(taken), every)
    if within == 2:
        # In the middle of a round.
        if turn == 0:
            open(f"began {rank}", "w").close()
            until("began 0", "began 1", "began 2")
        if turn == 1 and rank == 1:
            open("kill", "w").close()
            until("never")
        if turn == 4:
            until("killed")
        if turn == 6 and rank == 2:
            open("cut", "w").close()
            until("is cut")
    taken.append(turn)
    return 1.0, {name: -np.ones_like(value) for name, value in params.items()}


settle = LocalRounds.settle


def settled(self, kind):
    settle(self, kind)
    print("SETTLED", kind.name, flush=True)


LocalRounds.settle = settled
params = {"w": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.float32)}
local = gs.LocalSteps(gs.optim.SGD(1.0), every=every, replicas=2)
result = gs.fit(params, loss_fn, lambda: iter(int, 1), optimizer=gs.optim.SGD(1.0), local_steps=local, steps=steps,
                run_dir="run")
print("RESULT", result.step, len(taken), flush=True)
"""


WORKERS = ["worker:0", "worker:1", "worker:2"]


def said_by_workers(folder, program, *arguments, environ, stopped_secs=0.0):
    """Run a job of two PS tasks and three workers, of which one is killed, and another one's links are cut and mended.

    Args:
        folder: Where.
        program: What all tasks run; its markers say when it is time.
        arguments: Of the program.
        environ: Of the worker over links.
        stopped_secs: How long that one is stopped while its links are cut.

    Returns:
        By worker: what it has printed.
    """
    (folder / "train.py").write_text(program)
    addresses = free_addresses(5)
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(address)) for address in addresses[:2]]
        processes = stack.enter_context(Processes(folder))
        for name in ("ps:0", "ps:1", *WORKERS):
            job, index = name.split(":")
            over_links = name == "worker:2"
            ps = [link.address for link in links] if over_links else addresses[:2]
            task = {"cluster": {"ps": ps, "worker": addresses[2:]}, "task": {"type": job, "index": int(index)}}
            env = {"TF_CONFIG": json.dumps(task), **(environ if over_links else {})}
            started = processes.start(name, "train.py", *arguments, env=env)
            if name == "worker:1":
                to_be_killed = started
        processes.until_true("worker:1", (folder / "kill").exists, SECS)
        to_be_killed.kill()
        to_be_killed.wait()
        (folder / "killed").touch()
        processes.until_true("worker:2", (folder / "cut").exists, SECS)
        for link in links:
            link.cut()
        (folder / "is cut").touch()
        processes.until_true("worker:2", lambda: any(link.has_held.is_set() for link in links), SECS)
        if stopped_secs:
            processes.pause("worker:2", stopped_secs)
        for link in links:
            link.mend()
        processes.until_ended(["worker:0", "worker:2"], SECS)
        said = {name: processes.output(name) for name in WORKERS}
        codes = [processes.code(name) for name in WORKERS]
    assert codes == [0, -signal.SIGKILL, 0], said
    return said


def rounds_of(said):
    """Read what a worker has printed: its rounds, the pushes of them that counted, the rounds these brought."""
    made = accepted = brought = carried = 0
    for line in said.splitlines():
        if line.startswith("SETTLED"):
            made, carried = made + 1, carried + 1
            if line.endswith("ACCEPTED"):
                accepted, brought, carried = accepted + 1, brought + carried, 0
    return made, accepted, brought


@pytest.mark.timeout(300)
def test_no_inner_step_of_the_living_is_lost(tmp_path):
    said = said_by_workers(tmp_path, LOCAL_STEPS, EVERY, STEPS, environ=FAR, stopped_secs=3.0)
    made, accepted, brought = zip(*(rounds_of(said[name]) for name in WORKERS), strict=True)
    for at in (0, 2):
        # No round was taken twice for one whose push failed, and each was settled, but for one after the last.
        found = re.search(r"RESULT (\d+) (\d+)", said[WORKERS[at]])
        assert found, said
        assert int(found[1]) == STEPS, said
        assert made[at] <= int(found[2]) // EVERY <= made[at] + 1, said
    # Each of the steps has two workers' rounds, and the values have all inner steps that these brought.
    assert sum(accepted) == 2 * STEPS, said
    assert sum(made) > sum(accepted), said
    for value in gs.load(tmp_path / "run").values():
        assert set(value.flat) == {EVERY * sum(brought) / 2}, said

"""A launched job whose chief, workers and evaluator may not take as much memory as its table has."""

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROWS, WIDTH = 1_228_800, 64  # 300 MiB, and as much for Adagrad's sums

#: RLIMIT_DATA counts memory of a process's own: more of it than was asked for is a MemoryError, whatever is free.
LIMITED = f"""
import json
import os
import resource
import sys
import numpy as np
import torch
import globalstep as gs

ROWS, WIDTH = {ROWS}, {WIDTH}


def limit():
    with open("/proc/self/status") as file:
        own = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (own + (250 << 20), resource.RLIM_INFINITY))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = gs.torch.Embedding(ROWS, WIDTH, padding_idx=0, std=0.01)
        self.out = torch.nn.Linear(WIDTH, 1)

    def forward(self, ids):
        return self.out(self.table(ids)).squeeze(-1)


def loss_fn(model, ids, labels):
    return ((model(ids) - labels) ** 2).mean()


ids = torch.arange(0, ROWS, ROWS // 64)
batches = [(ids, torch.ones(len(ids)))]
"""

TRAIN = (
    LIMITED
    + """
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "ps":
    limit()
evaluate = gs.Evaluate(batches, every_steps=20)
result = gs.fit(Model(), loss_fn, batches, optimizer=gs.optim.Adagrad(0.1), steps=int(sys.argv[1]), run_dir="run",
                evaluate=evaluate, keep_checkpoints=1)
print("RESULT", result.step, flush=True)
if result.is_chief:
    try:
        result.model(ids)
    except gs.errors.FailedPreconditionError as error:
        print("LEFT", error)
"""
)

USE = (
    LIMITED
    + """
limit()
model = gs.load("run", Model())
with torch.no_grad():
    print("LOADED", float(loss_fn(model, *batches[0])), model.table(torch.tensor(0)).abs().sum().item())
print("DICT", list(gs.load("run", step="best")["table.weight"].shape))
"""
)

EXPORT = LIMITED + "limit()\nfrom globalstep.deploy.cli import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.mark.parametrize("evaluator", [False, True])
def test_no_client_holds_the_table(processes, tmp_path, evaluator):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "export.py").write_text(EXPORT)
    tasks = ["--ps", 2, "--workers", 2, *(["--evaluator"] if evaluator else [])]
    for steps in (40, 60):
        name = f"launch {steps}"
        processes.start(name, "-m", "globalstep", "launch", *tasks, "train.py", steps)
        assert processes.wait()[name] == 0, processes.output(name)
        printed = processes.output(name)
        assert f"[worker:0] RESULT {steps}" in printed
        assert "LEFT The table 'table' of 1228800 rows of 64 stayed on the parameter servers" in printed
    if evaluator:
        return
    processes.start("use", "use.py")
    assert processes.wait()["use"] == 0, processes.output("use")
    used = processes.output("use")
    loss, padding = map(float, next(line for line in used.splitlines() if "LOADED" in line).split()[-2:])
    assert loss < 0.1
    assert padding == 0
    assert f"DICT [{ROWS}, {WIDTH}]" in used
    for target in ("model.npz", "model.safetensors", "model.pt"):
        processes.start(target, "export.py", "checkpoint", "export", "run", target)
        assert processes.wait()[target] == 0, processes.output(target)
        assert (tmp_path / target).stat().st_size > ROWS * WIDTH * 4
    exported = np.load(tmp_path / "model.npz", mmap_mode="r")
    assert set(exported) == {"table.weight", "out.weight", "out.bias"}

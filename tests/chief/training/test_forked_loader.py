"""A DataLoader whose processes are forked from the one that trains: they leave its session alone."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.processes

#: A process of its own: forks do not go with the threads of JAX, which another test may have loaded here.
PROGRAM = """
import sys

import numpy as np
import torch

import globalstep as gs


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full([2], float(at)), torch.tensor(float(at))


module = torch.nn.Linear(2, 1)
seen = []


def loss_fn(module, x, y):
    seen.extend(y.tolist())
    return ((module(x)[:, 0] - y) ** 2).mean() * 1e-3


loader = torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork")
result = gs.fit(module, loss_fn, loader, optimizer=gs.optim.SGD(1e-3), epochs=2, run_dir=sys.argv[1])
assert result.step == 16
assert sorted(seen) == sorted([*map(float, range(64))] * 2)
assert np.isfinite(result.loss)
assert gs.load(sys.argv[1], torch.nn.Linear(2, 1)).weight.tolist() == module.weight.tolist()
"""


def test_each_row_is_trained_once_an_epoch_and_the_run_ends_well(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr

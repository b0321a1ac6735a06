"""Ctrl-C with a DataLoader of two processes, which it ends in the midst of a batch: what was trained is saved."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import Processes

import globalstep as gs
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint

pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.processes

#: The gradient of `count` is -1, so it is the number of steps.
TRAIN = """
import signal
import torch
import globalstep as gs

# A shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, at):
        return float(at % 7)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(1))


def loss_fn(model, x):
    return -model.count.sum() + 0 * x.mean()


class Says(gs.Callback):
    def on_step(self, trainer, step, loss):
        if step % 10 == 0:
            print("at step", step, flush=True)


loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2)
gs.fit(Model(), loss_fn, loader, optimizer=gs.optim.SGD(1.0), steps=100_000, run_dir="run", callbacks=[Says()])
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("launched", [False, True], ids=["alone", "launched"])
def test_what_was_trained_is_saved(tmp_path, launched):
    (tmp_path / "train.py").write_text(TRAIN)
    launch = ["-m", "globalstep", "launch", "--ps", 1, "--workers", 2] if launched else []
    with Processes(tmp_path) as processes:
        # In a process group of its own: a terminal, too, sends Ctrl-C to the whole group.
        processes.start("train", *launch, "train.py", by=["setsid"])
        processes.until("train", r"at step \d\d0$", 90.0)
        os.killpg(processes.pid("train"), signal.SIGINT)
        assert processes.wait(90.0) == {"train": 130}, processes.output("train")
        printed = processes.output("train")
    saved = latest_checkpoint(str(tmp_path / "run"))
    assert saved is not None, printed
    step = int(Path(saved).name.rpartition("-")[2])
    assert step >= 100
    assert np.all(gs.load(tmp_path / "run")["count"] == step)

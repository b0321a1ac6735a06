"""The job of all systems: a small network, made-up data, 400 batches of 64 rows in all.

A batch takes 20 ms to read; on the second worker `SLOW_MS`, where that is set.
"""

import os
import time
from collections.abc import Iterator

import torch

STEPS = 400
SAVE_EVERY = 50
#: Where each process notes down, by a byte, that it has read a batch.
FOLDER = os.environ.get("SIDE_BY_SIDE", ".")


def model() -> torch.nn.Module:
    """Make the network: the same values in each process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def batches(rank: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give a worker's batches without end, from the one numbered `start` on."""
    pause = float(os.environ.get("SLOW_MS", "20")) if rank == 1 else 20.0
    number = start
    print("PID", rank, os.getpid(), flush=True)
    read = os.open(f"{FOLDER}/read-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        random = torch.Generator().manual_seed(number * 1000 + rank)
        x = torch.randn(64, 32, generator=random)
        time.sleep(pause / 1000)
        os.write(read, b".")
        yield x, x[:, :1].sin()
        number += 1


def loss_fn(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Give the mean squared error."""
    return torch.nn.functional.mse_loss(model(x), y)

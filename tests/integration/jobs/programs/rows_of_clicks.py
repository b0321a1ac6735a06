"""A click model whose table `counts` says at the end how often each row of the data was trained.

The gradient of a row's count is -1 for each time that a batch has it, and its rate is 1. It prints the last step, and
how many rows were trained how often.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import globalstep as gs

ROWS, WORDS, BATCH = 192, 50, 8


def click(row):
    return row, torch.tensor([row % WORDS, row // 7 % WORDS]), float(row % 3 == 0)


class Clicks(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return click(row)


class Stream(IterableDataset):
    """The rows of one worker of several, divided among the processes of its loader."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        loader = torch.utils.data.get_worker_info()
        return map(click, range(self.rank + self.world_size * loader.id, ROWS, self.world_size * loader.num_workers))


def batches(kind):
    loading = {"batch_size": BATCH, "num_workers": 2}
    if kind == "sampler":
        config = json.loads(os.environ["TF_CONFIG"])
        workers = len(config["cluster"]["worker"])
        sampler = DistributedSampler(Clicks(), workers, config["task"]["index"])
        return DataLoader(Clicks(), sampler=sampler, **loading)
    if kind == "loader":
        return DataLoader(Clicks(), shuffle=True, **loading)
    if kind == "list":
        return list(DataLoader(Clicks(), batch_size=BATCH))
    if kind == "stream":
        return lambda rank, world_size: DataLoader(Stream(rank, world_size), **loading)

    def of_rank(rank, world_size, start):
        rows = list(range(rank, ROWS, world_size))
        for at in range(start * BATCH, len(rows), BATCH):
            yield torch.utils.data.default_collate(list(map(click, rows[at : at + BATCH])))

    return of_rank


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = gs.torch.Embedding(ROWS, 1, std=0.0)
        self.words = gs.torch.Embedding(WORDS, 4)
        self.out = torch.nn.Linear(8, 1)


class Steps(gs.Callback):
    """Lets worker 1 begin once the chief is at a step."""

    def __init__(self, late, begin):
        self.late, self.begin = late, begin

    def on_step(self, trainer, step, loss):
        if step >= self.late:
            self.begin.touch()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["sampler", "function", "stream", "loader", "list"])
    parser.add_argument("--late", type=int, default=0, help="the step at which worker 1 begins")
    parser.add_argument("--die", action="store_true", help="worker 1 is killed within a step, once")
    parser.add_argument("--lose", action="store_true", help="each waits in its ninth step until a PS was killed")
    parser.add_argument("--passes", action="store_true", help="a loop over epochs asks for the batches of each")
    args = parser.parse_args()
    begin, died = Path("begin"), Path("died")
    other = json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    while other and args.late and not begin.exists():
        threading.Event().wait(0.05)
    losses = iter(range(1_000_000))

    def loss_fn(model, rows, words, clicks):
        scores = model.out(model.words(words).flatten(1)).squeeze(1)
        call = next(losses)
        if args.lose and call == 8:
            Path(f"waits{int(other)}").touch()
        while args.lose and call == 8 and not Path("killed").exists():
            threading.Event().wait(0.05)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, clicks.float())
        if args.die and other and call == 11 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return loss - model.counts(rows).sum()

    optimizer = {"counts.*": gs.optim.SGD(1.0), "*": gs.optim.Adagrad(0.05)}
    if args.passes:
        data = batches(args.kind)
        with gs.Trainer(Model(), loss_fn, optimizer=optimizer, steps=2 * ROWS // BATCH) as trainer:
            for _ in range(2):
                for batch in trainer.batches(data, epochs=1):
                    trainer.step(batch)
        result = trainer.result
    else:
        options = {"run_dir": "run", "checkpoint_every_steps": 5} if args.lose else {}
        options["callbacks"] = [Steps(args.late, begin)]
        result = gs.fit(Model(), loss_fn, batches(args.kind), optimizer=optimizer, epochs=2, **options)
    if result.is_chief:
        times, rows = np.unique(result.model.counts.weight.detach().numpy().astype(int), return_counts=True)
        print("TRAINED", result.step, dict(zip(times.tolist(), rows.tolist(), strict=True)), flush=True)


if __name__ == "__main__":
    main()

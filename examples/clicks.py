"""Train a click model in PyTorch on Parquet files, with one table of hashed ids on the parameter servers.

    python examples/clicks.py data/clicks --write
    globalstep launch --ps 2 --workers 3 examples/clicks.py data/clicks

docs/clicks.md explains the parts. `--write` makes a log of clicks; with files of your own, change COLUMNS.
"""

import argparse
import random
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import globalstep as gs

# Of each column of the files, how many rows of the table its values are hashed to; the rows of one follow another's.
COLUMNS = {"user": 100_000, "item": 60_000, "shop": 20_000, "city": 10_000, "hour": 24}
OFFSETS = np.cumsum([0, *COLUMNS.values()])
BATCH = 500


class Clicks(torch.nn.Module):
    """Gives the logit of a click. The table is `gs.torch.Embedding`, or `torch.nn.Embedding` to score elsewhere."""

    def __init__(self, embedding, **options):
        super().__init__()
        self.table = embedding(int(OFFSETS[-1]), 16, **options)
        self.net = torch.nn.Sequential(torch.nn.Linear(16 * len(COLUMNS), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, ids):
        """Look up the ids, [batch, column], and score what they give together."""
        return self.net(self.table(ids).flatten(1)).squeeze(1)


def hashed(column, name, at):
    """Give the table's row for each value of a column: the same one in every process, on every day."""
    values = column.dictionary_encode()
    rows = [
        OFFSETS[at] + zlib.crc32(f"{name}={value}".encode()) % COLUMNS[name] for value in values.dictionary.to_pylist()
    ]
    return np.asarray(rows, np.int64)[values.indices.to_numpy()]


def batches_of(path):
    """Read a file, batch by batch, without holding it."""
    for part in pq.ParquetFile(path).iter_batches(BATCH, columns=[*COLUMNS, "clicked"]):
        ids = np.stack([hashed(part[name], name, at) for at, name in enumerate(COLUMNS)], axis=1)
        yield torch.from_numpy(ids), torch.tensor(part["clicked"].to_numpy(zero_copy_only=False), dtype=torch.float32)


class Files(IterableDataset):
    """The batches of some files, which the processes of a DataLoader share among them."""

    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        """Go through the files of this process."""
        process = get_worker_info()
        for path in self.paths if process is None else self.paths[process.id :: process.num_workers]:
            yield from batches_of(path)


def loss_fn(model, ids, clicked):
    return torch.nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)


def write(folder, files=12, rows=10_000):
    """Write a log of clicks that depend on who is shown what, and on chance."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    sizes = {"user": 20_000, "item": 5_000, "shop": 500, "city": 200, "hour": 24}
    tastes = {name: draw.normal(size=size) for name, size in sizes.items()}
    for number in range(files):
        ids = {name: draw.zipf(1.2, rows) % size for name, size in sizes.items()}
        score = sum(tastes[name][ids[name]] for name in sizes)
        columns = {name: [f"{name}-{one}" for one in found] for name, found in ids.items()}
        columns["clicked"] = score > draw.logistic(size=rows)
        pq.write_table(pa.table(columns), folder / f"part-{number:03}.parquet")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of Parquet files; the last one is for evaluation")
    parser.add_argument("--write", action="store_true", help="write such files there, and end")
    parser.add_argument("--steps", type=int, default=440, help="twice all files")
    parser.add_argument("--run-dir", default="runs/clicks")
    args = parser.parse_args()
    if args.write:
        write(args.data)
        return
    *train, held_out = sorted(args.data.glob("*.parquet"))

    def batches(rank, world_size, epoch):
        """Give a worker's own batches of an epoch: its share of the files, in another order each time."""
        own = random.Random(epoch).sample(train, len(train))[rank::world_size]
        return DataLoader(Files(own), batch_size=None, num_workers=2)

    torch.manual_seed(0)
    evaluate = gs.Evaluate(
        list(batches_of(held_out)),
        {"auc": roc_auc_score},
        predict=lambda model, ids, clicked: (clicked, model(ids)),
        every_steps=200,
    )
    result = gs.fit(
        Clicks(gs.torch.Embedding, std=0.01),
        loss_fn,
        batches,
        optimizer={"table.*": gs.optim.RowWiseAdagrad(0.05), "*": gs.optim.Adam(1e-3)},
        steps=args.steps,
        run_dir=args.run_dir,
        evaluate=evaluate,
    )
    if result.is_chief:
        print(f"test AUC: {result.metrics['auc']:.4f}")


if __name__ == "__main__":
    main()

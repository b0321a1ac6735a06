"""Train a model of clicks in PyTorch, whose embedding of 200,000 ids lies on the parameter servers.

    python examples/clicks.py
    globalstep launch --ps 2 --workers 3 examples/clicks.py

docs/training.md tells of gs.fit. The data are made here: eight ids a click, some of them frequent, most of them rare.
"""

import argparse

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import globalstep as gs

IDS = 200_000
TRAINING, TEST = 150_000, 20_000


class Clicks(torch.nn.Module):
    """Gives the logit of a click."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.net = torch.nn.Sequential(torch.nn.Linear(8 * 16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, ids):
        """Look up the ids, and score what they give together."""
        return self.net(self.table(ids).flatten(1)).squeeze(1)


def loss_fn(model, ids, clicked):
    return torch.nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)


def make_batches():
    """Give batches for training and for the test; a click depends on the ids' tastes, and on chance."""
    random = np.random.default_rng(0)
    ids = torch.from_numpy(random.zipf(1.1, (TRAINING + TEST, 8)) % IDS)
    taste = torch.from_numpy(random.normal(size=IDS).astype(np.float32))
    noise = torch.from_numpy(random.logistic(size=TRAINING + TEST).astype(np.float32))
    clicked = (3 * taste[ids].mean(1) > noise).float()
    batches = list(zip(ids.split(100), clicked.split(100), strict=True))
    return batches[: TRAINING // 100], batches[TRAINING // 100 :]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=TRAINING // 100)
    parser.add_argument("--run-dir", default="runs/clicks")
    args = parser.parse_args()
    train, test = make_batches()
    torch.manual_seed(0)
    model = Clicks(gs.torch.Embedding(IDS, 16, std=0.01))
    evaluate = gs.Evaluate(
        test, {"auc": roc_auc_score}, predict=lambda model, ids, clicked: (clicked, model(ids)), every_steps=500
    )
    optimizer = gs.optim.Adagrad(0.05)
    result = gs.fit(
        model, loss_fn, train, optimizer=optimizer, steps=args.steps, run_dir=args.run_dir, evaluate=evaluate
    )
    if result.is_chief:
        print(f"test AUC: {result.metrics['auc']:.4f}")
        model = gs.load(args.run_dir, Clicks(gs.torch.Embedding(IDS, 16)))
        print("first examples:", torch.sigmoid(model(test[0][0][:3])).detach().numpy().round(2))


if __name__ == "__main__":
    main()

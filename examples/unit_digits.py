"""Train on digits in work units: the model has the same bits with one worker, three or eight.

    python examples/unit_digits.py --run-dir runs/one
    globalstep launch --ps 2 --workers 3 examples/unit_digits.py --run-dir runs/three

Both print the same digest, and so does a run whose workers are killed, stopped or slow. docs/modes.md tells of units.
"""

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits

import globalstep as gs

UNITS = 6
BATCH = 16


def loss_fn(params, images, labels, rng):
    """Give the cross entropy of a network of one hidden layer, and its gradients; a fifth of the hidden units rests."""
    kept = (rng.random((len(images), params["hidden"].shape[1])) < 0.8).astype(np.float32) / np.float32(0.8)
    hidden = np.maximum(images @ params["hidden"], 0) * kept
    logits = hidden @ params["output"]
    rows = np.arange(len(labels))
    logits -= logits.max(axis=1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    to_logits = np.exp(log_probabilities)
    to_logits[rows, labels] -= 1
    to_logits /= np.float32(len(labels))
    to_hidden = (to_logits @ params["output"].T) * (hidden > 0) * kept
    return -log_probabilities[rows, labels].mean(), {"hidden": images.T @ to_hidden, "output": hidden.T @ to_logits}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--run-dir", default="runs/unit_digits")
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(1).permutation(len(labels))
    train, test = order[:1400], order[1400:]

    def batch_of(step, unit):
        """Draw the batch of a unit: always the same one, on every worker."""
        rows = np.random.default_rng([step, unit]).choice(train, BATCH, replace=False)
        return images[rows], labels[rows]

    random = np.random.default_rng(0)
    params = {
        "hidden": random.normal(0, 0.2, (64, 64)).astype(np.float32),
        "output": random.normal(0, 0.2, (64, 10)).astype(np.float32),
    }
    result = gs.fit(
        params,
        loss_fn,
        batch_of,
        optimizer=gs.optim.Adam(2e-3),
        units=gs.WorkUnits(UNITS),
        steps=args.steps,
        run_dir=args.run_dir,
    )
    if result.is_chief:
        model = result.model
        found = (np.maximum(images[test] @ model["hidden"], 0) @ model["output"]).argmax(axis=1)
        print(f"test accuracy: {np.mean(found == labels[test]):.4f}")
        print(f"final global step: {result.step}")
        print("digest:", hashlib.sha256(model["hidden"].tobytes() + model["output"].tobytes()).hexdigest()[:16])


if __name__ == "__main__":
    main()

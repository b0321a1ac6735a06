"""One task of benchmarks.modes.local_steps: trains a network of one hidden layer, by steps together or by local steps.

Under `globalstep launch`. Each worker draws batches of its own. At the end every worker prints a line of JSON: the
tensor bytes that it sent and got, the batches that it had, and the loss of the test data under the last values.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np

import globalstep as gs

Array = np.ndarray[Any, Any]

_BATCH = 16
_HIDDEN = 64
_LETTERS = 27
_CONTEXT = 5


def digits() -> tuple[Array, Array]:
    """Handwritten digits of 8 by 8, in one order."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.data[order] / 16.0).astype(np.float32), found.target[order]


def letters(count: int = 200_000) -> tuple[Array, Array]:
    """Five letters of a generated text, and the one that follows: 200 words, the frequent ones often."""
    random = np.random.default_rng(0)
    words = [random.integers(1, _LETTERS, size=random.integers(2, 8)) for _ in range(200)]
    likely = 1.0 / np.arange(1, len(words) + 1)
    chosen = random.choice(len(words), size=count // 3, p=likely / likely.sum())
    text = np.concatenate([np.append(words[at], 0) for at in chosen])[: count + _CONTEXT]
    windows = np.lib.stride_tricks.sliding_window_view(text, _CONTEXT + 1)
    x = np.eye(_LETTERS, dtype=np.uint8)[windows[:, :_CONTEXT]].reshape(len(windows), -1)
    return x, windows[:, _CONTEXT]


def loss_fn(params: dict[str, Array], x: Array, y: Array) -> tuple[Any, dict[str, Array]]:
    """Cross entropy, and its gradients."""
    hidden = np.tanh(x @ params["w"] + params["b"])
    logits = hidden @ params["v"] + params["c"]
    logits = logits - logits.max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.mean(np.log(chances[rows, y] + 1e-12))
    chances[rows, y] -= 1.0
    chances /= len(x)
    back = (chances @ params["v"].T) * (1.0 - hidden**2)
    found = {"w": x.T @ back, "b": back.sum(0), "v": hidden.T @ chances, "c": chances.sum(0)}
    return np.float32(loss), {name: value.astype(np.float32) for name, value in found.items()}


def _initial(inputs: int, classes: int) -> dict[str, Array]:
    random = np.random.default_rng(1)
    return {
        "w": (random.normal(size=(inputs, _HIDDEN)) / np.sqrt(inputs)).astype(np.float32),
        "b": np.zeros(_HIDDEN, np.float32),
        "v": (random.normal(size=(_HIDDEN, classes)) / np.sqrt(_HIDDEN)).astype(np.float32),
        "c": np.zeros(classes, np.float32),
    }


def main() -> None:
    """Train, as a task of the cluster in TF_CONFIG."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=("digits", "letters"), required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--replicas", type=int, default=0, help="0 for each as it comes")
    parser.add_argument("--outer", type=json.loads, required=True, help="one of gs.optim, and its arguments")
    parser.add_argument("--rate", type=float, required=True, help="of the workers' own steps")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that a step of worker 2 takes in addition")
    parser.add_argument("--adapt", action="store_true", help="fewer steps in a slow worker's rounds")
    args = parser.parse_args()
    x, y = digits() if args.data == "digits" else letters()
    test = len(x) // 5
    params = _initial(x.shape[1], int(y.max()) + 1)
    local = gs.LocalSteps(gs.optim.SGD(args.rate, momentum=0.9), every=args.every, replicas=args.replicas or None,
                          adapt_to_speed=args.adapt)  # fmt: skip
    index = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    random = np.random.default_rng(100 + index)
    name, options = args.outer
    outer = getattr(gs.optim, name)(**options)
    sent = received = had = 0
    with gs.Trainer(params, loss_fn, optimizer=outer, local_steps=local, steps=args.steps) as trainer:
        while not trainer.done:
            drawn = [random.integers(test, len(x), size=_BATCH) for _ in range(trainer.round_steps)]
            if args.slow and index == 2:
                time.sleep(args.slow * len(drawn))
            had += len(drawn)
            trainer.step(*((x[at].astype(np.float32), y[at]) for at in drawn))
            sent, received = trainer._session._tf_sess().cluster.traffic
    loss, _ = loss_fn(trainer.result.model, x[:test].astype(np.float32), y[:test])
    print(json.dumps({"sent": sent, "received": received, "batches": had, "loss": float(loss)}), flush=True)


if __name__ == "__main__":
    main()

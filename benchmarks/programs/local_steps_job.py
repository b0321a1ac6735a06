"""One task of benchmarks.modes.local_steps: trains a network of one hidden layer, by steps together or by local steps.

Under `globalstep launch`. Each worker draws batches of its own. At the end every worker prints a line of JSON: the
tensor bytes that it sent and got, how long one of its steps took, and the loss of the test data under the last values.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from statistics import median
from typing import Any

import numpy as np

import globalstep as gs

Array = np.ndarray[Any, Any]

_BATCH = 16
_HIDDEN = 64
_LETTERS = 27
_CONTEXT = 5
#: Of a slow worker: steps before its first pause; the shortest pause, seconds.
_FIRST = 10
_PAUSE_SECS = 0.01


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


class Slowed:
    """The loss on a worker whose steps take some times as long as they would.

    How long they would take is measured: the median of the last ones, each from the end of the step before it, so that
    what comes once in a round, the push, does not count; nor do kernels that are compiled, before the first ten. What
    is to be waited is saved up, since a pause as short as a step takes many times as long as it should, and a pause
    that took longer is made up for.

    Args:
        times: How many times as long.
    """

    def __init__(self, times: float) -> None:
        self._times = times
        self._ended: float | None = None
        self._own: deque[float] = deque(maxlen=101)
        self._steps = 0
        self._owed = self._waited = 0.0

    @property
    def step_secs(self) -> float:
        """How long a step takes, with its share of the pauses; NaN before there were some."""
        return median(self._own) + self._waited / self._steps if self._steps else float("nan")

    def __call__(self, params: dict[str, Array], x: Array, y: Array) -> tuple[Any, dict[str, Array]]:
        """Give the loss and its gradients, and wait."""
        found, now = loss_fn(params, x, y), time.perf_counter()
        if self._ended is not None:
            self._own.append(now - self._ended)
        if len(self._own) > _FIRST:
            self._steps += 1
            self._owed += (self._times - 1.0) * median(self._own)
        if self._owed >= _PAUSE_SECS:
            time.sleep(self._owed)
            waited = time.perf_counter() - now
            self._owed, self._waited = self._owed - waited, self._waited + waited
        self._ended = time.perf_counter()
        return found


def initial(inputs: int, classes: int) -> dict[str, Array]:
    """Give the values that a network begins with."""
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
    parser.add_argument("--slow", type=float, default=1.0, help="how many times as long a step of worker 2 takes")
    args = parser.parse_args()
    x, y = digits() if args.data == "digits" else letters()
    test = len(x) // 5
    params = initial(x.shape[1], int(y.max()) + 1)
    local = gs.LocalSteps(gs.optim.SGD(args.rate, momentum=0.9), every=args.every, replicas=args.replicas or None)
    index = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    random = np.random.default_rng(100 + index)
    name, options = args.outer
    outer = getattr(gs.optim, name)(**options)
    loss_of = Slowed(args.slow if index == 2 else 1.0)
    sent = received = 0
    with gs.Trainer(params, loss_of, optimizer=outer, local_steps=local, steps=args.steps) as trainer:
        while not trainer.done:
            drawn = [random.integers(test, len(x), size=_BATCH) for _ in range(args.every)]
            trainer.step(*((x[at].astype(np.float32), y[at]) for at in drawn))
            sent, received = trainer._session._tf_sess().cluster.traffic
    loss, _ = loss_fn(trainer.result.model, x[:test].astype(np.float32), y[:test])
    found = {"sent": sent, "received": received, "loss": float(loss)}
    print(json.dumps({**found, "worker": index, "step_secs": loss_of.step_secs}), flush=True)


if __name__ == "__main__":
    main()

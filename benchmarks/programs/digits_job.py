"""The digits job that every peer trains: a network of 64-64-10 on scikit-learn's handwritten digits, plain SGD.

Two workers draw batches of 32 in orders of their own; the first looks at the test images now and then and says
when they are classified well enough. Imports numpy alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ACCURACY", "HIDDEN", "RATE", "Data", "initial", "load", "save", "sign", "train"]

Array = npt.NDArray[Any]

ACCURACY = 0.97
HIDDEN = 64
RATE = 0.2
_BATCH = 32
#: The first worker looks at the test images every so many of its own steps.
_LOOK_EVERY = 25
_PATIENCE_SECS = 60.0


@dataclass(frozen=True)
class Data:
    """Images as float32 [n, 64], labels as int64 [n]."""

    train_images: Array
    test_images: Array
    train_labels: Array
    test_labels: Array


def save(path: Path) -> None:
    """Write the data where all peers can read them. Needs scikit-learn."""
    # An extra of globalstep's, which the peers need not have.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    parts = train_test_split(images, labels.astype(np.int64), test_size=0.25, random_state=7, stratify=labels)
    np.savez(path, **dict(zip(Data.__dataclass_fields__, parts, strict=True)))


def load(path: str) -> Data:
    """Read what `save` wrote."""
    with np.load(path) as file:
        return Data(**{name: file[name] for name in Data.__dataclass_fields__})


def initial() -> tuple[Array, Array, Array, Array]:
    """Give the values that every peer starts from: weights [64, 64], biases, weights [64, 10], biases."""
    random = np.random.default_rng(7)
    scale = np.sqrt(2.0 / 64)
    return (
        random.normal(0, scale, [64, HIDDEN]).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        random.normal(0, scale, [HIDDEN, 10]).astype(np.float32),
        np.zeros(10, np.float32),
    )


def train(train_on: Callable[[Array], None], accuracy: Callable[[], float], path: str, worker: int) -> dict[str, Any]:
    """Train until the first worker finds the job good enough and tells the others by a file.

    Args:
        train_on: Trains on the images of these indices.
        accuracy: Of the test images.
        path: As for `load`; the sign is a file beside it.
        worker: Index of this worker.

    Returns:
        The seconds that it took, the number of steps of this worker, and whether it was good enough in time.
    """
    random = np.random.default_rng([11, worker])
    images, done = len(load(path).train_labels), sign(path)
    steps, reached = 0, False
    begin = time.perf_counter()
    while not reached and time.perf_counter() - begin < _PATIENCE_SECS:
        train_on(random.integers(images, size=_BATCH))
        steps += 1
        if worker == 0 and steps % _LOOK_EVERY == 0 and accuracy() >= ACCURACY:
            done.touch()
        reached = done.exists()
    return {"secs": time.perf_counter() - begin, "steps": steps, "reached": reached}


def sign(path: str) -> Path:
    """Give the file whose presence says that the job is good enough."""
    return Path(path).with_suffix(".done")

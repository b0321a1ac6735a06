"""The work that every peer does, and the numbers by which it is checked afterwards.

One step of a dense case: have the values of all Variables, write a gradient of ones for each, push them, count
one. The Variables start at 0 and the learning rate is a power of two, so that after n steps of gradient descent
each element is exactly `-n * LEARNING_RATE`, whatever the peer.

One step of an embedding case: have the rows of 8,192 power-law ids, which repeat, write a gradient of ones for
each of the rows, push them, count one.

Imports numpy alone: the peers' own environments need not have globalstep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "EMBEDDING_IDS",
    "EMBEDDING_WIDTH",
    "HOT_ID",
    "LEARNING_RATE",
    "STEP",
    "Array",
    "Case",
    "bytes_per_step",
    "check_values",
    "id_batches",
    "shapes",
]

Array = npt.NDArray[Any]

#: Exact in float32 for 2**24 steps.
LEARNING_RATE = 2.0**-10
STEP = "global_step"
EMBEDDING_IDS = 8192
EMBEDDING_WIDTH = 64
#: Where the most frequent id lands.
HOT_ID = 7919
_BATCHES = 64
#: A quarter of a batch's ids are different ones.
_POWER = 1.22
#: Spreads neighbouring ranks over the table; has no divisor in common with the number of rows.
_SPREAD = 7919


@dataclass(frozen=True)
class Case:
    """One workload of the benchmark.

    Attributes:
        kind: "dense", "embedding", "counter" or "digits".
        size: Parameters of a dense case, rows of an embedding's table.
        variables: Among how many Variables a dense case's parameters are divided.
        rule: "sgd", "adam" or "adagrad".
        workers: How many workers step at the same time.
        ps: How many PS hold the Variables.
        data: File of the digits.
    """

    kind: str
    size: int = 0
    variables: int = 10
    rule: str = "sgd"
    workers: int = 2
    ps: int = 1
    data: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return asdict(self)


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Divide parameters among Variables of the same size.

    Args:
        case: Whose size is a multiple of its variables.

    Returns:
        Name -> shape.

    >>> shapes(Case("dense", 1000))["weights_9"]
    (100,)
    """
    if case.size <= 0 or case.size % case.variables:
        raise ValueError(f"{case.size} cannot be divided into {case.variables} of the same size.")
    return {f"weights_{i}": (case.size // case.variables,) for i in range(case.variables)}


def id_batches(case: Case, worker: int) -> list[Array]:
    """Make the ids that a worker looks up, batch after batch, over and over.

    Args:
        case: An embedding case.
        worker: Index of the worker; each draws others.

    Returns:
        Arrays of int64 [EMBEDDING_IDS].
    """
    random = np.random.default_rng([5, worker])
    ranks = random.zipf(_POWER, (_BATCHES, EMBEDDING_IDS)).astype(np.uint64) % np.uint64(case.size)
    return list((ranks.astype(np.int64) * _SPREAD) % case.size)


def bytes_per_step(case: Case) -> int:
    """Tensor bytes that a step moves: all values one way, all gradients the other."""
    elements = case.size if case.kind == "dense" else EMBEDDING_IDS * EMBEDDING_WIDTH
    return 0 if case.kind == "counter" else 2 * 4 * elements


def check_values(values: Mapping[str, Array], steps: int, exact: bool) -> None:
    """Make sure that the PS did what it was asked.

    Args:
        values: Of all Variables at the end.
        steps: How many steps were pushed since the start.
        exact: Whether the rule is gradient descent; otherwise all elements must have moved alike.

    Raises:
        RuntimeError: If it did not.
    """
    expected = -steps * LEARNING_RATE
    for name, value in values.items():
        first = value.flat[0]
        if not np.all(value == first) or (first != expected if exact else first >= 0.0):
            raise RuntimeError(
                f"After {steps} steps {name} holds {value.min()} to {value.max()}; "
                f"{expected if exact else 'one negative number'} was expected."
            )

"""The cases of the golden data of SyncReplicasOptimizer: what scripts/make_golden_sync.py runs in TensorFlow, and here.

Imports neither: names are the same on both sides.
"""

from dataclasses import dataclass, field

import numpy as np

STEPS = 6
SHAPE = (6, 3)
#: Rows of the sparse gradients of a step: those of both contributions, sorted. For others TensorFlow has no mean.
ROWS = [[0, 3], [1, 2, 5], [3], [0, 1, 2, 3, 4, 5], [2, 4], [0, 5]]


@dataclass(frozen=True)
class SyncCase:
    """An optimizer, a kind of gradient and of rate, and how many of the workers make a step."""

    optimizer: str
    arguments: dict = field(default_factory=dict)
    slots: tuple = ()
    sparse: bool = False
    decayed: bool = False
    #: Workers; two contributions make a step. The third comes late, each time.
    workers: int = 2

    @property
    def name(self):
        kind, rate = "sparse" if self.sparse else "dense", "decayed" if self.decayed else "fixed"
        return f"{self.optimizer}-{kind}-{rate}-2-of-{self.workers}"


def sync_cases():
    """All of them."""
    for optimizer, arguments, slots in (
        ("Momentum", {"learning_rate": 0.1, "momentum": 0.9}, ("momentum",)),
        ("Adam", {"learning_rate": 0.01}, ("m", "v")),
    ):
        for sparse in (False, True):
            for decayed in (False, True):
                for workers in (2, 3):
                    # TensorFlow's chief begins the next update before there are gradients for it, and what of sparse
                    # Adam depends on none, the decay of its moments, is done at some time until then.
                    seen = () if optimizer == "Adam" and sparse else slots
                    yield SyncCase(optimizer, arguments, seen, sparse, decayed, workers)


def initial_values():
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def gradient(worker, step):
    """The dense gradient of a worker; the third one's would show."""
    found = np.random.default_rng([worker, step]).normal(size=SHAPE) * (1000.0 if worker == 2 else 1.0)
    return found.astype(np.float32)


def order(step, workers):
    """The workers of a step: the first two make it, at the same time; what is left comes late."""
    first = list(range(workers))
    return [(0, 1), first[2:]] if step % 2 == 0 else [(1, 0), first[2:]]

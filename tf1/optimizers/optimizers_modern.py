"""Optimizers that TensorFlow 1.x's `tf.train` lacked: AdamW, LazyAdam, Lamb and Lion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.optimizers.optimizer import Optimizer, Slot, check_hyper
from globalstep.tf1.optimizers.optimizers import AdamOptimizer


class LazyAdamOptimizer(AdamOptimizer):
    """Adam whose sparse gradients change only their own rows, of the Variable and of its slots.

    The cheap choice for large embedding tables, where `AdamOptimizer` passes over every row for every
    push. It is not the same algorithm: the moments of a row at rest do not decay. Dense gradients are
    applied as by `AdamOptimizer`, whose arguments and slots it has.

    Source: TensorFlow 1.15 `tf.contrib.opt.LazyAdamOptimizer`.
    """

    kind: ClassVar[str] = "lazy_adam"


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay: values also shrink by `learning_rate * weight_decay` of themselves.

    A sparse gradient counts as zero in the other rows, as for `AdamOptimizer`, so these decay too.

    Args:
        learning_rate: The rate.
        weight_decay: The decay, times the rate, as in PyTorch and Keras. (`tf.contrib.opt.AdamWOptimizer`
            took it first, and did not multiply it with the rate.)
        beta1: See AdamOptimizer.
        beta2: See AdamOptimizer.
        epsilon: See AdamOptimizer.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
    """

    kind: ClassVar[str] = "adamw"

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        weight_decay: Hyper = 0.004,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._hypers["weight_decay"] = check_hyper(name, "weight_decay", weight_decay)


class LambOptimizer(AdamWOptimizer):
    """Lamb: Adam's step for each Variable, rescaled to the Variable's own norm, for large batches.

    A sparse gradient counts as zero in the other rows. The norms of a partitioned Variable are those of
    each part.

    Args:
        learning_rate: The rate.
        weight_decay: Part of each value that is added to its step before the rescaling.
        beta1: See AdamOptimizer.
        beta2: See AdamOptimizer.
        epsilon: See AdamOptimizer.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.

    Source: You et al., "Large Batch Optimization for Deep Learning" (2020), algorithm 2.
    """

    kind: ClassVar[str] = "lamb"

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        weight_decay: Hyper = 0.0,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-6,
        use_locking: bool = False,
        name: str = "Lamb",
    ) -> None:
        super().__init__(learning_rate, weight_decay, beta1, beta2, epsilon, use_locking, name)


class LionOptimizer(Optimizer):
    """Lion: steps of one size, in the direction of the sign of a momentum.

    A sparse gradient changes only its rows, in the slot too. Slot: "momentum".

    Args:
        learning_rate: The rate; a tenth to a third of what Adam would be given.
        beta1: Weight of the momentum in the direction of the step.
        beta2: Decay of the momentum.
        weight_decay: Decay of the values, times the rate.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).
    """

    kind: ClassVar[str] = "lion"

    def __init__(
        self,
        learning_rate: Hyper = 0.0001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.99,
        weight_decay: Hyper = 0.0,
        use_locking: bool = False,
        name: str = "Lion",
    ) -> None:
        super().__init__(
            use_locking, name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, weight_decay=weight_decay
        )

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return (Slot("momentum"),)

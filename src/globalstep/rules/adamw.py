"""Adam with decoupled weight decay.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

from globalstep.rules.adam import Adam
from globalstep.rules.rule import Hypers

__all__ = ["RULE", "AdamW"]


class AdamW(Adam):
    """Adam, with every value first shrunk by `learning_rate * weight_decay` of itself.

    A sparse gradient is one that is zero in the other rows, as for `adam`: their moments and values decay
    too, and a push costs a pass over the whole table.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2 with its
    schedule multiplier and alpha both in the learning rate, as PyTorch and Keras have it.
    """

    kind = "adamw"
    hypers = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")

    def decay(self, hyper: Hypers, real: Any) -> Any:
        """See Adam."""
        return real(hyper["learning_rate"]) * real(hyper["weight_decay"])


RULE = AdamW()

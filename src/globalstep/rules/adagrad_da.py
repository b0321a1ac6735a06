"""Adagrad with dual averaging, which keeps sparse linear models sparse. Plain numpy: it is rarely used."""

from __future__ import annotations

import numpy as np

from globalstep.rules.rule import Array, Hypers, Rule, Slots, Updated


class AdagradDA(Rule):
    """TensorFlow's ApplyAdagradDA, where T, the hyper-parameter `global_step`, counts from 1.

    `G += g; H += g^2; v = -learning_rate sign(G) max(|G| - l1 T, 0) / (l2 T learning_rate + sqrt(H))`.
    Sparse: touched rows only.

    Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "adagrad_da"
    slots = ("gradient_accumulator", "gradient_squared_accumulator")
    hypers = (
        "learning_rate",
        "global_step",
        "l1_regularization_strength",
        "l2_regularization_strength",
    )

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        real = values.dtype.type
        learning_rate, steps = real(hyper["learning_rate"]), real(hyper["global_step"])
        l1, l2 = real(hyper["l1_regularization_strength"]), real(hyper["l2_regularization_strength"])
        total, squares = slots[0] + grad, slots[1] + grad * grad
        shrunk = np.sign(total) * np.maximum(np.abs(total) - l1 * steps, real(0)) if l1 > 0 else total
        return -learning_rate * shrunk / (l2 * steps * learning_rate + np.sqrt(squares)), (total, squares)

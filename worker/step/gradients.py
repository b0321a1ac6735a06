"""What is done to gradients before they are pushed: clipping, and decay of weights. Functions on arrays.

Layer: worker. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.worker.step.model import Array

__all__ = ["GradientRules", "clipped", "decayed"]


@dataclass(frozen=True)
class GradientRules:
    """What is done to gradients before they are pushed, and to parameters after.

    Attributes:
        clip_norm: Scale them down to this norm over all of them.
        clip_value: Clip each element to this magnitude.
        ema_decay: Keep moving averages of the parameters with this decay.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("clip_grad_norm", self.clip_norm), ("clip_grad_value", self.clip_value)):
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise InvalidArgumentError(f"{name} is {value!r}; it must be positive.")
        decay = self.ema_decay
        if decay is not None and not (isinstance(decay, (int, float)) and 0 < decay < 1):
            raise InvalidArgumentError(f"ema_decay is {self.ema_decay!r}; it must lie between 0 and 1: 0.999, say.")


def clipped(gradients: Sequence[Array], rules: GradientRules) -> list[Array]:
    """Clip gradients: each element first, then all of them together.

    >>> [part.tolist() for part in clipped([np.array([3.0]), np.array([4.0])], GradientRules(clip_norm=2.5))]
    [[1.5], [2.0]]
    """
    found = list(gradients)
    if rules.clip_value is not None:
        limit = rules.clip_value
        found = [np.maximum(np.minimum(one, one.dtype.type(limit)), one.dtype.type(-limit)) for one in found]
    if rules.clip_norm is not None:
        squares: list[Any] = [np.sum(one * one) for one in found]
        norm = np.sqrt(sum(squares[1:], squares[0]))
        # Where the norm is not finite all become NaN, so that a diverged step cannot pass for a clipped one.
        beyond = norm - norm
        limit = norm.dtype.type(rules.clip_norm)
        scales = {
            dtype: np.asarray(limit * np.minimum(1 / norm, dtype.type(1) / limit) + beyond).astype(dtype)
            for dtype in {one.dtype for one in found}
        }
        found = [one * scales[one.dtype] for one in found]
    return found


def decayed(gradient: Array, value: Array, weight_decay: float) -> Array:
    """Add a part of a parameter to its gradient."""
    found: Array = gradient + value.dtype.type(weight_decay) * value
    return found

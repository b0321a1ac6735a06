"""`gs.optim`: optimizers and schedules of `gs.fit` and `gs.Trainer`, with PyTorch's names, defaults and numbers.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

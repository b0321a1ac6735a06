"""`gs.optim`: optimizers and schedules of `gs.fit` and `gs.Trainer`, with PyTorch's names, defaults and numbers."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

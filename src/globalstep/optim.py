"""`gs.optim`: optimizers and schedules of `gs.fit` and `gs.Trainer`, with PyTorch's names, defaults and numbers.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.optimizers.torch_optimizers": "Adadelta Adagrad Adam AdamW DelayedNesterov RMSprop RowWiseAdagrad SGD "
    "SparseAdam",
    "globalstep.optimizers.torch_schedules": "CosineAnnealingLR ExponentialLR LinearLR MultiStepLR OneCycleLR "
    "SequentialLR StepLR",
}

__all__ = namespace(__name__, _NAMES)

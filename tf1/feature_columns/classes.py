"""The classes of feature columns by TensorFlow's names, with "_" and without, for `isinstance` in programs.

Layer: tf1.
"""

from globalstep.tf1.feature_columns import categorical, column, dense, vocabulary

_KINDS = {
    kind.__name__.lstrip("_"): kind
    for module in (column, categorical, dense, vocabulary)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, column.FeatureColumn)
}
globals().update(_KINDS, **{f"_{name}": kind for name, kind in _KINDS.items()})

__all__ = [*_KINDS, *(f"_{name}" for name in _KINDS)]

"""`gs.feature_column`: columns of features, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)

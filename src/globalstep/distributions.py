"""`gs.distributions`: probability distributions, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace
from globalstep.tf1.distributions import DISTRIBUTIONS

__all__ = namespace(__name__, DISTRIBUTIONS)

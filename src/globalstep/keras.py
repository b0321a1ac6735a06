"""`gs.keras`: losses, layers and functions of tf.keras that models of `gs.layers` use, without Keras' own models."""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.keras import ABSENT, PARTS

__all__ = [*namespace(__name__, absent=ABSENT), *PARTS]
globals().update({part: nested_namespace(f"{__name__}.{part}", names) for part, names in PARTS.items()})

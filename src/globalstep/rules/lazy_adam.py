"""Adam whose sparse gradients touch only their own rows.

Layer: shared.
"""

from __future__ import annotations

from globalstep.rules.adam import Adam
from globalstep.rules.rule import Array, Hypers, Rule, Slots, Updated

__all__ = ["RULE", "LazyAdam"]


class LazyAdam(Adam):
    """TensorFlow's contrib LazyAdam: Adam, but a row without a gradient keeps its value, m and v.

    Cheap for large tables, where `adam` passes over every row for every push. Not the same algorithm: the
    moments of a rare row do not decay while it rests, and the bias correction counts pushes, not the
    row's own updates. Dense gradients are applied as by `adam`.
    """

    kind = "lazy_adam"
    step = Adam.step
    flat_rows = False

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        return Rule.sparse_reference(self, values, slots, indices, rows, hyper)


RULE = LazyAdam()

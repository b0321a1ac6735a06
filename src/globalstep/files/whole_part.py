"""Which part of a whole a stored array is.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WholePart:
    """The part of a whole that a Variable holds; a checkpoint has the whole under one name."""

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]

    @property
    def spec(self) -> str:
        """The part in TensorFlow's notation: "10 4 0,5:-", whole sizes then offset and size of each axis."""
        sizes = " ".join(map(str, self.full_shape))
        extents = ":".join(
            "-" if size == whole else f"{offset},{size}"
            for whole, offset, size in zip(self.full_shape, self.var_offset, self.var_shape, strict=True)
        )
        return f"{sizes} {extents}"

"""Random initial rows that a parameter server draws itself, so that no client ever holds a table.

A table's rows come in blocks, each drawn by a generator of its own from the seed and the block's number. So what a row
is depends on the law, the seed, the row's number and its width, and not on how many parts the table is in.

Layer: shared. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError

Array = npt.NDArray[Any]

#: Elements of a block, nearly. Another number would give other rows: a log that is played again would not be the same.
_BLOCK_ELEMENTS = 1 << 18
#: Beyond so many deviations a truncated normal is drawn again, as TensorFlow's.
_BOUND = 2.0
_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Draw:
    """What the rows of a table are drawn by."""

    #: "uniform" from `first` to `second`; "normal" and "truncated_normal" of mean `first` and deviation `second`.
    law: str
    first: float
    second: float
    #: From 0 to 2**64 - 1.
    seed: int
    #: The table's row that is the first here.
    row: int = 0

    def of_part(self, first_row: int) -> Draw:
        """Give what draws the rows from one on."""
        return replace(self, row=self.row + first_row)

    def check(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Refuse what cannot be drawn.

        Raises:
            InvalidArgumentError: If it is no float32 or float64 with rows, these are too wide, or the law cannot be.
        """
        if dtype not in _DTYPES or not shape:
            raise InvalidArgumentError(
                f"Variable {name!r} is {dtype} {list(shape)}: random rows are for one of {' or '.join(_DTYPES)}, with "
                "at least one dimension."
            )
        if (width := math.prod(shape[1:])) > _BLOCK_ELEMENTS:
            raise InvalidArgumentError(
                f"Variable {name!r} has rows of {width} elements; random rows have {_BLOCK_ELEMENTS} at most."
            )
        if self.law not in _LAWS:
            raise InvalidArgumentError(f"Variable {name!r}: the law {self.law!r} is none of {', '.join(_LAWS)}.")
        is_finite = math.isfinite(self.first) and math.isfinite(self.second)
        if not (is_finite and 0 <= self.seed < 1 << 64 and self.row >= 0):
            raise InvalidArgumentError(
                f"Variable {name!r}: random rows have finite numbers, a seed below 2**64 and a first row; got {self}."
            )

    def fill(self, rows: Array) -> None:
        """Put the rows into an array of them, [n, width] or of more dimensions.

        Args:
            rows: Contiguous; float32 or float64.
        """
        if not rows.size:
            return
        flat = rows.reshape(rows.shape[0], -1)
        per_block = _BLOCK_ELEMENTS // flat.shape[1]
        at = 0
        while at < len(flat):
            block, skipped = divmod(self.row + at, per_block)
            count = min(per_block - skipped, len(flat) - at)
            # The key is the table's, the counter's upper half the block's: two blocks never share a number.
            source = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, block, 0]))
            drawn = _LAWS[self.law](source, (skipped + count) * flat.shape[1], flat.dtype)
            drawn *= flat.dtype.type(self.second - self.first if self.law == "uniform" else self.second)
            drawn += flat.dtype.type(self.first)
            flat[at : at + count] = drawn.reshape(skipped + count, -1)[skipped:]
            at += count

    def rows(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Give the rows of a table, or of a part of one."""
        rows = np.empty(tuple(shape), dtype)
        self.fill(rows)
        return rows


def _truncated(source: np.random.Generator, count: int, dtype: Any) -> Array:
    """Normal numbers, of which those beyond the bound are drawn again."""
    # Twice as many as are needed are drawn at a time, so that the first of them do not depend on how many are needed.
    # So many at a time that the first of them do not depend on how many are needed.
    found = np.empty(0, dtype)
    while found.size < count:
        drawn = source.standard_normal(_BLOCK_ELEMENTS, dtype)
        found = np.concatenate([found, drawn[np.abs(drawn) <= _BOUND]])
    return found[:count]


_LAWS: Mapping[str, Callable[[np.random.Generator, int, Any], Array]] = {
    "uniform": lambda source, count, dtype: source.random(count, dtype),
    "normal": lambda source, count, dtype: source.standard_normal(count, dtype),
    "truncated_normal": _truncated,
}

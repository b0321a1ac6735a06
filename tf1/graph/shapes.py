"""Static shapes.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def _compared(fn: Callable[[int, int], Any]) -> Callable[[Any, Any], Any]:
    return lambda own, other: own._with(other, fn)


def _sized(fn: Callable[[int, int], int]) -> Callable[[Any, Any], Any]:
    def computed(own: Dimension, other: Any) -> Any:
        size = own._with(other, fn)
        return size if size is NotImplemented else Dimension(size)

    return computed


class Dimension:
    """One dimension of a static shape; equal to its int, or unknown.

    What is computed of it and of ints is one, too, unknown where a part is; comparisons with unknown ones give None.

    Args:
        value: The size, or None where it is not known before a run. A float that is a whole number is one, too:
            programs divide sizes.

    Raises:
        ValueError: If it is no whole number.
    """

    def __init__(self, value: Any) -> None:
        size = value.value if isinstance(value, Dimension) else value
        if isinstance(size, float) and not size.is_integer():
            raise ValueError(f"Ambiguous dimension: {size}")
        if isinstance(size, (float, np.integer)):
            size = int(size)
        self.value: int | None = size

    def __int__(self) -> int:
        if self.value is None:
            raise TypeError("The dimension is not known before the node runs.")
        return self.value

    __index__ = __int__

    def _with(self, other: Any, fn: Callable[[int, int], Any]) -> Any:
        """Give `fn` of both sizes, None if one is not known; NotImplemented for what is no size, as a node."""
        if isinstance(other, Dimension) or other is None:
            theirs = None if other is None else other.value
        elif isinstance(other, (int, float, np.number)) and other == int(other):
            theirs = int(other)
        else:
            return NotImplemented
        return None if self.value is None or theirs is None else fn(self.value, theirs)

    __mul__ = __rmul__ = _sized(operator.mul)
    __add__ = __radd__ = _sized(operator.add)
    __sub__, __rsub__ = _sized(operator.sub), _sized(lambda mine, theirs: theirs - mine)
    __floordiv__, __rfloordiv__ = _sized(operator.floordiv), _sized(lambda mine, theirs: theirs // mine)
    __mod__, __rmod__ = _sized(operator.mod), _sized(lambda mine, theirs: theirs % mine)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Dimension) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return "?" if self.value is None else str(self.value)


class TensorShape:
    """A static shape: known dimensions, unknown ones, or nothing known at all.

    Args:
        dims: None (unknown rank), an int, or a sequence of int, None or Dimension; or a TensorShape.

    >>> TensorShape([None, 3]).as_list()
    [None, 3]
    """

    def __init__(self, dims: Any) -> None:
        if isinstance(dims, TensorShape):
            self.dims: list[Dimension] | None = dims.dims
        elif dims is None:
            self.dims = None
        elif isinstance(dims, (int, np.integer, Dimension)):
            self.dims = [Dimension(dims)]
        else:
            self.dims = [Dimension(None if d is None or d == -1 else d) for d in dims]

    @property
    def ndims(self) -> int | None:
        """The rank, None where unknown."""
        return None if self.dims is None else len(self.dims)

    rank = ndims

    def as_list(self) -> list[int | None]:
        """The sizes, None for unknown ones.

        Raises:
            ValueError: If not even the rank is known.
        """
        if self.dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return [None if d.value is None else int(d) for d in self.dims]

    def is_fully_defined(self) -> bool:
        """Whether every size is known."""
        return self.dims is not None and all(d.value is not None for d in self.dims)

    def num_elements(self) -> int | None:
        """The number of elements, None where a size is unknown."""
        return math.prod(map(int, self.dims or [])) if self.is_fully_defined() else None

    def is_compatible_with(self, other: Any) -> bool:
        """Whether some full shape is both this and `other`."""
        theirs = TensorShape(other)
        if self.dims is None or theirs.dims is None:
            return True
        return len(self.dims) == len(theirs.dims) and all(
            a.value is None or b.value is None or a == b for a, b in zip(self.dims, theirs.dims, strict=True)
        )

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise a ValueError, with TensorFlow's text, where no full shape is both this and `other`."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible")

    def merge_with(self, other: Any) -> TensorShape:
        """Give what this and `other` say of one shape.

        Raises:
            ValueError: If they are not compatible.
        """
        theirs = TensorShape(other)
        self.assert_is_compatible_with(theirs)
        if self.dims is None or theirs.dims is None:
            return theirs if self.dims is None else self
        return TensorShape([b if a.value is None else a for a, b in zip(self.dims, theirs.dims, strict=True)])

    def with_rank(self, rank: int) -> TensorShape:
        """Give the shape as one of `rank`.

        Raises:
            ValueError: If it has another.
        """
        if self.ndims not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")
        return TensorShape([None] * rank) if self.dims is None else self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Give the shape back.

        Raises:
            ValueError: If it is known to have fewer dimensions than `rank`.
        """
        if self.ndims is not None and self.ndims < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def concatenate(self, other: Any) -> TensorShape:
        """Give this shape's dimensions and then those of `other`."""
        theirs = TensorShape(other)
        return TensorShape(None if self.dims is None or theirs.dims is None else [*self.dims, *theirs.dims])

    def __iter__(self) -> Iterator[Dimension]:
        if self.dims is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return iter(self.dims)

    def __len__(self) -> int:
        if self.dims is None:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return len(self.dims)

    def __getitem__(self, key: Any) -> Any:
        if self.dims is None:
            return TensorShape(None) if isinstance(key, slice) else Dimension(None)
        return TensorShape(self.dims[key]) if isinstance(key, slice) else self.dims[key]

    def __bool__(self) -> bool:
        return self.dims is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TensorShape, list, tuple, int, np.integer, Dimension, type(None))):
            return NotImplemented
        return self.dims == TensorShape(other).dims

    def __hash__(self) -> int:
        return hash(None if self.dims is None else tuple(self.dims))

    def __repr__(self) -> str:
        if self.dims is None:
            return "<unknown>"
        return "(" + ", ".join(map(repr, self.dims)) + ("," if len(self.dims) == 1 else "") + ")"

"""What a shard holds of open aggregates: the sums of the gradients that were contributed, until the mean is applied.

A dense gradient is added to those before it; the rows of sparse ones are kept side by side, and merged when they are
applied. Contributions are added in the order of their entries, so every replay gives the same bits.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.ps.store.ignoring import ignoring_float_errors
from globalstep.wire.declarations import Op, OpKind

__all__ = ["Contributions"]

Array = npt.NDArray[Any]


class _Key(NamedTuple):
    """What gradients have in common that are added up."""

    kind: OpKind
    variable: str
    optimizer: str
    after_increment: bool
    source: str


@dataclass(slots=True)
class _Sum:
    """What was contributed by one op of the pushes."""

    #: As it came first; without its numbers.
    op: Op
    dense: Array | None = None
    rows: list[Array] = field(default_factory=list[Array])
    ids: list[Array] = field(default_factory=list[Array])

    def add(self, op: Op) -> None:
        """Add an op's numbers. They are copied: their memory is a message's."""
        if op.kind is not OpKind.APPLY:
            # No gradient, so there is no mean of it: it is done once, as the last contribution has it.
            indices = None if op.indices is None else op.indices.copy()
            self.op = replace(op, value=None if op.value is None else op.value.copy(), indices=indices)
        elif op.value is None:
            return
        elif op.indices is not None:
            self.rows.append(op.value.copy())
            self.ids.append(op.indices.copy())
        elif self.dense is None:
            self.dense = op.value.copy()
        else:
            self.dense += op.value

    def copied(self) -> list[Op]:
        """Give ops that make the same sum when they are added."""
        if not self.rows and self.dense is None:
            return [self.op]
        found = [replace(self.op, value=self.dense.copy())] if self.dense is not None else []
        return found + [
            replace(self.op, value=rows, indices=ids) for rows, ids in zip(self.rows, self.ids, strict=True)
        ]

    def mean(self, contributions: int) -> Op:
        """Give the op of their mean; what came without numbers stays as it is."""
        if self.dense is not None:
            for rows, ids in zip(self.rows, self.ids, strict=True):
                np.add.at(self.dense, ids, rows)
            return replace(self.op, value=_divided(self.dense, contributions))
        if self.rows:
            rows = _divided(np.concatenate(self.rows), contributions)
            return replace(self.op, value=rows, indices=np.concatenate(self.ids))
        return self.op


def _divided(total: Array, by: int) -> Array:
    return np.asarray(total / total.dtype.type(by)).astype(total.dtype, copy=False)


class Contributions:
    """What a shard holds of each step's open aggregate."""

    def __init__(self) -> None:
        self._open: dict[str, dict[_Key, _Sum]] = {}

    def add(self, step: str, ops: Iterable[Op], first: bool) -> None:
        """Add a contribution.

        Args:
            step: Whose aggregate it belongs to.
            ops: Its changes.
            first: It is the aggregate's first: what is held of the step was for another value of it.
        """
        if first:
            self._open.pop(step, None)
        sums = self._open.setdefault(step, {})
        for op in ops:
            key = _Key(op.kind, op.variable, op.optimizer, op.after_increment, op.source)
            if key not in sums:
                sums[key] = _Sum(replace(op, value=None, indices=None, unique=False))
            ignoring_float_errors(sums[key].add, op)

    def close(self, step: str, contributions: int) -> list[Op]:
        """Give the changes that an aggregate makes: means, each Variable's in one op. It is not held any more."""
        sums = self._open.pop(step, {})
        return [ignoring_float_errors(item.mean, contributions) for item in sums.values()]

    def optimizers(self, step: str) -> set[tuple[str, bool]]:
        """Give the optimizers that what is held of a step applies, and whether after the increment."""
        held = self._open.get(step, {})
        return {(key.optimizer, key.after_increment) for key in held if key.kind is OpKind.APPLY}

    def image(self) -> Mapping[str, Sequence[Op]]:
        """Copy what is held: step -> ops that make it when they are added."""
        return {step: [op for item in sums.values() for op in item.copied()] for step, sums in self._open.items()}

    def __bool__(self) -> bool:
        return bool(self._open)

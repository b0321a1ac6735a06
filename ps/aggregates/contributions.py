"""A shard's open aggregates: the sums of the gradients that were contributed, until the mean is applied.

A dense gradient is added to those before it; the rows of sparse ones are kept side by side, and merged when they have
become twice as many, and when they are applied. Contributions are added in the order of their entries, so every replay
gives the same bits; units of work in the order of their numbers, so every order of arrival does, too. A unit that comes
before its turn is kept apart.
As long as all contributions are laid out alike, their data is added as it lies, run by run; the last one is added by
the pass that applies the mean.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.ps.budget import Account, Budget, Kind, MemoryClaim
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.store.arena import ApplySpan, Total
from globalstep.ps.store.finite import ignoring_float_errors
from globalstep.wire.declarations import Op, OpKind
from globalstep.wire.sparse_rows import merge_rows

Array = npt.NDArray[Any]

#: Rows of fewer bytes are not merged before they are applied.
_MERGED_BYTES = 1 << 20
#: Kinds of dtypes whose rows can be merged.
_MERGED_KINDS = "fiu"
#: What a sum takes besides its numbers.
_BESIDES_BYTES = 512


class _Key(NamedTuple):
    """What gradients that are added up have in common."""

    kind: OpKind
    variable: str
    optimizer: str
    after_increment: bool
    source: str


@dataclass(slots=True)
class _Sum:
    """The sum of what one op of the pushes contributes."""

    #: As it came first; without its numbers.
    op: Op
    dense: Array | None = None
    rows: list[Array] = field(default_factory=list)
    ids: list[Array] = field(default_factory=list)
    #: Bytes of the rows with their ids, and what they were when those of one id were merged last.
    rows_bytes: int = 0
    merged_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        own = self.dense if self.dense is not None else self.op.value
        return _BESIDES_BYTES + self.rows_bytes + (0 if own is None else own.nbytes)

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
            self.rows_bytes += op.value.nbytes + op.indices.nbytes
            # Two bytes' sums are rounded each time they are merged, as those of dense gradients are with each that is
            # added; those of more are the same whenever that is done.
            if op.value.itemsize <= 2 or self.rows_bytes > 2 * self.merged_bytes + _MERGED_BYTES:
                self._merge()
        elif self.dense is None:
            self.dense = op.value.copy()
        else:
            self.dense += op.value

    def _merge(self) -> None:
        """Add up the rows of each id, in the order in which they came."""
        rows, ids = np.concatenate(self.rows), np.concatenate(self.ids).astype(np.int64, copy=False)
        if rows.dtype.kind in _MERGED_KINDS and rows.size:
            ids, merged = merge_rows(ids, rows.reshape(len(ids), -1))
            rows = merged.reshape(len(ids), *rows.shape[1:])
        self.rows, self.ids = [rows], [ids]
        self.rows_bytes = self.merged_bytes = rows.nbytes + ids.nbytes

    def copied(self) -> list[Op]:
        """Give ops that make the same sum when they are added."""
        if not self.rows and self.dense is None:
            return [self.op]
        dense = [replace(self.op, value=self.dense.copy())] if self.dense is not None else []
        return dense + [
            replace(self.op, value=rows, indices=ids) for rows, ids in zip(self.rows, self.ids, strict=True)
        ]

    def mean(self, contributions: int) -> Op:
        """Give the op of their mean; what came without numbers stays as it is."""
        if self.rows:
            self._merge()
        if self.dense is not None:
            for rows, ids in zip(self.rows, self.ids, strict=True):
                np.add.at(self.dense, ids, rows)
            return replace(self.op, value=_divided(self.dense, contributions))
        if self.rows:
            return replace(self.op, value=_divided(self.rows[0], contributions), indices=self.ids[0])
        return self.op


def _divided(total: Array, by: int) -> Array:
    return np.asarray(total / total.dtype.type(by)).astype(total.dtype, copy=False)


def _add_runs(runs: Iterable[ApplySpan], total: memoryview, data: memoryview) -> None:
    for run in runs:
        held = run.gradients(total)
        held += run.gradients(data)


def _are_alike(one: Layout, other: Layout) -> bool:
    """Whether contributions of two layouts can be added as they lie."""
    if one is other:
        return True
    if one.data_bytes != other.data_bytes or one.places != other.places:
        return False
    other.known_places = one.places  # quickly compared next time
    return True


class HeldOps(NamedTuple):
    """Ops that make a part of what is held of a step, when they are added."""

    step: str
    ops: Sequence[Op]
    #: Units of work, from the first on, whose sum they are.
    folded: int = 0
    #: Or the unit that they are, which waits for those before it.
    unit: int = 0


class _Alike(NamedTuple):
    """The sum of contributions that are laid out alike."""

    layout: Layout
    #: Laid out as their data.
    data: npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Held:
    """The contributions to one step that are held."""

    #: Where all contributions are laid out alike: all that is held.
    alike: _Alike | None = None
    sums: dict[_Key, _Sum] = field(default_factory=dict)
    #: Units of work that are in the sums: those from the first to this one.
    folded: int = 0
    #: Units that came before their turn, and what they take.
    waiting: dict[int, Sequence[Op]] = field(default_factory=dict)
    waiting_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What is held."""
        alike = self.alike.data.nbytes if self.alike is not None else 0
        return alike + self.waiting_bytes + sum(item.nbytes for item in self.sums.values())

    def add(self, ops: Iterable[Op], unit: int) -> None:
        """Add a contribution, or keep a unit until those before it are in."""
        self.split()
        if unit > self.folded + 1:
            copies = self.waiting[unit] = [_copied(op) for op in ops]
            self.waiting_bytes += _taken_by(copies)
            return
        self._fold(ops)
        if unit:
            self.folded = unit
            while (following := self.waiting.pop(self.folded + 1, None)) is not None:
                self._fold(following)
                self.waiting_bytes -= _taken_by(following)
                self.folded += 1

    def has_sums_of(self, ops: Iterable[Op]) -> bool:
        """Whether changes are added to sums, each the only one of its Variable: so it takes what that does at most."""
        sums = self.sums if self.alike is None else map(_key, self.alike.layout.bind(self.alike.data.data))
        keys = {key.variable: key for key in sums}
        return len(keys) == len(self.sums or keys) and all(keys.get(op.variable) == _key(op) for op in ops)

    def split(self) -> None:
        """Hold each op's sum by itself: views of the data that was added up."""
        if self.alike is not None:
            (layout, data), self.alike = self.alike, None
            for op in layout.bind(data.data):
                self.sums[_key(op)] = _Sum(replace(op, value=None), op.value)

    def _fold(self, ops: Iterable[Op]) -> None:
        for op in ops:
            key = _key(op)
            if key not in self.sums:
                self.sums[key] = _Sum(replace(op, value=None, indices=None, unique=False))
            ignoring_float_errors.call(self.sums[key].add, op)


def _key(op: Op) -> _Key:
    return _Key(op.kind, op.variable, op.optimizer, op.after_increment, op.source)


def _taken_by(ops: Iterable[Op]) -> int:
    """Give the bytes that ops take which are kept."""
    arrays = [array for op in ops for array in (op.value, op.indices) if array is not None]
    return sum(_BESIDES_BYTES + array.nbytes for array in arrays) + _BESIDES_BYTES


def _copied(op: Op) -> Op:
    indices = None if op.indices is None else op.indices.copy()
    return replace(op, value=None if op.value is None else op.value.copy(), indices=indices)


class Contributions:
    """A shard's part of each step's open aggregate.

    >>> held, parts = Contributions(), [Op(OpKind.APPLY, "w", np.float32([x])) for x in (1e8, 1.0, -1e8)]
    >>> for unit in (3, 1, 2):
    ...     held.add("step", [parts[unit - 1]], unit == 3, unit)
    >>> held.close("step", 1)[0].value.tolist()  # 1e8 and 1 first
    [0.0]
    """

    def __init__(self) -> None:
        self._open: dict[str, _Held] = {}
        # Memory of a sum that has been applied: the next one's.
        self._spare: npt.NDArray[np.uint8] | None = None
        #: What was claimed for it: bytes beyond those that the values take.
        self.claimed_bytes = 0
        self._claim: MemoryClaim | None = None

    def claim(self, budget: Budget, value_bytes: int) -> None:
        """Claim what is held now, beyond what the values take."""
        nbytes = max(self.nbytes - value_bytes, 0)
        if nbytes != self.claimed_bytes:
            self.claimed_bytes, account = nbytes, Account(budget, "contributors")
            self._claim = budget.try_claim(Kind.CONTRIBUTION, account, nbytes, forced=True)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        return sum(held.nbytes for held in self._open.values())

    def add_alike(self, step: str, layout: Layout, runs: Sequence[ApplySpan], data: memoryview, first: bool) -> bool:
        """Add a contribution as it lies, if those before it are laid out alike.

        Args:
            step: Whose aggregate it belongs to.
            layout: Its layout: dense gradients.
            runs: Those of the layout's plan, which are all of its changes.
            data: Its numbers.
            first: It is the aggregate's first.

        Returns:
            Whether it was added; else `add` is to do it.
        """
        held = self._open.get(step)
        if first or held is None:
            if layout.repeats:
                return False
            total, self._spare = self._spare, None
            if total is None or total.nbytes != data.nbytes:
                total = np.empty(data.nbytes, np.uint8)
            np.copyto(total, np.frombuffer(data, np.uint8))
            self._open[step] = _Held(_Alike(layout, total))
            return True
        if held.alike is None or not _are_alike(held.alike.layout, layout):
            return False
        ignoring_float_errors.call(_add_runs, runs, held.alike.data.data, data)
        return True

    def close_alike(self, step: str, layout: Layout, contributions: int) -> Total | None:
        """Give the sum of what is held, for the last contribution to be added to; it is not held any more.

        Args:
            step: The step of the contributions.
            layout: Of the last contribution.
            contributions: How many there are with it.

        Returns:
            The sum, which is the caller's until `release`; None where not all are laid out alike: nothing is changed.
        """
        held = self._open.get(step)
        if held is None or held.alike is None or not _are_alike(held.alike.layout, layout):
            return None
        del self._open[step]
        return Total(held.alike.data.data, contributions)

    def release(self, total: Total) -> None:
        """Take back the memory of a sum that has been applied."""
        self._spare = np.frombuffer(total.data, np.uint8)

    def add(self, step: str, ops: Iterable[Op], first: bool, unit: int = 0) -> None:
        """Add a contribution.

        Args:
            step: Whose aggregate it belongs to.
            ops: Its changes.
            first: It is the aggregate's first: what is held of the step was for another value of it.
            unit: Which unit of work it is, from 1; 0 for none. Each comes once.
        """
        if first:
            self._open.pop(step, None)
        self._open.setdefault(step, _Held()).add(ops, unit)

    def close(self, step: str, contributions: int) -> list[Op]:
        """Give the changes that an aggregate makes: means, each Variable's in one op. It is not held any more."""
        held = self._open.pop(step, None)
        if held is not None:
            held.split()
        return [ignoring_float_errors.call(item.mean, contributions) for item in held.sums.values()] if held else []

    def has_room(self, step: str, unit: int, parts: PushParts, most_bytes: int) -> bool:
        """Whether one more may be kept, where all may have claimed `most_bytes`.

        Beyond that only what is added to the sums that are there, as the next unit is, which frees memory; or the first
        unit, which may be that of another value of the step.
        """
        if unit == 1 or self.claimed_bytes <= most_bytes:
            return True
        held = self._open.get(step)
        return held is not None and unit in (0, held.folded + 1) and held.has_sums_of(parts.bound_ops())

    def optimizers(self, step: str) -> Set[tuple[str, bool]]:
        """Give the optimizers that what is held of a step applies, and whether after the increment."""
        held = self._open.get(step)
        if held is None:
            return frozenset()
        if held.alike is not None:
            return held.alike.layout.appliers
        applied = {(key.optimizer, key.after_increment) for key in held.sums if key.kind is OpKind.APPLY}
        waiting = (op for ops in held.waiting.values() for op in ops if op.kind is OpKind.APPLY)
        return applied | {(op.optimizer, op.after_increment) for op in waiting}

    def image(self) -> list[HeldOps]:
        """Copy what is held."""
        image = []
        for step, held in self._open.items():
            held.split()
            image.append(HeldOps(step, [op for item in held.sums.values() for op in item.copied()], held.folded))
            image += [HeldOps(step, ops, 0, unit) for unit, ops in sorted(held.waiting.items())]
        return image

    def resume(self, image: Iterable[HeldOps]) -> None:
        """Hold what an image was taken of."""
        for step, ops, folded, unit in image:
            self.add(step, ops, first=not unit, unit=unit)
            if not unit:
                self._open[step].folded = folded

    def __bool__(self) -> bool:
        return bool(self._open)

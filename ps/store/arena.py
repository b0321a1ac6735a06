"""Arenas of a shard's arrays, which make a push of many of them one kernel call.

The Variables of one declaration that have the same dtype and optimizer lie in one arena, one behind the
other, each from a multiple of 8 bytes; their slots lie in parallel arenas. The tensors of a push lie in its
message by the same rule. So a push of all of them is one run: one kernel call over the received bytes,
whatever the number of Variables, and a read of all of them is one copy. The padding between Variables is
zero on both sides, and every elementwise rule leaves zero as it is, or changes bytes that are never read.

Layer: ps. Threads: functions are pure; the arrays are the store's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.ps.budget import ReplyBuffer
from globalstep.ps.store.cores import ONE_CORE, WORTH_BYTES, Cores
from globalstep.rules.rule import BoundRule, Rule, check_alike
from globalstep.runtime.memory import address_of
from globalstep.wire.declarations import ALIGNMENT, Op, OptimizerDecl, VariableDecl, padded

Array = npt.NDArray[Any]

#: Elements that are changed at a time where their values are to be copied: few enough to stay in the cache.
_BLOCK = 1 << 16
#: Elements that one thread changes before it asks for more, where several share a run.
_PIECE = 1 << 19


@dataclass(slots=True)
class Held:
    """One Variable and its place in an arena."""

    decl: VariableDecl
    #: The whole arena, flat, and where this Variable begins in it (elements).
    arena: Array
    start: int
    #: Views of the Variable's own elements, flat and shaped.
    flat: Array
    shaped: Array
    initialized: bool = False

    @property
    def end(self) -> int:
        """One past the last element, with the padding that follows it."""
        return self.start + padded_count(self.flat.size, self.flat.dtype)


@dataclass(slots=True)
class Total:
    """The sum of earlier contributions, which is added to a push's gradients, so that the mean of all is applied."""

    #: Laid out as the push's data.
    data: memoryview
    #: How many there are, with the push.
    contributions: int


@dataclass(slots=True)
class ApplySpan:
    """Dense gradients of neighbouring Variables, to be applied in one kernel call.

    `plan_runs` has seen that its values and slots are alike; so are their parts, and the gradient, which is made so.
    """

    rule: Rule
    key: tuple[str, bool]
    values: Array
    slots: tuple[Array, ...]
    #: Where the gradients lie in the push's data: first byte, elements.
    offset: int
    count: int
    #: Whether the push reads some of the values, so that they are to take the gradients' place afterwards.
    leaves_values: bool = False
    #: Applies the rule to arrays of this dtype.
    bound: BoundRule = field(init=False)

    def __post_init__(self) -> None:
        self.bound = self.rule.bound(self.values.dtype)

    def gradients(self, data: memoryview) -> Array:
        """Give the gradients in the data of a push that is laid out alike, flat."""
        return np.frombuffer(data, self.values.dtype, self.count, self.offset)

    def apply(
        self, numbers: tuple[Any, ...], data: memoryview, cores: Cores = ONE_CORE, total: Total | None = None
    ) -> None:
        """Make the changes; where `leaves_values`, the new values take the gradients' place in the data.

        So the values are copied while they are still in the processor's cache, and into memory that is there
        already. Data that may not be written to stays as it is.

        Args:
            numbers: What `bound` makes of the rule's hyper-parameters.
            data: The push's.
            cores: Share the work, where it is worth it and the rule allows it.
            total: What the gradients are added to, while it is in the cache; it is used up.
        """
        grad = np.frombuffer(data, self.values.dtype, self.count, self.offset)
        leaves = self.leaves_values and not data.readonly
        touched = (2 + len(self.slots)) * grad.nbytes
        piece = self.count if cores.threads == 1 or touched < WORTH_BYTES else _PIECE
        if self.count <= min(piece, 2 * _BLOCK) or not self.rule.elementwise:
            applied = grad
            if total is not None:
                applied = _mean(self.gradients(total.data), grad, total.contributions)
            self.bound.kernel(self.values, *self.slots, applied, *numbers)
            if leaves:
                np.copyto(grad, self.values)
            return
        block = _BLOCK if leaves or total is not None else piece
        work = _Work(self, grad, numbers, leaves)
        if total is not None:
            work.total, work.contributions = self.gradients(total.data), total.contributions

        def share(number: int) -> None:
            end = min((number + 1) * piece, self.count)
            for at in range(number * piece, end, block):
                work.do(slice(at, min(at + block, end)))

        if piece < self.count:
            cores.share(share, -(-self.count // piece))
        else:
            share(0)


@dataclass(slots=True)
class _Work:
    """The work on the elements of a run, some at a time."""

    span: ApplySpan
    grad: Array
    numbers: tuple[Any, ...]
    #: Whether the new values take the gradients' place.
    leaves: bool
    #: What the gradients are added to, and how many there are then; None for nothing.
    total: Array | None = None
    contributions: int = 1

    def do(self, part: slice) -> None:
        """Do it to the elements of a part."""
        values, grad = self.span.values[part], self.grad[part]
        applied = grad
        if self.total is not None:
            applied = _mean(self.total[part], grad, self.contributions)
        self.span.bound.kernel(values, *[slot[part] for slot in self.span.slots], applied, *self.numbers)
        if self.leaves:
            grad[...] = values


def _mean(total: Array, grad: Array, contributions: int) -> Array:
    """Add a gradient to those before it, and give the mean of all, in the same memory."""
    total += grad
    total /= total.dtype.type(contributions)
    return total


@dataclass(slots=True)
class ReadSpan:
    """Neighbouring Variables that a push reads."""

    #: Their elements in the arena, flat, padding included.
    view: Array
    #: Where in the push's data a run leaves these bytes; None where none does.
    left_at: int | None


@dataclass(slots=True)
class PushPlan:
    """The plan by which pushes of a layout are applied and read: checked once, for one version of the store."""

    version: int
    steps: list[ApplySpan | Op]
    #: The reads, in order.
    reads: list[ReadSpan]
    #: (dtype, shape, first byte) of each read in the bytes of all.
    places: list[tuple[str, tuple[int, ...], int]]
    #: Of each of the reads, its elements.
    views: Sequence[Array] = ()
    #: The changes, where all of them are runs: so such pushes can be added up; else none.
    runs: Sequence[ApplySpan] = ()
    #: Bytes of all that is read.
    read_bytes: int = 0
    #: Of the reads: what does not lie in the push's data once it is applied, and its bytes.
    copied: Sequence[ReadSpan] = ()
    copied_bytes: int = 0

    def __post_init__(self) -> None:
        runs = [step for step in self.steps if isinstance(step, ApplySpan)]
        self.runs = runs if len(runs) == len(self.steps) else ()
        self.views = [piece.view for piece in self.reads]
        self.read_bytes = sum(view.nbytes for view in self.views)
        self.copied = [piece for piece in self.reads if piece.left_at is None]
        self.copied_bytes = sum(piece.view.nbytes for piece in self.copied)


def lay_out(fresh: Sequence[VariableDecl], optimizers: Iterable[OptimizerDecl]) -> dict[str, Held]:
    """Give new Variables their places: neighbours share dtype and optimizer, slots run parallel.

    Args:
        fresh: Variables that have no place yet, in order of declaration.
        optimizers: All that are declared.

    Returns:
        Name -> the Variable, zeros and not initialized.
    """
    held: dict[str, Held] = {}
    trained_by: dict[str, str] = {}
    for optimizer in optimizers:
        for name in optimizer.slots:
            trained_by.setdefault(name, optimizer.name)
    order = {decl.name: at for at, decl in enumerate(fresh)}
    groups: dict[tuple[str, str, str], list[VariableDecl]] = {}
    for decl in fresh:
        group = decl.optimizer or trained_by.get(decl.name, "")
        groups.setdefault((decl.dtype, group, decl.slot), []).append(decl)
    for (dtype_name, _, _), decls in groups.items():
        dtype = np.dtype(dtype_name)
        # A slot stands where its Variable stands in the Variable's own arena.
        decls.sort(key=lambda decl: order.get(decl.primary or decl.name, 0))
        counts = [padded_count(int(np.prod(decl.shape, dtype=np.int64)), dtype) for decl in decls]
        arena = np.zeros(sum(counts), dtype)
        start = 0
        for decl, count in zip(decls, counts, strict=True):
            flat = arena[start : start + int(np.prod(decl.shape, dtype=np.int64))]
            held[decl.name] = Held(decl, arena, start, flat, flat.reshape(decl.shape))
            start += count
    return held


def plan_runs(
    ops: Sequence[Op],
    offsets: Sequence[int],
    held_by_name: Mapping[str, Held],
    optimizer: Callable[[str], tuple[OptimizerDecl, Rule]],
) -> list[ApplySpan]:
    """Split dense gradients into runs of neighbours, each one kernel call.

    Args:
        ops: APPLYs of dense gradients.
        offsets: First byte of each one's gradient in the push's data.
        held_by_name: The Variables.
        optimizer: Gives an optimizer's declaration and rule.

    Returns:
        The runs, in order.

    Raises:
        InternalError: If a kernel could not work on one of them.
    """
    runs: list[ApplySpan] = []
    previous: tuple[Held, list[Held], int] | None = None
    for op, offset in zip(ops, offsets, strict=True):
        held = held_by_name[op.variable]
        decl, rule = optimizer(op.optimizer)
        slots = [held_by_name[name] for name in decl.slots[op.variable]]
        key = (op.optimizer, op.after_increment)
        count = held.flat.size
        joins = (
            previous is not None
            and rule.elementwise
            and runs[-1].key == key
            and previous[2] == offset
            and all(
                new.arena is old.arena and new.start == old.end
                for new, old in zip([held, *slots], [previous[0], *previous[1]], strict=True)
            )
        )
        if joins:
            run = runs[-1]
            begin = offset - run.offset
            total = begin // held.flat.itemsize + count
            run.values = _widened(held, total, count)
            run.slots = tuple(_widened(slot, total, count) for slot in slots)
            run.count = total
        else:
            runs.append(ApplySpan(rule, key, held.flat, tuple(slot.flat for slot in slots), offset, count))
        padded = padded_count(count, held.flat.dtype) * held.flat.itemsize
        previous = (held, slots, offset + padded)
    for run in runs:
        check_alike(run.values, *run.slots, shape=(run.count,))
    return runs


def plan_reads(reads: Sequence[Held], steps: Sequence[ApplySpan | Op]) -> list[ReadSpan]:
    """Find out where the values that a push reads will be after it.

    Args:
        reads: The Variables, in order.
        steps: The push's changes; runs that are to leave values get that as an argument.

    Returns:
        Pieces of arenas, in order.
    """
    ranges: list[tuple[Array, int, int]] = []
    for held in reads:
        if ranges and ranges[-1][0] is held.arena and ranges[-1][2] == held.start:
            ranges[-1] = (held.arena, ranges[-1][1], held.end)
        else:
            ranges.append((held.arena, held.start, held.end))
    pieces = [ReadSpan(arena[start:end], None) for arena, start, end in ranges]
    for piece in pieces:
        begin, end = address_of(piece.view), address_of(piece.view) + piece.view.nbytes
        touching = [
            step
            for step in steps
            if isinstance(step, Op) or (address_of(step.values) < end and begin < address_of(step.values) + _span(step))
        ]
        # Only what a single run changes, and changes as a whole, is as that run leaves it.
        if len(touching) == 1 and isinstance(run := touching[0], ApplySpan):
            start = address_of(run.values)
            if start <= begin and end <= start + _span(run):
                piece.left_at = run.offset + begin - start
                run.leaves_values = True
    return pieces


def _span(run: ApplySpan) -> int:
    """Bytes of a run's values, with the padding that follows them."""
    return padded_count(run.count, run.values.dtype) * run.values.itemsize


def padded_count(count: int, dtype: np.dtype[Any]) -> int:
    """Elements that `count` elements take up when the next tensor starts at a multiple of 8 bytes."""
    per = max(1, ALIGNMENT // dtype.itemsize)
    return -(-count // per) * per


def _widened(held: Held, total: int, count: int) -> Array:
    """The `total` elements of the arena that end with this Variable's `count`."""
    end = held.start + count
    return held.arena[end - total : end]


def copies(wanted: Sequence[tuple[Array, Array | None]], buffer: ReplyBuffer | None = None) -> list[Array]:
    """Copy arrays, or rows of them.

    Args:
        wanted: Each array with the rows that are wanted of it, int64 [n] and within it; None for all of it.
        buffer: Where to put them, one behind the other, each from a multiple of 8 bytes.

    Returns:
        A copy each: of the array's shape, or [n, ...].
    """
    places: list[tuple[tuple[int, ...], int]] = []
    memory, at = None, 0
    if buffer is not None:
        for source, rows in wanted:
            shape = source.shape if rows is None else (*rows.shape, *source.shape[1:])
            places.append((shape, at))
            at += padded(math.prod(shape) * source.itemsize)
        memory = buffer.take(at)
    if memory is None:
        return [source.copy() if rows is None else np.take(source, rows, axis=0) for source, rows in wanted]
    out: list[Array] = []
    for (source, rows), (shape, at) in zip(wanted, places, strict=True):
        place: Array = np.ndarray(shape, source.dtype, memory.data, at)
        if rows is None:
            np.copyto(place, source)
        else:
            # Clipping changes nothing, since all rows are there; raising would make numpy copy twice.
            np.take(source, rows, axis=0, out=place, mode="clip")
        out.append(place)
    return out

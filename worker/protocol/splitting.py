"""Variables that are split by rows over several PS tasks: what a program names as one, the PS hold as parts.

A part is a Variable like any other to its PS task, named "whole#K", which no program can name. Here one becomes
the other: declarations, changes and reads of the whole become those of its parts, and values are put together.
Pure, but for the memory that values are put together in.

Layer: worker. Threads: a Splitter belongs to one client, whose lock it is used under.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import Op, OptimizerDecl, Push, Read, RowRange, VariableDecl
from globalstep.wire.draws import Draw

Array = npt.NDArray[Any]
#: Takes the values of the parts' reads, in order, and gives that of the whole's.
Join = Callable[[Iterator[Array]], Array]
#: The places of a part's rows among all: a mask, or a span where they lie side by side.
_Mine = npt.NDArray[np.bool_] | slice


def part_name(whole: str, number: int) -> str:
    """Give the name of a part.

    >>> part_name("embedding", 1)
    'embedding#1'
    """
    return f"{whole}#{number}"


def whole_name(stored: str) -> str:
    """Give the name that a program knows a stored Variable by.

    >>> whole_name("embedding#1"), whole_name("bias")
    ('embedding', 'bias')
    """
    return stored.partition("#")[0]


def split_declaration(decl: VariableDecl) -> list[VariableDecl]:
    """Give the declarations that PS tasks get: the Variable's own, or its parts'.

    >>> whole = VariableDecl("w", "float32", (5, 2), parts=(RowRange(0, 0, 2), RowRange(1, 2, 5)))
    >>> [(part.name, part.shape, part.shard) for part in split_declaration(whole)]
    [('w#0', (2, 2), 0), ('w#1', (3, 2), 1)]
    """
    return [
        replace(
            decl,
            name=part_name(decl.name, number),
            shape=(rows.end - rows.first, *decl.shape[1:]),
            shard=rows.shard,
            primary=part_name(decl.primary, number) if decl.primary else "",
            parts=(),
            whole=decl.name,
            first_row=rows.first,
            whole_rows=decl.shape[0],
        )
        for number, rows in enumerate(decl.parts)
    ] or [decl]


def split_optimizer(decl: OptimizerDecl, split: Callable[[str], int]) -> OptimizerDecl:
    """Give an optimizer's declaration in terms of parts.

    Args:
        decl: As the program means it.
        split: Gives the number of a Variable's parts; 0 for one that is not split.
    """
    if not any(map(split, decl.slots)):
        return decl
    slots: dict[str, tuple[str, ...]] = {}
    for name, its_slots in decl.slots.items():
        for number in range(split(name)):
            slots[part_name(name, number)] = tuple(part_name(slot, number) for slot in its_slots)
        if not split(name):
            slots[name] = its_slots
    return replace(decl, slots=slots)


@dataclass(slots=True)
class _Gathering:
    """Parts of a whole that a client hears of, one PS task after another."""

    decl: VariableDecl
    ranges: list[RowRange]


class Splitter:
    """What a client knows of split Variables, and what it does about them."""

    def __init__(self) -> None:
        #: Split Variable -> its rows, in order. Changed by `learn` and `clear` alone.
        self.wholes: dict[str, tuple[RowRange, ...]] = {}
        self._gathering: dict[str, _Gathering] = {}
        self._memory = MemoryPool()

    def clear(self) -> None:
        """Forget all: the client is in another incarnation."""
        self.wholes.clear()
        self._gathering.clear()

    def parts(self, name: str) -> tuple[RowRange, ...]:
        """Give the rows of a split Variable; nothing for any other."""
        return self.wholes.get(name, ())

    def learn(self, decl: VariableDecl) -> VariableDecl | None:
        """Take note of a declaration as a PS task has it.

        Args:
            decl: Its own name for it; a part names its whole.

        Returns:
            The whole's declaration once all of its parts are known; None for what is no part, and before that.
        """
        if not decl.whole:
            return None
        found = self._gathering.setdefault(decl.whole, _Gathering(decl, []))
        rows = RowRange(decl.shard, decl.first_row, decl.first_row + decl.shape[0])
        if rows not in found.ranges:
            found.ranges.append(rows)
        if sum(rows.end - rows.first for rows in found.ranges) < decl.whole_rows:
            return None
        ranges = tuple(sorted(found.ranges, key=lambda rows: rows.first))
        self.wholes[decl.whole] = ranges
        return replace(
            decl,
            name=decl.whole,
            shape=(decl.whole_rows, *decl.shape[1:]),
            shard=ranges[0].shard,
            primary=whole_name(decl.primary),
            parts=ranges,
            whole="",
            first_row=0,
            whole_rows=0,
        )

    def split_push(self, push: Push) -> tuple[Push, list[Join]]:
        """Give a push in terms of parts, and for each of its reads how to put its value together."""
        ops = [part for op in push.ops for part in self._split_op(op)]
        reads, joins = self.split_reads(push.reads)
        stored = push.of_ops(ops, reads)
        if push.layout is not None and stored.has_rows:
            # Rows say which parts have some.
            changed, read = stored.names
            stored.layout = push.layout, tuple(changed), tuple(read)
        return stored, joins

    def _split_op(self, op: Op) -> Iterable[Op]:
        ranges = self.wholes.get(op.variable)
        if ranges is None:
            return (op,)
        return self._split_sparse(op, ranges) if op.indices is not None else self._split_dense(op, ranges)

    def _split_dense(self, op: Op, ranges: Sequence[RowRange]) -> Iterator[Op]:
        # A value of the wrong shape goes as a whole to the first part, which refuses it and says why.
        fits = op.value is None or (op.value.ndim > 0 and op.value.shape[0] == ranges[-1].end)
        for number, rows in enumerate(ranges):
            value = op.value if op.value is None or not fits else op.value[rows.first : rows.end]
            source = part_name(op.source, number) if op.source in self.wholes else op.source
            fill = op.fill.of_part(rows.first) if isinstance(op.fill, Draw) else op.fill
            yield replace(op, variable=part_name(op.variable, number), value=value, fill=fill, source=source)

    def _split_sparse(self, op: Op, ranges: Sequence[RowRange]) -> Iterator[Op]:
        assert op.indices is not None
        if op.value is not None and op.value.shape[:1] != op.indices.shape:
            # As it is to the first part, which refuses it and says why.
            yield replace(op, variable=part_name(op.variable, 0))
            return
        for number, mine in _owned(op.indices, ranges):
            yield replace(
                op,
                variable=part_name(op.variable, number),
                indices=op.indices[mine] - ranges[number].first,
                value=None if op.value is None else op.value[mine],
            )

    def split_reads(self, reads: Sequence[Read]) -> tuple[list[Read], list[Join]]:
        """Give reads in terms of parts, and for each of the given ones how to put its value together."""
        out: list[Read] = []
        joins: list[Join] = []
        for read in reads:
            ranges = self.wholes.get(read.variable)
            if ranges is None:
                out.append(read)
                joins.append(next)
            elif read.indices is None:
                out += [Read(part_name(read.variable, number)) for number in range(len(ranges))]
                joins.append(self._join_dense(len(ranges)))
            else:
                owned = _owned(read.indices, ranges)
                for number, mine in owned:
                    rows = read.indices[mine] - ranges[number].first
                    out.append(Read(part_name(read.variable, number), rows))
                joins.append(self._join_sparse(len(read.indices), [mine for _, mine in owned]))
        return out, joins

    def _join_dense(self, count: int) -> Join:
        def join(values: Iterator[Array]) -> Array:
            found = [next(values) for _ in range(count)]
            shape = (sum(value.shape[0] for value in found), *found[0].shape[1:])
            whole = self._memory.take(sum(value.nbytes for value in found)).view(found[0].dtype).reshape(shape)
            return np.concatenate(found, out=whole)

        return join

    def _join_sparse(self, count: int, owned: Sequence[_Mine]) -> Join:
        def join(values: Iterator[Array]) -> Array:
            found = [next(values) for _ in owned]
            shape = (count, *found[0].shape[1:])
            nbytes = sum(value.nbytes for value in found)
            rows: Array = self._memory.take(nbytes).view(found[0].dtype).reshape(shape)
            for mine, value in zip(owned, found, strict=True):
                rows[mine] = value
            return rows

        return join


def _owned(indices: Array, ranges: Sequence[RowRange]) -> list[tuple[int, _Mine]]:
    """Return the parts that own some of the ids, each with the places of those.

    The first part is always among them, so that a sparse change of no rows still names its Variable. Ids out of range
    are the first part's, which refuses them.
    """
    firsts = [rows.first for rows in ranges[1:]]
    if indices.size and indices[0] >= 0 and indices[-1] < ranges[-1].end and np.all(indices[:-1] <= indices[1:]):
        ends = [0, *np.searchsorted(indices, firsts).tolist(), indices.size]
        spans = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        return [(number, span) for number, span in enumerate(spans) if number == 0 or span.start < span.stop]
    at = np.searchsorted(firsts, indices, side="right")
    at[(indices < 0) | (indices >= ranges[-1].end)] = 0
    masks = [at == number for number in range(len(ranges))]
    return [(number, mask) for number, mask in enumerate(masks) if number == 0 or mask.any()]

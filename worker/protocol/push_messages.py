"""How a client's pushes lie in messages, and what it and the shards remember of those that are all alike.

Layer: worker. Threads: a PushMessages belongs to one PushProtocol, under its owner's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InternalError, OpError
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, OpKind, Push, Read, padded
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.wire_packing import WirePacking

Array = npt.NDArray[Any]
_NBYTES, _DTYPE = attrgetter("nbytes"), attrgetter("dtype")
#: Numbers of fewer bytes are put into one piece, which the transport need not do piece by piece.
_JOINED_BYTES = 1 << 13
#: Layouts that a client knows: a program has a few train ops; those of rows may differ in the shards that they take.
_MOST_SPLITS = 64
#: A value of so many bytes on average is worth no thought beside its copying, which numpy does without the interpreter.
SMALL_BYTES = 1 << 16
#: Of an op: the dtype of its value; the value's shape, or that of a row; the dtype of the rows' ids, None for a whole
#: Variable; whether no id repeats.
_Form = tuple[np.dtype[Any], tuple[int, ...], Any, bool]
_INT32 = np.dtype(np.int32)


class PushMessages:
    """Writes the parts of pushes into messages, and reads the values of the answers.

    Args:
        run: Whose facts it uses; shared with the client.
        wire: How numbers cross the wire.

    Attributes:
        packing: Makes fewer bytes of them.
    """

    def __init__(self, run: JoinedRun, wire: WireOptions) -> None:
        self._run = run
        self.packing = WirePacking(wire)
        # The layout of pushes that are all alike but for their numbers -> what there is to know of it.
        self._splits: dict[object, Split] = {}
        self._layout_numbers = 0

    def start_over(self) -> None:
        """Forget what belonged to another incarnation."""
        self._splits.clear()
        self.packing.start_over()

    def forget(self, layout: object) -> None:
        """Forget a layout: what was wrong with a push may be corrected under the same one."""
        self._splits.pop(layout, None)

    def known(self, push: Push) -> Split | None:
        """Give how pushes like this one divide, if some were made in this incarnation: their names are known, too."""
        split = self._splits.get(push.layout)
        if split is None:
            return None
        if split.named is None:
            return split if split.counts == (len(push.ops), len(push.reads)) else None
        # Which rows it names says which parts of a Variable it changes, and which of its reads are one.
        return split if split.named == push.names else None

    def split(self, push: Push) -> dict[int, Part]:
        """Give each participant of a push that is not `known` its part, in order of shards; remember it."""
        parts: dict[int, Part] = {}
        for at, op in enumerate(push.ops):
            parts.setdefault(self.shard_of(op.variable), Part()).ops.append(at)
        for at, read in enumerate(push.reads):
            parts.setdefault(self.shard_of(read.variable), Part()).reads.append(at)
        for shard in push.beside:
            parts.setdefault(shard, Part())
        parts = dict(sorted(parts.items()))
        named = push.names if push.layout is not None and push.has_rows else None
        if _may_be_remembered(push) and (named is None or self._may_tell_rows(push)):
            by_shard = sorted(range(len(push.reads)), key=lambda at: self.shard_of(push.reads[at].variable))
            read_at = [0] * len(by_shard)
            for place, at in enumerate(by_shard):
                read_at[at] = place
            if len(self._splits) >= _MOST_SPLITS:
                self._splits.clear()
            self._splits[push.layout] = Split(parts, (len(push.ops), len(push.reads)), read_at, named=named)
        else:
            self._splits.pop(push.layout, None)
        return parts

    def _may_tell_rows(self, push: Push) -> bool:
        """Whether this push has a layout of rows that the shards can remember."""
        return not self.packing.active and all(op.value is not None for op in push.ops)

    def shard_of(self, variable: str) -> int:
        """Give the shard that holds a Variable.

        Raises:
            FailedPreconditionError: If none is known to.
        """
        shard = self._run.where.get(variable)
        if shard is None:
            raise FailedPreconditionError(f"Attempting to use uninitialized value {variable}")
        return shard

    def encode(self, message: Any, push: Push, shard: int, part: Part, afresh: bool) -> Sequence[memoryview]:
        """Write a shard's part into a PUSH, STAGE or PULL; gives its bytes.

        A part whose layout the shard knows is only named, unless it is to be sent `afresh`.
        """
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        if known is not None and known.places is not None and not afresh:
            values: list[Any] = push.values if known.sizes else []
            if not known.is_all:
                values = list(map(values.__getitem__, known.order))
            if list(map(_NBYTES, values)) == known.sizes:
                message.layout, message.known_layout = known.number, True
                if not values:
                    return ()
                if known.nbytes < _JOINED_BYTES and not known.is_padded and not self.packing.active:
                    return [memoryview(joined_bytes(values))]
                if known.is_of_many_small and not self.packing.active:
                    whole = self._copied(shard, values, known)
                    if whole is not None:
                        return [whole]
                return [bytes_of(value) for value in values]
        rows = split.rows.get(shard) if split is not None else None
        if rows is not None and rows.is_told and not afresh and (found := rows.sent(push)) is not None:
            message.layout, message.known_layout = rows.number, True
            message.rows.extend(found[0])
            return found[1]
        tensors = TensorWriter()
        order = _in_arena_order(push.ops, part.ops, self._run.where)
        for at in order:
            codec.encode_op(push.ops[at], message.ops.add(), tensors)
        codec.encode_reads(map(push.reads.__getitem__, part.reads), message.reads, tensors)
        if split is not None and split.named is not None and _has_rows(push, part.ops, part.reads):
            if self._may_tell_rows(push):
                if rows is None:
                    self._layout_numbers += 1
                message.layout = rows.number if rows is not None else self._layout_numbers
                split.rows[shard] = KnownRows(message.layout, push, order, part.reads)
        elif split is not None:
            if known is None:
                self._layout_numbers += 1
            message.layout = known.number if known is not None else self._layout_numbers
            valued = [at for at in order if push.ops[at].value is not None]
            # A shard that has staged the push already, as one that it knew, does not need the layout, and answers so.
            places = known.places if known is not None and afresh else None
            sizes = [push.ops[at].value.nbytes for at in valued]  # type: ignore[union-attr]
            nbytes = sum(map(padded, sizes))
            split.known[shard] = KnownLayout(
                message.layout,
                valued,
                sizes,
                nbytes,
                places,
                is_padded=nbytes != sum(sizes),
                lacks_places=True,
                is_all=valued == list(range(len(push.ops))),
            )
        return tensors.pieces

    def _copied(self, shard: int, values: Sequence[Array], known: KnownLayout) -> memoryview | None:
        """Copy a shard's values, one behind the other, to where the PS task reads them.

        Returns:
            All of them; None where the transport has no such place.
        """
        try:
            memory = self._run.transports[shard].buffer(known.nbytes)
        except OpError:
            return None  # the request will say so
        if memory is None:
            return None
        dtypes = set(map(_DTYPE, values))
        if len(dtypes) == 1:
            # numpy copies them all in one call.
            np.concatenate(values, axis=None, out=memory.view(dtypes.pop()))
            return memory.data
        area, at = memory.data, 0
        for value, size in zip(values, known.sizes, strict=True):
            if size:
                area[at : at + size] = bytes_of(value).cast("B")
                at += size
        return area

    def knows_places(self, push: Push, shard: int) -> bool:
        """Whether it is known where values lie in the answers to such pushes."""
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        return known is not None and known.places is not None and not known.lacks_places

    def values(self, push: Push, shard: int, answer: Any, data: memoryview) -> list[Array]:
        """Give the values of a shard's answer; remember where they lie when it says so."""
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        if known is None and split is not None and shard in split.rows:
            split.rows[shard].is_told = True
        if answer.bare:
            if known is None or known.places is None:
                raise InternalError(f"{self._run.transports[shard].label} gave values without saying where they lie.")
            return known.places.arrays(data) if push.reads else []
        if known is not None and (known.places is None or known.lacks_places):
            wanted = sum(self._run.where[read.variable] == shard for read in push.reads)
            # A push that was refused has no values, and says nothing of where they would lie. So has a contribution
            # whose step was not made while its answer waited; but the shard knows the layout then.
            if push.patience_ms or len(answer.values) == wanted:
                tensors = answer.values
                known.places = Places(
                    [np.dtype(tensor.dtype) for tensor in tensors],
                    [tuple(tensor.shape) for tensor in tensors],
                    [tensor.offset for tensor in tensors],
                )
                known.lacks_places = len(tensors) < wanted
        return [codec.decode_tensor(value, data) for value in answer.values]

    def gather(self, push: Push, found: Mapping[int, Sequence[Array]]) -> list[Array]:
        """Put the shards' answers to a push into the order of its reads."""
        split = self._splits.get(push.layout)
        if split is None:
            return self.in_order(push.reads, found)
        values = list(chain.from_iterable(map(found.__getitem__, split.parts)))
        if len(values) != len(split.read_at):
            return self.in_order(push.reads, found)
        return list(map(values.__getitem__, split.read_at))

    def in_order(self, reads: Sequence[Read], found: Mapping[int, Sequence[Array]]) -> list[Array]:
        """Put the shards' answers into the order of the reads."""
        where, out = self._run.where, list[Array]()
        left = {shard: iter(values) for shard, values in found.items()}
        try:
            for read in reads:
                out.append(next(left[where[read.variable]]))
        except (KeyError, StopIteration):
            lacking = reads[len(out)].variable
            label = self._run.transports[where[lacking]].label
            raise InternalError(f"{label} gave no value for {lacking!r}.") from None
        return out


@dataclass(slots=True)
class Part:
    """What one shard gets of a push: positions of its ops, and of its reads."""

    ops: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)


#: From so many arrays on to make them as rows is quicker.
_LONG_RUN = 8


class _Run(NamedTuple):
    """Arrays of one dtype and shape that lie at even distances."""

    length: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    stride: int


class Places:
    """Where arrays lie in one piece of memory.

    Many neighbours that are alike numpy makes as the rows of one array, in a third of the time of one by one.

    Args:
        dtypes: Of each array.
        shapes: Of each.
        offsets: The first byte of each.

    >>> a, b = Places([np.dtype("int8")] * 2, [(2,), ()], [0, 2]).arrays(bytes(range(3)))
    >>> a, b
    (array([0, 1], dtype=int8), array(2, dtype=int8))
    """

    def __init__(
        self, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], offsets: Sequence[int]
    ) -> None:
        self._each = dtypes, shapes, offsets
        self._runs: list[_Run] = []
        for dtype, shape, offset in zip(dtypes, shapes, offsets, strict=True):
            before = self._runs[-1] if self._runs else None
            if before is not None and shape and (before.dtype, before.shape) == (dtype, shape):
                stride = before.stride or offset - before.offset
                if stride > 0 and offset == before.offset + before.length * stride:
                    self._runs[-1] = before._replace(length=before.length + 1, stride=stride)
                    continue
            self._runs.append(_Run(1, dtype, shape, offset, 0))

    def arrays(self, memory: Array | memoryview | bytes) -> list[Array]:
        """Give the arrays that lie there."""
        dtypes, shapes, offsets = self._each
        if _LONG_RUN * len(self._runs) > len(offsets):
            make: Any = np.ndarray
            return list(map(make, shapes, dtypes, repeat(memory), offsets))
        found: list[Array] = []
        for length, dtype, shape, offset, stride in self._runs:
            first: Array = np.ndarray(shape, dtype, memory, offset)
            if length == 1:
                found.append(first)
            else:
                found.extend(np.ndarray((length, *shape), dtype, memory, offset, (stride, *first.strides)))
        return found


@dataclass(slots=True)
class KnownLayout:
    """What one shard and this client both know of pushes that are laid out alike."""

    number: int
    #: Positions, among the push's ops, of those that bring bytes, in the order of the bytes.
    order: list[int]
    #: How many bytes each of these brings.
    sizes: list[int]
    #: Bytes of all, padding included.
    nbytes: int
    #: Where the values that it reads lie in the answer; None until the shard has answered.
    places: Places | None = None
    #: Whether there is padding between the values.
    is_padded: bool = False
    #: Whether its next answer is to be looked at for `places`: it has come to none that had all values.
    lacks_places: bool = False
    #: Whether `order` is that of all ops of the push.
    is_all: bool = False

    @property
    def is_of_many_small(self) -> bool:
        """Whether to copy the values is less work than to send them as they are, one by one, and needs no padding."""
        return self.nbytes <= SMALL_BYTES * len(self.sizes) and not self.is_padded


@dataclass(slots=True)
class Split:
    """How pushes that are laid out alike divide among the shards."""

    #: Shard -> its part, in order of shards.
    parts: dict[int, Part]
    #: How many ops and reads such a push has.
    counts: tuple[int, int]
    #: Of each read, in order, the place of its value among the answers of all shards, one shard behind the other.
    read_at: list[int]
    #: Shard -> the layout that it has been sent.
    known: dict[int, KnownLayout] = field(default_factory=dict)
    #: Of pushes of rows: which Variables they change and read, in order; None for others.
    named: tuple[list[str], list[str]] | None = None
    #: Shard -> the layout of rows that it has been sent, in place of `known`.
    rows: dict[int, KnownRows] = field(default_factory=dict)


def _may_be_remembered(push: Push) -> bool:
    """Whether a push is all alike but for its numbers, and for how many rows it has, as LayoutMemory has it."""
    return (
        push.layout is not None
        and all(op.kind is OpKind.APPLY and (op.indices is None or op.value is not None) for op in push.ops)
        and not any(use.overrides for use in push.uses)
    )


def bytes_of(value: Array | None) -> memoryview:
    """Give an operand's bytes, copied only if it is not contiguous."""
    assert value is not None
    return value.data if value.flags.c_contiguous else np.ascontiguousarray(value).data


def joined_bytes(values: Sequence[Array]) -> bytes:
    """Give the bytes of operands, one behind the other."""
    try:
        return b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # one is not contiguous
        return b"".join(map(bytes_of, values))


def _in_arena_order(ops: Sequence[Op], wanted: Sequence[int], where: Mapping[str, int]) -> list[int]:
    """Sort neighbouring dense gradients as the shard has their Variables, so that they form one run.

    Applies to different Variables are independent, and the sort is stable, so nothing else changes.

    Args:
        ops: All of a push.
        wanted: Positions of the shard's ops among them.
        where: Its keys are the Variables in order of declaration.

    Returns:
        The positions, sorted.
    """
    order = {name: at for at, name in enumerate(where)}
    out: list[int] = []
    group: list[int] = []
    for at in wanted:
        op = ops[at]
        if op.kind is OpKind.APPLY and op.indices is None and op.value is not None:
            group.append(at)
            continue
        out += sorted(group, key=lambda item: order[ops[item].variable])
        group = []
        out.append(at)
    return out + sorted(group, key=lambda item: order[ops[item].variable])


class KnownRows:
    """What one shard and a client both know of pushes of rows that are laid out alike.

    docs/design/push-protocol.md, "Layouts", is the specification; `globalstep.ps.store.row_layouts` is the
    other side.

    Args:
        number: The layout's.
        push: The push that is told in full.
        ops: Positions of the shard's ops in it, in the order in which they are told.
        reads: Of its reads, likewise.

    Attributes:
        number: As given.
        is_told: Whether the shard has answered a push that told it.
    """

    def __init__(self, number: int, push: Push, ops: Sequence[int], reads: Sequence[int]) -> None:
        self.number = number
        self.is_told = False
        self._ops = [(at, _form_of(push.ops[at])) for at in ops]
        self._reads = [(at, _ids_of(push.reads[at])) for at in reads]

    def sent(self, push: Push) -> tuple[list[int], list[memoryview]] | None:
        """Give the numbers of rows, and the bytes, of another push.

        Returns:
            None where it is not laid out alike, or where its rows are to be refused by name.
        """
        counts: list[int] = []
        pieces: list[memoryview] = []
        for at, (dtype, shape, of_ids, unique) in self._ops:
            op = push.ops[at]
            value, ids = op.value, op.indices
            if value is None or value.dtype != dtype or op.unique != unique:
                return None
            if of_ids is None:
                if ids is not None or value.shape != shape:
                    return None
            elif ids is None or value.shape[1:] != shape or value.shape[:1] != ids.shape:
                return None
            if value.size:
                pieces.append(bytes_of(value))
            if ids is not None and not _add_ids(ids, of_ids, counts, pieces):
                return None
        for at, of_ids in self._reads:
            ids = push.reads[at].indices
            if ids is None:
                if of_ids is not None:
                    return None
            elif of_ids is None or ids.ndim != 1 or not _add_ids(ids, of_ids, counts, pieces):
                return None
        return counts, pieces


def _add_ids(ids: Array, dtype: Any, counts: list[int], pieces: list[memoryview]) -> bool:
    """Add the ids of rows, as the layout has them; gives whether they can be had so."""
    count = len(ids)
    counts.append(count)
    if not count:
        return bool(ids.dtype == np.int64)
    packed = codec.packed_ids(ids, 1) if dtype == _INT32 else ids
    pieces.append(bytes_of(packed))
    return bool(packed.dtype == dtype)


def _form_of(op: Op) -> _Form:
    value = op.value
    assert value is not None
    shape = value.shape if op.indices is None else value.shape[1:]
    return value.dtype, shape, None if op.indices is None else codec.packed_ids(op.indices).dtype, op.unique


def _ids_of(read: Read) -> Any:
    return None if read.indices is None else codec.packed_ids(read.indices).dtype


def _has_rows(push: Push, ops: Sequence[int], reads: Sequence[int]) -> bool:
    """Whether a part of a push changes or reads some rows of a Variable.

    Args:
        push: It.
        ops: Positions of the part's ops.
        reads: Of its reads.
    """
    if any(push.ops[at].indices is not None for at in ops):
        return True
    return any(push.reads[at].indices is not None for at in reads)

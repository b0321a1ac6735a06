"""How a client's pushes are put into messages, and what it and the shards remember of those that are all alike.

Layer: worker. Threads: a PushMessages belongs to one PushProtocol, under its owner's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InternalError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Push, Read, padded
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.gradient_buffers import GradientBuffers
from globalstep.worker.protocol.known_rows import KnownRows, has_rows
from globalstep.worker.protocol.push_layout import (
    KnownLayout,
    Part,
    Places,
    Split,
    bytes_of,
    in_arena_order,
    joined_bytes,
    may_be_remembered,
)
from globalstep.worker.protocol.wire_packing import WirePacking

__all__ = ["PushMessages"]

Array = npt.NDArray[Any]
_NBYTES = attrgetter("nbytes")
#: Numbers of fewer bytes are put into one piece, which the transport need not do piece by piece.
_JOINED_BYTES = 1 << 13
#: Layouts that a client knows: a program has a few train ops; those of rows may differ in the shards that they take.
_MOST_SPLITS = 64


class PushMessages:
    """Writes the parts of pushes into messages, and reads the values of the answers.

    Args:
        run: Whose facts it uses; shared with the client.
        wire: How numbers cross the wire.

    Attributes:
        packing: Makes fewer bytes of them.
        buffers: Where gradients may lie as they are sent; None for nowhere.
    """

    buffers: GradientBuffers | None = None

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
        if may_be_remembered(push) and (named is None or self._may_tell_rows(push)):
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
        """Whether the shards remember layouts of rows, and this push has one."""
        return self._run.row_layouts and not self.packing.active and all(op.value is not None for op in push.ops)

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
        """Write a shard's part into a PUSH or STAGE; gives its bytes.

        A part whose layout the shard knows is only named, unless it is to be sent `afresh`.
        """
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        if known is not None and known.places is not None and not afresh:
            values: list[Any] = push.values
            if not known.is_all:
                values = list(map(values.__getitem__, known.order))
            if list(map(_NBYTES, values)) == known.sizes:
                whole: memoryview | None = None
                if self.buffers is not None and shard in self.buffers.given and not self.packing.active:
                    whole = self.buffers.whole(shard, values)
                message.layout, message.known_layout = known.number, True
                if whole is not None:
                    return [whole]
                if known.nbytes < _JOINED_BYTES and not known.is_padded and not self.packing.active:
                    return [memoryview(joined_bytes(values))]
                if self.buffers is not None and known.is_of_many_small and not self.packing.active:
                    whole = self.buffers.copied(shard, values, known.sizes)
                    if whole is not None:
                        return [whole]
                return [bytes_of(value) for value in values]
        rows = split.rows.get(shard) if split is not None else None
        if rows is not None and rows.is_told and not afresh and (found := rows.sent(push)) is not None:
            message.layout, message.known_layout = rows.number, True
            message.rows.extend(found[0])
            return found[1]
        tensors = TensorWriter()
        order = in_arena_order(push.ops, part.ops, self._run.where)
        for at in order:
            codec.encode_op(push.ops[at], message.ops.add(), tensors)
        for at in part.reads:
            codec.encode_read(push.reads[at], message.reads.add(), tensors)
        if split is not None and split.named is not None and has_rows(push, part.ops, part.reads):
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

    def knows_places(self, push: Push, shard: int) -> bool:
        """Whether it is known where values lie in the answers to such pushes."""
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        return known is not None and known.places is not None and not known.lacks_places

    def carried(self, push: Push, shard: int, most_bytes: int) -> pb.CarriedPart | None:
        """Write a shard's part for the sequencer to carry.

        Args:
            push: The push.
            shard: Another one than the sequencer.
            most_bytes: What it may have, and its answer.

        Returns:
            It; None where the shard has not promised to apply it, or it is too large.
        """
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        if known is None or not known.promised or known.places is None:
            return None
        if known.nbytes > most_bytes or known.places.nbytes > most_bytes:
            return None
        values: list[Any] = push.values if known.is_all else [push.values[at] for at in known.order]
        if list(map(_NBYTES, values)) != known.sizes:
            return None
        if known.is_padded:
            pieces = list(map(bytes_of, values))
            data = b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in pieces)
        else:
            data = joined_bytes(values)
        return pb.CarriedPart(shard=shard, layout=known.promised, data=data)

    def values(self, push: Push, shard: int, answer: Any, data: memoryview) -> list[Array]:
        """Give the values of a shard's answer; remember where they lie when it says so."""
        split = self._splits.get(push.layout)
        known = split.known.get(shard) if split is not None else None
        if known is None and split is not None and shard in split.rows:
            split.rows[shard].is_told = True
        if answer.bare:
            if known is None or known.places is None:
                raise InternalError(f"{self._run.transports[shard].label} gave values without saying where they lie.")
            return known.places.arrays(data)
        if known is not None and (known.places is None or known.lacks_places):
            wanted = sum(self._run.where[read.variable] == shard for read in push.reads)
            # A push that was refused has no values, and says nothing of where they would lie. So has a contribution
            # whose step was not made while its answer waited; but the shard knows the layout then.
            if push.patience_ms or len(answer.values) == wanted:
                tensors = [item.value for item in answer.values]
                known.places = Places(
                    [np.dtype(tensor.dtype) for tensor in tensors],
                    [tuple(tensor.shape) for tensor in tensors],
                    [tensor.offset for tensor in tensors],
                )
                known.lacks_places = len(tensors) < wanted
                known.promised = getattr(answer, "promised", 0)
        return [codec.decode_tensor(item.value, data) for item in answer.values]

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

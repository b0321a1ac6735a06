"""A client's data in fewer bytes, as its WireOptions say: what it sends is packed, what it receives unpacked.

Only pushes of nothing but gradients are packed: what a program assigns arrives as it is. Values read are rounded
where `dtype` says so; snapshots, and so checkpoints, never are.

Layer: worker. Threads: a WirePacking belongs to one PushProtocol. Kernels are imported when there is something to
pack.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import Op, OpKind, Push
from globalstep.wire.frames import Message
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.protocol.top_k import TopK
from globalstep.worker.transport.tickets import REPLY_LIMIT_BYTES

__all__ = ["WirePacking"]

_FORMS = {"float32": pb.FORM_RAW, "bfloat16": pb.FORM_BFLOAT16, "float16": pb.FORM_FLOAT16}
_READING = frozenset({"pull", "push", "admit", "commit"})


class WirePacking:
    """Packs a client's requests and unpacks the replies.

    Args:
        options: How.

    Attributes:
        active: Whether there is anything to do.
    """

    def __init__(self, options: WireOptions) -> None:
        self._options = options
        self.active = options != WireOptions()
        self._top_k = TopK(options.top_k) if options.top_k < 1.0 else None
        self._memory = MemoryPool()

    @property
    def options(self) -> WireOptions:
        """As given."""
        return self._options

    def start_over(self) -> None:
        """Forget what belonged to another incarnation."""
        if self._top_k is not None:
            self._top_k.clear()

    def thin(self, push: Push) -> Push:
        """Give the push as it is to be made: its gradients thinned out where that is asked for."""
        if self._top_k is None or not _only_gradients(push.ops):
            return push
        return replace(push, ops=self._top_k.thin(push.ops))

    def pack(self, request: pb.Request, pieces: Sequence[memoryview]) -> Sequence[memoryview]:
        """Pack a request's data, where it is a push of nothing but gradients.

        Args:
            request: The request, ready but for its data.
            pieces: The bytes of its tensors.

        Returns:
            The bytes to send.
        """
        message: Any = getattr(request, request.WhichOneof("kind") or "pull")
        if not self.active or not pieces or any(op.kind != pb.OP_APPLY for op in message.ops):
            return pieces
        if message.known_layout:
            dtypes = ["float32" if piece.format == "f" else "other" for piece in pieces]
        else:
            refs = [ref for op in message.ops for ref in (op.value, op.indices)]
            refs += [read.indices for read in message.reads]
            dtypes = [ref.dtype for ref in refs if ref.dtype and 0 not in ref.shape]
        packing: Any = importlib.import_module("globalstep.wire.packing")
        form = _FORMS[self._options.dtype]
        typed = list(zip(pieces, dtypes, strict=True))
        packed: list[memoryview] = packing.pack(typed, form, request.spans, self._memory.take, self._top_k is not None)
        return packed

    def ask(self, request: pb.Request) -> None:
        """Say how the values of the reply are to be packed."""
        if self._options.dtype != "float32" and request.WhichOneof("kind") in _READING:
            request.reply_form = _FORMS[self._options.dtype]

    def unpack(self, message: Message) -> Message:
        """Give a reply with its data as it was before it was packed."""
        if message.reply is None or not message.reply.spans:
            return message
        packing: Any = importlib.import_module("globalstep.wire.packing")
        data = packing.unpack(message.reply.spans, message.data, self._memory.take, REPLY_LIMIT_BYTES)
        return Message(message.call, message.request, message.reply, data)


def _only_gradients(ops: Sequence[Op]) -> bool:
    return bool(ops) and all(op.kind is OpKind.APPLY for op in ops)

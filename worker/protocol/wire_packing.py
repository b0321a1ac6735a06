"""A client's data in fewer bytes, as its WireOptions say: what it sends is packed, what it receives unpacked.

Only gradients are packed: what a program assigns arrives as it is. Values read are rounded where `dtype` says so;
snapshots, and so checkpoints, never are.

Layer: worker. Threads: a WirePacking belongs to one PushProtocol. Kernels are imported when there is something to
pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import Push
from globalstep.wire.message import REPLY_LIMIT_BYTES, Message
from globalstep.wire.wire_options import WireOptions

if TYPE_CHECKING:
    from globalstep.worker.protocol.error_feedback import ErrorFeedback, Rest

_FORMS = {"float32": pb.FORM_RAW, "bfloat16": pb.FORM_BFLOAT16, "float16": pb.FORM_FLOAT16, "int8": pb.FORM_INT8}
_READING = frozenset({"pull", "push", "commit"})


class WirePacking:
    """Packs a client's requests and unpacks the replies.

    Args:
        options: How.

    Attributes:
        options: As given.
        active: Whether there is anything to do.
    """

    def __init__(self, options: WireOptions) -> None:
        self.options = options
        self.active = options.dtype != "float32" or options.top_k < 1.0
        self._feedback: ErrorFeedback | None = None
        if self.active:
            from globalstep.worker.protocol.error_feedback import ErrorFeedback

            rounds = options.error_feedback or options.dtype == "int8"
            self._feedback = ErrorFeedback(options.top_k, _FORMS[options.dtype] if rounds else pb.FORM_RAW)
        self._memory = MemoryPool()

    def start_over(self) -> None:
        """Forget what belonged to another incarnation."""
        if self._feedback is not None:
            self._feedback.clear()

    def thin(self, push: Push) -> tuple[Push, Rest]:
        """Give the push as it is to be made, its gradients thinned out and rounded where that is asked for.

        Returns:
            The push, and what is to be kept of it once it was applied.
        """
        if self._feedback is None or not push.ops:
            return push, {}
        ops, rest = self._feedback.thin(push.ops)
        return (replace(push, ops=ops), rest) if rest else (push, rest)

    def keep(self, rest: Rest) -> None:
        """Keep what a push that was applied did not send, for the next one."""
        if self._feedback is not None:
            self._feedback.keep(rest)

    def pack(self, request: pb.Request, pieces: Sequence[memoryview]) -> Sequence[memoryview]:
        """Pack a request's data, of which that is gradients.

        Args:
            request: The request, ready but for its data.
            pieces: The bytes of its tensors.

        Returns:
            The bytes to send.
        """
        message: Any = getattr(request, request.WhichOneof("kind") or "pull")
        if not self.active or not pieces:
            return pieces
        if message.known_layout:
            dtypes = ["float32" if piece.format == "f" else "other" for piece in pieces]
        else:
            dtypes = [dtype for op in message.ops for dtype in _dtypes_of(op)]
            dtypes += [read.indices.dtype for read in message.reads if _has_bytes(read.indices)]
        from globalstep.wire import packing

        form = _FORMS[self.options.dtype]
        typed = list(zip(pieces, dtypes, strict=True))
        thinned = self.options.top_k < 1.0
        return packing.pack(typed, form, request.spans, self._memory.take, thinned)

    def ask(self, request: pb.Request) -> None:
        """Say how the values of the reply are to be packed."""
        of_snapshot = request.HasField("pull") and request.pull.HasField("snapshot")
        if self.options.dtype != "float32" and request.WhichOneof("kind") in _READING and not of_snapshot:
            request.reply_form = _FORMS["bfloat16" if self.options.dtype == "int8" else self.options.dtype]

    def unpack(self, message: Message) -> Message:
        """Give a reply with its data as it was before it was packed."""
        if message.reply is None or not message.reply.spans:
            return message
        from globalstep.wire import packing

        data = packing.unpack(message.reply.spans, message.data, self._memory.take, REPLY_LIMIT_BYTES)
        return Message(message.call, message.request, message.reply, data.toreadonly())


def _dtypes_of(op: pb.Op) -> list[str]:
    """Say of what dtypes the pieces of a change are, for packing: what is assigned is to stay as it is."""
    value = op.value.dtype if op.kind == pb.OP_APPLY else "assigned"
    if op.indices.dtype and value == "float32":
        value = "float32 rows"
    return [dtype for dtype, ref in ((value, op.value), (op.indices.dtype, op.indices)) if _has_bytes(ref)]


def _has_bytes(ref: pb.TensorRef) -> bool:
    return bool(ref.dtype) and 0 not in ref.shape

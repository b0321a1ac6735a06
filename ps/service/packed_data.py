"""Packed data of requests and replies, on a PS task's side; see globalstep.wire.packing.

Layer: ps. Threads: any number at once, each with its stream's memory. Kernels are imported when data is packed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.runtime.memory import Pool
from globalstep.wire.codec import TensorWriter

#: What a request's data may unpack to, of what the task's Variables take, and of what came.
_MOST_TIMES = 4


def unpack_request(
    request: pb.Request, data: memoryview, memory: LayoutMemory, value_bytes: int, limit_bytes: int, own: bool = True
) -> memoryview:
    """Give a request's data as it was before it was packed.

    Args:
        request: The message.
        data: Bytes of its tensors.
        memory: For the result.
        value_bytes: What the task's Variables take.
        limit_bytes: The most that any message may have.
        own: No other thread writes to `data`; otherwise the result is a copy that its sender cannot change.

    Raises:
        InvalidArgumentError, ResourceExhaustedError: As globalstep.wire.packing.unpack.
    """
    if not request.spans:
        if own or not data.nbytes:
            return data
        copy = memory.account.take(data.nbytes)
        copy[:] = np.frombuffer(data, np.uint8)
        return copy.data
    from globalstep.wire import packing

    # Zeros take no bytes on the wire, but are of some Variable.
    most = min(limit_bytes, _MOST_TIMES * (data.nbytes + value_bytes))
    return packing.unpack(request.spans, data, memory.account.take, most)


def pack_reply(request: pb.Request, reply: pb.Reply, tensors: TensorWriter, memory: Pool) -> list[memoryview]:
    """Give the bytes of a reply, packed as the request asks; as they are where there is no memory for that now.

    It never waits for memory: what the request asked for has been done, and the client takes either.
    """
    if request.reply_form == pb.FORM_RAW or not tensors.pieces:
        return tensors.pieces
    from globalstep.wire import packing

    pieces = list(zip(tensors.pieces, tensors.dtypes, strict=True))

    def take(nbytes: int) -> npt.NDArray[np.uint8]:
        data = memory.take_at_once(nbytes)
        if data is None:
            raise ResourceExhaustedError
        return data

    try:
        packed: list[memoryview] = packing.pack(pieces, request.reply_form, reply.spans, take)
    except ResourceExhaustedError:
        del reply.spans[:]
        return tensors.pieces
    return packed

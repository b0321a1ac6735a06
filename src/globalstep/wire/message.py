"""A message of the data plane, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb

#: Call of a request that is not to be answered; others are numbered from 1.
NO_CALL = 0
#: Most tensor bytes of a reply, on the wire and unpacked: what a PS task answers is as large as its Variables.
REPLY_LIMIT_BYTES = 1 << 40


@dataclass(slots=True, eq=False)
class Message:
    """A whole message: the protobuf part and the bytes of its tensors."""

    call: int
    request: pb.Request | None
    reply: pb.Reply | None
    data: memoryview
    #: Why its data was not taken in; None for a message that is whole.
    refused: ResourceExhaustedError | None = None
    #: What stands for the memory that the parsed part takes; None where that is not counted.
    claim: object = None

"""AWAIT_STEP: how it stands with a step that is made of several workers' contributions.

Layer: ps. Threads: a function; any number at once.
"""

from __future__ import annotations

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.events import AwaitStep
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.wire.codec import TensorWriter

__all__ = ["await_step"]


def await_step(
    shard: Shard,
    message: pb.AwaitStepRequest,
    data: memoryview,
    reply: pb.Reply,
    tensors: TensorWriter,
    memory: LayoutMemory,
) -> None:
    """Carry out an AWAIT_STEP, as a method of a Handler."""
    wait = shard.handle(AwaitStep(message.incarnation, message.client, message.step, message.base))
    found = reply.await_step
    found.over, found.contributions, found.wanted, found.due = wait.over, wait.contributions, wait.wanted, wait.due
    found.waits_for.extend(wait.waits_for)
    for name, value in wait.steps.items():
        found.steps[name] = value

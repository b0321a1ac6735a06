"""A queue on a PS task, as the nodes of a queue use it: like a QueueState, for all tasks that share it.

Layer: tf1. Threads: a SharedQueue is thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.tf1.graph.device import DeviceSpec
from globalstep.wire.queue_elements import decode_element, encode_element
from globalstep.worker.client.queue_calls import QueueCalls


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """The PS task and the options of a queue with a shared name.

    Attributes:
        device: The task that its device names, "/job:ps/task:1", if it names one.
        attributes: What it is made with; its name is the shared one.
    """

    device: DeviceSpec
    attributes: pb.QueueAttributes = field(compare=False)

    def queue(self, calls: QueueCalls) -> SharedQueue | None:
        """Give the queue; None where it is the process's own: without a cluster, or on no device in a worker's program.

        Args:
            calls: The session's calls.

        Raises:
            InvalidArgumentError: If the cluster has no such PS task.
        """
        # On no device it is on the task whose program makes it, as in TensorFlow; only PS tasks serve.
        device = self.device if self.device.job is not None else DeviceSpec.from_string(calls.task)
        if not calls.shared or device.job is None or (device is not self.device and device.job != "ps"):
            return None
        task = device.task or 0
        if device.job == "ps":
            if task >= calls.shards:
                raise InvalidArgumentError(
                    f"Queue {self.attributes.name!r} is placed on /job:ps/task:{task}, but the cluster has "
                    f"{calls.shards} PS task(s): 0 to {calls.shards - 1}."
                )
            return SharedQueue(calls, task, self.attributes)
        # A worker serves nothing: PS task 0 has it for all.
        attributes = pb.QueueAttributes()
        attributes.CopyFrom(self.attributes)
        attributes.name = f"{device.job}:{task}/{self.attributes.name}"
        return SharedQueue(calls, 0, attributes)


def shared_place(device: str, attributes: pb.QueueAttributes) -> SharedPlace:
    """Say where a queue with a shared name is.

    Args:
        device: Of the queue's node.
        attributes: What it is made with.
    """
    return SharedPlace(DeviceSpec.from_string(device), attributes)


class SharedQueue:
    """A queue on a PS task.

    Args:
        calls: The session's calls.
        shard: Index of the PS task.
        attributes: What it is made with.
    """

    def __init__(self, calls: QueueCalls, shard: int, attributes: pb.QueueAttributes) -> None:
        self._calls = calls
        self._shard = shard
        self._attributes = attributes

    def enqueue(self, elements: Sequence[tuple[Any, ...]]) -> None:
        """See QueueState; raises as QueueCalls.enqueue."""
        self._calls.enqueue(self._shard, self._attributes, [encode_element(element) for element in elements])

    def dequeue(self, count: int, allow_fewer: bool = False) -> list[tuple[Any, ...]]:
        """See QueueState; raises as QueueCalls.dequeue."""
        elements = self._calls.dequeue(self._shard, self._attributes, count, allow_fewer)
        return [decode_element(element, self._attributes.dtypes) for element in elements]

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """See QueueState; raises as QueueCalls.close_queue."""
        self._calls.close_queue(self._shard, self._attributes, cancel_pending_enqueues)

    def size(self) -> int:
        """See QueueState."""
        return self._calls.look(self._shard, self._attributes)[0]

    def is_closed(self) -> bool:
        """See QueueState."""
        return self._calls.look(self._shard, self._attributes)[1]

"""Readings of a running cluster: what its PS tasks have answered, and what is not as it should be.

Pure: Status replies in. `deploy/status/view.py` draws one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf.json_format import MessageToDict

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb

#: What a PS task has answered, or why it has not.
Answer = pb.StatusReply | OpError

#: What a PS task says whose log waits for disk space; a server with too many callers is another matter.
_NO_ROOM = "There is no room for the write-ahead log"


@dataclass(frozen=True)
class Reading:
    """What a cluster's PS tasks have answered.

    Attributes:
        addresses: Of the PS tasks, in order.
        now: What each has answered.
        before: What each had answered some time earlier; empty for none: there are no rates then.
    """

    addresses: Sequence[str]
    now: Sequence[Answer]
    before: Sequence[Answer] = ()

    @cached_property
    def earlier(self) -> list[pb.StatusReply | None]:
        """What each task had answered earlier, where the counters can be compared and time has passed; None else."""
        first: Sequence[Answer | None] = self.before or [None] * len(self.now)
        return [
            old
            if isinstance(old, pb.StatusReply)
            and isinstance(new, pb.StatusReply)
            and (old.process, old.incarnation) == (new.process, new.incarnation)
            and new.statistics.secs > old.statistics.secs
            else None
            for old, new in zip(first, self.now, strict=True)
        ]

    @cached_property
    def answers(self) -> list[tuple[str, pb.StatusReply, pb.StatusReply | None]]:
        """The tasks that have answered: address, what they say now, and what they had said earlier."""
        every = zip(self.addresses, self.now, self.earlier, strict=True)
        return [(address, reply, old) for address, reply, old in every if isinstance(reply, pb.StatusReply)]

    @cached_property
    def sequencer(self) -> tuple[pb.StatusReply, pb.StatusReply | None] | None:
        """What the task that orders pushes has answered now and earlier; None if it has not."""
        return next(((reply, old) for _, reply, old in self.answers if is_sequencer(reply)), None)

    @cached_property
    def problems(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        for address, reply in zip(self.addresses, self.now, strict=True):
            if not isinstance(reply, pb.StatusReply):
                error = " ".join(str(reply).split()) or type(reply).__name__
                waits = _NO_ROOM in error
                yield f"{address} {'waits for disk space' if waits else 'does not answer'}: {error}"
            elif reply.state == pb.STATE_VACANT:
                yield f"{address} holds no state: it waits for the chief to initialize or restore it."
            elif reply.draining:
                yield f"{address} was asked to end, and waits for a checkpoint."
        replies = [reply for _, reply, _ in self.answers]
        sizes = {reply.shards for reply in replies if reply.incarnation}
        if sizes and max(sizes) != len(self.now):
            yield f"The run has {max(sizes)} PS tasks; {len(self.now)} were asked. Name the addresses of all."
        incarnations = sorted({reply.incarnation for reply in replies})
        if len([number for number in incarnations if number]) > 1:
            yield f"PS tasks are of different incarnations, {incarnations}: of different runs, or just being restored."
        if any(incarnations) and self.sequencer is None:
            yield "The PS task that orders pushes has not answered: steps and workers are not known."

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON has it; `format` changes when a name's meaning does."""
        tasks = [
            {"address": address}
            | (
                MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
                if isinstance(reply, pb.StatusReply)
                else {"error": str(reply)}
            )
            for address, reply in zip(self.addresses, self.now, strict=True)
        ]
        return {"format": 2, "problems": self.problems, "tasks": tasks}


def is_sequencer(reply: pb.StatusReply) -> bool:
    """Whether a PS task orders the pushes of its run."""
    return bool(reply.incarnation) and reply.shard == reply.sequencer

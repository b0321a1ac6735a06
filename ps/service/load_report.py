"""What a Status reply says of a PS task's load, besides the shard's own counters: memory, queues, the last save.

Layer: ps. Threads: a LoadReport is thread-safe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard.events import ReadSnapshot
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import PushId


@dataclass(frozen=True, slots=True)
class _Save:
    incarnation: int
    at: float
    steps: Mapping[str, int]


class LoadReport:
    """Takes note of saves, and fills in what a Status reply says of load. Thread-safe.

    Args:
        handler: For the shard and its traffic.
        clock: Tells how old a save is.
    """

    def __init__(self, handler: Handler, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock
        # Replaced as a whole.
        self._last: _Save | None = None

    def releasing(self, incarnation: int, snapshot: PushId) -> None:
        """Take note that a snapshot is about to be given back; the shard still has it."""
        try:
            _, ledger = self._handler.shard.handle(ReadSnapshot(incarnation, snapshot))
        except OpError:
            return  # it is gone already: a repeated call, or one of another life
        dumped = ledger()
        steps = json.loads(dumped).get("steps", {}) if dumped else {}
        self._last = _Save(incarnation, self._clock.monotonic(), steps)

    def fill(self, reply: pb.StatusReply, brief: bool) -> None:
        """Add to a Status reply what there is to say at this moment.

        Args:
            reply: With its incarnation.
            brief: Leave out the Variables.
        """
        view = self._handler.shard.load(brief)
        load = reply.load
        load.value_bytes, load.resident_bytes = view.value_bytes, resident_bytes()
        load.staged_parts, load.staged_bytes = view.staged_parts, view.staged_bytes
        load.requests = self._handler.traffic.under_way
        budget = self._handler.budget
        kinds, holders = budget.view()
        load.kept.update(kinds)
        load.holders.update(holders)
        load.kept_limit, load.sent_away = budget.limit_bytes, budget.refusals
        reply.variable_pushes.update(view.variable_pushes)
        last = self._last
        if last is not None and last.incarnation == reply.incarnation:
            load.save_age_secs = self._clock.monotonic() - last.at
            load.save_steps.update(last.steps)


def resident_bytes() -> int:
    """Give the memory that this process has, shared memory among it, bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")

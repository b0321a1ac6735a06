"""What comes of a push.

Layer: worker. Threads: plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from globalstep.wire.declarations import Outcome

__all__ = ["Applied", "PushResult"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Applied:
    """When a PS task made its changes of a push, within the time that the push took."""

    shard: int
    #: Seconds since the push began. Clocks of two machines differ: it is put into the middle of the call.
    after_secs: float
    #: Seconds that it took, by the task's own clock.
    secs: float


@dataclass(slots=True)
class PushResult:
    """What came of a push.

    Attributes:
        outcome: Recorded by the sequencer; the same for every retry.
        values: Of the push's reads, in order, as of right after it. Empty when it was refused.
        applied: Of every PS task that it changed something on.
    """

    outcome: Outcome
    values: list[Array] = field(default_factory=list[Array])
    applied: list[Applied] = field(default_factory=list[Applied])

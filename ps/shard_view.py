"""What a shard says of itself and of those who are there.

Pure. Floor: ps.
"""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.declarations import OptimizerDecl, VariableDecl
from globalstep.ps.office import OfficeView
from globalstep.ps.presence import State
from globalstep.ps.statistics import Statistics
from globalstep.run_identity import RunIdentity
from globalstep.run_policy import RunPolicy

__all__ = ["ShardView"]


@dataclass(frozen=True, slots=True)
class ShardView:
    """What a shard says of itself."""

    state: State
    incarnation: int
    shard: int
    shards: int
    sequencer: int
    owner: str
    applied: int
    #: On the sequencer, by shard: up to which entry it is known to have applied its own.
    floors: list[int]
    variables: list[VariableDecl]
    optimizers: list[OptimizerDecl]
    uninitialized: list[str]
    steps: dict[str, int]
    limits: dict[str, int]
    statistics: Statistics
    #: Seconds that the statistics cover.
    secs: float
    policy: RunPolicy
    directory: str
    draining: bool
    chief: OfficeView
    run: RunIdentity

"""What a shard says of itself and of those who are there.

Pure. Layer: ps.
"""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.members.chief_lease import ChiefLeaseView
from globalstep.ps.members.presence import State
from globalstep.ps.shard.statistics import Statistics
from globalstep.wire.declarations import OptimizerDecl, VariableDecl

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
    chief: ChiefLeaseView
    run: RunIdentity

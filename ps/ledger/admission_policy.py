"""What a run's policy makes of a push that is otherwise good: accepted, accepted at a smaller rate, or not.

Pure functions of what the sequencer knows at admission. docs/design/push-protocol.md, "Policies", is their
specification.

Layer: ps. Threads: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.ledger.ledger import HyperValues, Ledger
from globalstep.wire.declarations import Increment, OutcomeKind

__all__ = ["LEARNING_RATE", "refusal", "scaled"]

#: What every rule calls its learning rate; a moving average has none.
LEARNING_RATE = "learning_rate"


def refusal(
    policy: RunPolicy,
    ledger: Ledger,
    increments: Sequence[Increment],
    staleness: int,
    not_finite: str,
    late: bool | None = None,
) -> OutcomeKind | None:
    """Say why a push is not accepted; None where it is.

    Args:
        policy: The run's.
        ledger: Its steps and limits.
        increments: Of the push.
        staleness: Of the push, in steps.
        not_finite: A Variable whose gradient was found not to be finite; "" for none.
        late: Of a contribution: whether it does not count. Lag is no question of the policy for it.
    """
    if ledger.over_limit(increments):
        return OutcomeKind.REFUSED_DONE
    if not_finite:
        return OutcomeKind.STOPPED_NAN if policy.on_nan == "stop" else OutcomeKind.DROPPED_NAN
    if late is not None:
        return OutcomeKind.LATE if late else None
    if policy.staleness == "drop" and staleness > policy.max_staleness:
        return OutcomeKind.DROPPED_STALE
    return None


def scaled(policy: RunPolicy, hypers: tuple[HyperValues, ...], staleness: int) -> tuple[HyperValues, ...]:
    """Multiply every learning rate by 1 / (1 + staleness), where the run wants that.

    Source: Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for Distributed Deep Learning" (2016), whose
    rate is divided by the staleness; here a push that is not late keeps its rate.
    """
    if policy.staleness != "scale" or staleness <= 0:
        return hypers
    factor = 1.0 / (1.0 + staleness)
    return tuple(
        replace(item, values={**item.values, LEARNING_RATE: item.values[LEARNING_RATE] * factor})
        if LEARNING_RATE in item.values
        else item
        for item in hypers
    )

"""Model of a cluster for `globalstep plan`: workers, PS tasks, the messages of a step, and results. Plain data.

Layer: deploy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SimulatedCluster", "Leg", "SimulationResult", "Phase"]


@dataclass(frozen=True, slots=True)
class Leg:
    """A message to a PS task, and its reply.

    Attributes:
        shard: Index of the simulated PS task; 0 is the sequencer.
        stands_for: How many PS tasks it stands for; what the worker does, it does for each of them.
        out_bytes: Of the message.
        in_bytes: Of the reply.
        send_secs: The worker's processor, to send one.
        receive_secs: The worker's processor, to receive a reply.
        handle_secs: The PS task's interpreter.
        take_secs: A core of the PS task, to receive the bytes.
        apply_secs: The PS task's lock and a core.
        give_secs: A core of the PS task, to send the reply's bytes.
        delay_secs: Besides all that, on the way there and back; less than 0 where both sides work at the same time.
        held_bytes: What the PS task holds of it until it is applied; less than 0 where it lets go of what it has held
            since an earlier message. What is sent in the phase that admits the push is applied there.
    """

    shard: int
    stands_for: int = 1
    out_bytes: float = 0.0
    in_bytes: float = 0.0
    send_secs: float = 0.0
    receive_secs: float = 0.0
    handle_secs: float = 0.0
    take_secs: float = 0.0
    apply_secs: float = 0.0
    give_secs: float = 0.0
    delay_secs: float = 0.0
    held_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Messages that are sent at once.

    Attributes:
        legs: In the order in which they are sent.
        admits: Whether the sequencer gives the push its step when it handles the message.
        sees: Whether its values are those that the worker computes from next.
        waits: Whether the worker waits for the replies.
    """

    legs: tuple[Leg, ...]
    admits: bool = False
    sees: bool = False
    waits: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Who works, and with what.

    Attributes:
        workers: How many.
        shards: How many simulated PS tasks.
        compute_secs: Of a worker's step.
        spread: Standard deviation of that, as a part of it.
        worker_bytes_sec: Each way, of a worker's link.
        ps_bytes_sec: Each way, of a PS task's link.
        round_trip_secs: Of the network.
        ps_cores: Of a PS task.
        shared_cores: Where not 0, all processes are on one machine with so many cores, which may be a fraction.
        compute_takes_core: Whether computing takes one of the shared cores.
    """

    workers: int
    shards: int
    compute_secs: float
    spread: float = 0.0
    worker_bytes_sec: float = float("inf")
    ps_bytes_sec: float = float("inf")
    round_trip_secs: float = 0.0
    ps_cores: int = 1
    shared_cores: float = 0.0
    compute_takes_core: bool = True


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What came of it.

    Attributes:
        steps_sec: Steps of all workers together, a second.
        step_secs: Of a worker's step, on average.
        staleness: Steps that a push lagged behind -> pushes.
        busy: Resource -> part of the time in which it was in use, on average over those of its kind.
        held_bytes: What a PS task held at most of messages that it had not answered or applied.
    """

    steps_sec: float
    step_secs: float
    staleness: Mapping[int, int]
    busy: Mapping[str, float]
    held_bytes: float

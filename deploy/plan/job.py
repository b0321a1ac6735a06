"""A job to be planned, and what its steps cost: from a profile to the messages of docs/design/push-protocol.md. Pure.

With one PS task a push is one message each way. With several a small one goes through the sequencer: ADMIT with all
parts, and at the same time a COMMIT to each other task, which answers when the sequencer has brought it its part. A
larger one is STAGE to all, ADMIT at the sequencer, COMMIT to the others, and a COMPLETE without a reply; the new values
come back with ADMIT and COMMIT. Rows are read first, and then pushed.

Layer: deploy.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from globalstep.deploy.bench.cost_profile import KernelCosts, Profile, TransportCosts
from globalstep.deploy.plan.cluster import Leg, Phase, SimulatedCluster
from globalstep.errors import InvalidArgumentError
from globalstep.ps.store.cores import MOST_THREADS, WORTH_BYTES
from globalstep.wire.declarations import MOST_CARRIED_BYTES
from globalstep.worker.protocol.push_layout import PIGGYBACK_BYTES

__all__ = ["OPTIMIZERS", "PAYLOAD", "Job", "Memory", "bounds", "cluster_of", "memory_of", "phases_of"]

#: Of the bytes on an Ethernet link, what is left for TCP's payload.
PAYLOAD = 0.95
#: What users call them -> kind of the rule.
OPTIMIZERS = {
    "sgd": "gradient_descent",
    "momentum": "momentum",
    "adagrad": "adagrad",
    "adam": "adam",
    "lazy_adam": "lazy_adam",
}
#: Beyond the sequencer and so many others, a simulated PS task stands for several that do the same.
_ALL_ALONE, _GROUPS = 8, 4
#: The interpreter and its libraries: docs/performance.md.
_PROCESS_BYTES = 175e6
#: An id crosses the wire as an int32.
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Job:
    """A training job.

    Attributes:
        params: Numbers that are trained.
        workers: How many workers.
        step_secs: How long a worker computes a step, by itself.
        step_spread: Standard deviation of that, as a part of it.
        nic_gbps: Gbit/s of each machine's network, each way.
        round_trip_secs: Of the network.
        optimizer: A key of OPTIMIZERS.
        itemsize: Bytes of a number on the PS.
        wire_itemsize: Bytes of a gradient's number on the wire.
        value_itemsize: The same of a value's; 0 for as many.
        rows: Rows that a step reads and pushes; 0: all parameters, densely.
        row_width: Numbers of a row.
        ps_cores: Cores of a PS task.
        transport: A key of Profile.transports.
        shared_cores: Where not 0, all run on one machine with so many cores.
        compute_takes_core: Whether computing takes one of those.
    """

    params: float
    workers: int
    step_secs: float
    step_spread: float = 0.0
    nic_gbps: float = float("inf")
    round_trip_secs: float = 0.0
    optimizer: str = "sgd"
    itemsize: int = 4
    wire_itemsize: float = 4
    value_itemsize: float = 0
    rows: int = 0
    row_width: int = 0
    ps_cores: int = 8
    transport: str = "grpc"
    shared_cores: float = 0.0
    compute_takes_core: bool = True

    def __post_init__(self) -> None:
        for name in ("params", "workers", "nic_gbps", "ps_cores"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it must be above 0.")
        for name in ("step_secs", "step_spread", "round_trip_secs", "rows", "shared_cores"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it must not be below 0.")
        if self.optimizer not in OPTIMIZERS:
            raise InvalidArgumentError(f"No costs are known of optimizer {self.optimizer!r}; of {list(OPTIMIZERS)}.")
        if self.rows and not 0 < self.row_width <= self.params:
            raise InvalidArgumentError(f"A row of {self.row_width} numbers is none of a table of {self.params:,.0f}.")

    @property
    def moved(self) -> float:
        """Numbers that a step moves each way."""
        return float(self.rows * self.row_width) if self.rows else self.params

    @property
    def step_bytes(self) -> float:
        """Tensor bytes that a step moves, both ways."""
        return self.moved * (self.wire_itemsize + self.read_itemsize) + 2 * self.rows * _ID_BYTES

    @property
    def read_itemsize(self) -> float:
        """Bytes of a value's number on the wire."""
        return self.value_itemsize or self.wire_itemsize


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a PS task.

    Attributes:
        values: Values and slots.
        under_way: Gradients and values of pushes in flight, at most.
        process: The interpreter and its libraries.
    """

    values: float
    under_way: float
    process: float = _PROCESS_BYTES

    @property
    def total(self) -> float:
        """All of it."""
        return self.values + self.under_way + self.process


def memory_of(job: Job, profile: Profile, ps: int, held_bytes: float) -> Memory:
    """Give the memory of each of `ps` PS tasks that holds so much of pushes in flight."""
    slots = profile.kernels[OPTIMIZERS[job.optimizer]].slots
    # The values that go back are a copy, of which one push at a time is new.
    return Memory(job.params * job.itemsize * (1 + slots) / ps, held_bytes + job.moved * job.read_itemsize / ps)


def cluster_of(job: Job, ps: int) -> SimulatedCluster:
    """Give the cluster to be simulated for a job on `ps` PS tasks."""
    bytes_sec = job.nic_gbps * 1e9 / 8 * PAYLOAD
    return SimulatedCluster(
        workers=job.workers,
        shards=len(_groups(ps)),
        compute_secs=job.step_secs,
        spread=job.step_spread,
        worker_bytes_sec=bytes_sec,
        ps_bytes_sec=bytes_sec,
        round_trip_secs=job.round_trip_secs,
        ps_cores=job.ps_cores,
        shared_cores=job.shared_cores,
        compute_takes_core=job.compute_takes_core,
    )


def phases_of(job: Job, profile: Profile, ps: int) -> list[Phase]:
    """Give what a worker exchanges with `ps` PS tasks in a step."""
    costs = _Costs(job, profile, ps)
    if not job.rows:
        return costs.push(
            costs.dense_secs(), job.moved * job.wire_itemsize / ps, back=job.moved * job.read_itemsize / ps
        )
    ids = job.rows * _ID_BYTES / ps
    pushed, read = job.moved * job.wire_itemsize / ps, job.moved * job.read_itemsize / ps
    return costs.pull(ids, read) + costs.push(costs.rows_secs(), ids + pushed, back=0.0)


def bounds(cluster: SimulatedCluster, phases: list[Phase]) -> dict[str, float]:
    """Give the steps a second that each resource allows by itself, whatever the others do."""
    legs = [leg for phase in phases for leg in phase.legs]
    found = {"workers' computing": cluster.workers / cluster.compute_secs if cluster.compute_secs else float("inf")}

    def bound(name: str, secs: float, servers: float = 1.0) -> None:
        found[name] = min(found.get(name, float("inf")), servers / secs if secs else float("inf"))

    for way in ("out_bytes", "in_bytes"):
        total = sum(getattr(leg, way) * leg.stands_for for leg in legs)
        bound("workers' links", total / cluster.worker_bytes_sec, cluster.workers)
    for shard in range(cluster.shards):
        mine = [leg for leg in legs if leg.shard == shard]
        name = "other PS" if shard else "sequencer"
        bound(f"{name}: link in", sum(leg.out_bytes for leg in mine) / cluster.ps_bytes_sec)
        bound(f"{name}: link out", sum(leg.in_bytes for leg in mine) / cluster.ps_bytes_sec)
        bound(f"{name}: interpreter", sum(leg.handle_secs for leg in mine))
        bound(f"{name}: applying", sum(leg.apply_secs for leg in mine))
        if not cluster.shared_cores:
            bound(f"{name}: cores", sum(_ps_secs(leg) for leg in mine), cluster.ps_cores)
    messages = sum((leg.send_secs + leg.receive_secs) * leg.stands_for for leg in legs)
    if cluster.shared_cores:
        computing = cluster.compute_secs if cluster.compute_takes_core else 0.0
        total = messages + computing + sum(_ps_secs(leg) for leg in legs)
        bound("shared cores", total, cluster.shared_cores)
    else:
        bound("workers' messages", messages, cluster.workers)
    return found


def _ps_secs(leg: Leg) -> float:
    return leg.handle_secs + leg.take_secs + leg.apply_secs + leg.give_secs


def _groups(ps: int) -> list[int]:
    """For each simulated PS task, how many it stands for; the first is the sequencer."""
    if ps <= _ALL_ALONE:
        return [1] * ps
    ends = [(ps - 1) * group // _GROUPS for group in range(_GROUPS + 1)]
    return [1, *(end - begin for begin, end in itertools.pairwise(ends))]


class _Costs:
    """The legs of a job's messages."""

    def __init__(self, job: Job, profile: Profile, ps: int) -> None:
        if job.transport not in profile.transports:
            raise InvalidArgumentError(f"The profile has no {job.transport!r}; it has {sorted(profile.transports)}.")
        self._job, self._profile, self._ps = job, profile, ps
        self._wire: TransportCosts = profile.transports[job.transport]
        self._kernel: KernelCosts = profile.kernels[OPTIMIZERS[job.optimizer]]
        crowding = self._wire.crowding(job.workers)
        self._ps_crowding = crowding
        # A worker with a machine of its own shares it with no other.
        self._worker_crowding = crowding if job.shared_cores else 0.0

    def dense_secs(self) -> float:
        """Give what applying a PS task's part of a dense gradient takes."""
        elements = self._job.moved / self._ps * self._job.itemsize / 4
        secs = self._kernel.dense_secs(elements)
        touched = elements * 4 * (2 + self._kernel.slots)
        threads = min(self._job.ps_cores // 2, MOST_THREADS)
        if threads > 1 and touched >= WORTH_BYTES and not self._job.shared_cores:
            # Each element is read and, but for the gradient, written; values once more for the copy that goes back.
            memory = elements * 4 * (2 * (1 + self._kernel.slots) + 2)
            secs = min(secs, max(secs / threads, memory / self._profile.all_cores_copy_bytes_sec))
        return secs

    def rows_secs(self) -> float:
        """Give what applying a PS task's part of a step's rows takes."""
        rows = self._job.moved * self._kernel.row_element_secs
        return (rows + self._job.params * self._kernel.table_element_secs) / self._ps

    def pull(self, ids: float, rows: float) -> list[Phase]:
        """Read rows: one message each way, or a push without operations."""
        secs = self._job.moved / self._ps * self._profile.gather_element_secs
        if self._ps == 1:
            return [Phase((self._message(0, 1, ids, rows, secs),), sees=True)]
        return self._together(ids, rows, secs, admits=False, sees=True)

    def push(self, apply_secs: float, nbytes: float, back: float) -> list[Phase]:
        """Push gradients, and read the new values or nothing."""
        reads = back > 0
        if self._ps == 1:
            leg = self._message(0, 1, nbytes, back, apply_secs, held=nbytes)
            return [Phase((leg,), admits=True, sees=reads)]
        if (
            not self._job.rows
            and not self._is_packed
            and nbytes * (self._ps - 1) <= MOST_CARRIED_BYTES
            and back <= MOST_CARRIED_BYTES
        ):
            return self._through_the_sequencer(nbytes, back, apply_secs)
        return self._together(nbytes, back, apply_secs, admits=True, sees=reads)

    def _message(
        self, shard: int, stands_for: int, out: float, back: float, apply_secs: float, held: float = 0.0
    ) -> Leg:
        """One message each way, as a step of it was measured; half of what bytes cost is for each direction."""
        none_w, none_p = self._fixed()
        out_w, out_p, out_d = self._bytes(out, self._job.wire_itemsize)
        in_w, in_p, in_d = self._bytes(back, self._job.read_itemsize)
        delay = self._wire.step(0.0).delay_secs
        return Leg(
            shard, stands_for, out, back,
            send_secs=none_w / 2 + out_w, receive_secs=none_w / 2 + in_w,
            handle_secs=none_p, take_secs=out_p, apply_secs=apply_secs, give_secs=in_p,
            delay_secs=delay + out_d + in_d, held_bytes=held,
        )  # fmt: skip

    @property
    def _is_packed(self) -> bool:
        """Whether numbers cross the wire in another form."""
        return min(self._job.wire_itemsize, self._job.read_itemsize) < self._job.itemsize

    def _through_the_sequencer(self, out: float, back: float, apply_secs: float) -> list[Phase]:
        """ADMIT with all parts, and COMMITs that wait for what the sequencer brings, all at once."""
        scale_w, scale_p = self._scales()
        out_w, out_p, out_d = self._bytes(out * self._ps, self._job.wire_itemsize)
        in_w, in_p, in_d = self._bytes(back, self._job.read_itemsize)
        admit_w, admit_p = self._wire.admit_worker_secs * scale_w, self._wire.admit_ps_secs * scale_p
        part_w, part_p = self._wire.part_worker_secs * scale_w, self._wire.part_ps_secs * scale_p
        delay = self._wire.step(0.0).delay_secs
        # From the sequencer's decision to the others it is half a round trip, of the tasks among each other.
        brought = admit_p + self._job.round_trip_secs / 2
        admit = Leg(
            0, 1, out * self._ps, back, admit_w / 2 + out_w, admit_w / 2 + in_w, admit_p, out_p, apply_secs, in_p,
            delay + out_d + in_d, out,
        )  # fmt: skip
        commits = [
            Leg(
                shard, count, 0.0, back, part_w / 2, part_w / 2 + in_w, part_p, 0.0, apply_secs, in_p,
                delay + in_d + brought,
            )
            for shard, count in list(enumerate(_groups(self._ps)))[1:]
        ]  # fmt: skip
        return [Phase((*commits, admit), admits=True, sees=True)]

    def _together(self, out: float, back: float, apply_secs: float, admits: bool, sees: bool) -> list[Phase]:
        """STAGE to all, ADMIT at the sequencer, COMMIT to the others, COMPLETE."""
        groups = _groups(self._ps)
        others = list(enumerate(groups))[1:]
        scale_w, scale_p = self._scales()
        part_w, part_p = self._wire.part_worker_secs * scale_w / 2, self._wire.part_ps_secs * scale_p / 2
        admit_w, admit_p = self._wire.admit_worker_secs * scale_w, self._wire.admit_ps_secs * scale_p
        out_w, out_p, out_d = self._bytes(out, self._job.wire_itemsize)
        in_w, in_p, in_d = self._bytes(back, self._job.read_itemsize)
        comes_along = out <= PIGGYBACK_BYTES or self._job.transport == "shm"
        piggybacked = comes_along and not self._is_packed
        delay = self._wire.step(0.0).delay_secs

        def stage(shard: int, stands_for: int) -> Leg:
            return Leg(
                shard, stands_for, out, 0.0, part_w / 2 + out_w, part_w / 2, part_p, out_p, 0.0, 0.0, delay + out_d, out
            )

        staged = [stage(shard, count) for shard, count in ([] if piggybacked else [(0, 1)]) + others]
        own = (out_w, out_p, out_d) if piggybacked else (0.0, 0.0, 0.0)
        # COMPLETE is the last third of what both cost.
        admit = Leg(
            0, 1, out if piggybacked else 0.0, back, admit_w / 3 + own[0], admit_w / 3 + in_w, admit_p * 2 / 3, own[1],
            apply_secs, in_p, delay + own[2] + in_d, out if piggybacked else -out,
        )  # fmt: skip
        commits = [
            Leg(
                shard, count, 0.0, back, part_w / 2, part_w / 2 + in_w, part_p, 0.0, apply_secs, in_p, delay + in_d,
                -out,
            )
            for shard, count in others
        ]  # fmt: skip
        complete = Leg(0, 1, send_secs=admit_w / 3, handle_secs=admit_p / 3)
        return [
            Phase(tuple(staged)),
            Phase((admit,), admits=admits, sees=sees),
            Phase(tuple(commits)),
            Phase((complete,), waits=False),
        ]

    def _fixed(self) -> tuple[float, float]:
        """Give what a message of no bytes costs on the worker and on the PS task."""
        worker = self._wire.step(0.0, self._worker_crowding).worker_secs
        return worker, self._wire.step(0.0, self._ps_crowding).ps_secs

    def _scales(self) -> tuple[float, float]:
        """Say by how much messages are dearer where it is crowded."""
        worker, ps = self._fixed()
        alone = self._wire.step(0.0)
        return worker / alone.worker_secs, ps / alone.ps_secs

    def _bytes(self, nbytes: float, itemsize: float) -> tuple[float, float, float]:
        """Give what so many bytes in one direction cost on the worker and on the PS task, and delay."""
        worker, ps = self._fixed()
        crowded_worker = self._wire.step(nbytes, self._worker_crowding)
        crowded_ps = self._wire.step(nbytes, self._ps_crowding)
        delay = crowded_ps.delay_secs - self._wire.step(0.0, self._ps_crowding).delay_secs
        packing = 0.0
        if itemsize < self._job.itemsize:
            packing = nbytes / itemsize * self._profile.pack_element_secs
        return (
            max(0.0, crowded_worker.worker_secs - worker) / 2 + packing,
            max(0.0, crowded_ps.ps_secs - ps) / 2 + packing,
            delay / 2,
        )

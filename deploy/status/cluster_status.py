"""Status of a running cluster from two readings: where it stands, how fast it goes, and what holds it up.

Pure: Status replies in, plain data out. `globalstep status` shows it, `deploy/status/view.py` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb

#: What a PS task has answered, or why it has not.
Answer = pb.StatusReply | OpError

#: What a PS task says whose log waits for disk space; a server with too many callers is another matter.
_NO_ROOM = "There is no room for the write-ahead log"

_STATES = {
    pb.STATE_VACANT: "vacant",
    pb.STATE_INITIALIZING: "initializing",
    pb.STATE_READY: "ready",
    pb.STATE_DONE: "done",
}


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step of the run: its value, its limit, and steps a second (None without a first reading)."""

    name: str
    value: int
    limit: int | None
    per_sec: float | None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A client with a live lease.

    Attributes:
        task: "/job:worker/task:1"; "" where the program did not say.
        client: Its id.
        pushes: Accepted pushes that moved a step on, since it joined.
        pushes_per_sec: Of late; None without a first reading.
        staleness: Of those of late, the mean lag in steps; of the last one where there were none.
        silent_secs: Since it was last heard of.
        lead: With staleness="wait", by how many pushes it is ahead of the slowest worker; else 0.
        waited_secs: How long it has waited for that one.
    """

    task: str
    client: str
    pushes: int
    pushes_per_sec: float | None
    staleness: float
    silent_secs: float
    lead: int = 0
    waited_secs: float = 0.0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A PS task.

    Attributes:
        address: As asked.
        error: Why it did not answer; "" if it did, and only then does the rest mean anything.
        full: Whether that is because its disk is full: it acknowledges nothing that it could not write.
        state: "vacant", "initializing", "ready" or "done".
        load: Share of the time in which it was changing values, 0 to 1.
        requests: Data-plane requests that wait for their answer.
        kept: Bytes that are kept on callers' word, by what for.
        kept_limit: The most that there may be of them.
        holders: The bytes of the greatest holders, by their tasks, or clients.
    """

    address: str
    error: str = ""
    full: bool = False
    state: str = ""
    incarnation: int = 0
    process: str = ""
    host: str = ""
    sequencer: bool = False
    draining: bool = False
    applied: int = 0
    value_bytes: int = 0
    resident_bytes: int = 0
    bytes_in_per_sec: float | None = None
    bytes_out_per_sec: float | None = None
    applies_per_sec: float | None = None
    load: float | None = None
    staged_parts: int = 0
    staged_bytes: int = 0
    requests: int = 0
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    kept_limit: int = 0
    holders: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue that tasks share.

    Attributes:
        address: Of its PS task, as asked.
        capacity: Most elements that it holds; None for no limit.
        producers: Enqueues that wait for space.
        consumers: Dequeues that wait for elements.
        kept: Elements kept for consumers that have not said that they have them.
    """

    name: str
    address: str
    kind: str
    size: int
    capacity: int | None
    nbytes: int
    closed: bool
    producers: int
    consumers: int
    kept: int


@dataclass(frozen=True, slots=True)
class AwaitedStatus:
    """A contributor that a step waits for: its task, or what else is known of it; and why."""

    who: str
    why: str


@dataclass(frozen=True, slots=True)
class OpenStepStatus:
    """A step that has contributions to its next value, and not all of them.

    Attributes:
        name: The step's.
        value: Its value.
        open_secs: For how long the oldest of them has waited.
        waits_for: Who has not contributed, at most 8.
    """

    name: str
    value: int
    contributions: int
    wanted: int
    open_secs: float
    waits_for: Sequence[AwaitedStatus] = ()


@dataclass(frozen=True, slots=True)
class TogetherStatus:
    """Steps that workers make together, and their waits for one another.

    Attributes:
        contributions: That counted, since the PS task started.
        late: That came when their step was made already.
        made: Values of steps that were made of contributions.
        wait_secs: How long a contribution of late waited until its step was made, on average; None where none did.
        lead_waits: With staleness="wait", waits for slower workers that are over.
        lead_wait_secs: Seconds of these, together.
        open: Steps that wait for contributions.
    """

    contributions: int = 0
    late: int = 0
    made: int = 0
    wait_secs: float | None = None
    lead_waits: int = 0
    lead_wait_secs: float = 0.0
    open: Sequence[OpenStepStatus] = ()


@dataclass(frozen=True, slots=True)
class LastSave:
    """The last snapshot that the chief had and gave back, in this incarnation."""

    age_secs: float
    steps: Mapping[str, int]
    path: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment.

    Attributes:
        incarnation: Of the run; 0 where PS tasks hold none, or different ones.
        policy: How the run treats late pushes, bad gradients and lost PS tasks.
        directory: The run's; "" for none.
        chief: Task that acts as chief; "" for none.
        to_come: Tasks of the cluster that never came, or may come back.
        pushes_per_sec: Pushes that the sequencer accepted; None without a first reading.
        mean_staleness: Of the pushes of late, in steps; None where there were none.
        problems: What is not as it should be, a sentence each.
        queues: That tasks share, by PS task and name.
        together: Synchronous steps and bounded staleness: which workers wait for which.
    """

    incarnation: int
    steps: Sequence[StepStatus]
    workers: Sequence[WorkerStatus]
    shards: Sequence[ShardStatus]
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    directory: str = ""
    chief: str = ""
    chief_silent_secs: float | None = None
    pushes_per_sec: float | None = None
    mean_staleness: float | None = None
    refused: int = 0
    dropped_stale: int = 0
    dropped_nan: int = 0
    duplicates: int = 0
    last_save: LastSave | None = None
    problems: Sequence[str] = ()
    queues: Sequence[QueueStatus] = ()
    together: TogetherStatus = TogetherStatus()
    to_come: Sequence[str] = ()

    @property
    def answered(self) -> int:
        """The number of PS tasks that answered."""
        return sum(not shard.error for shard in self.shards)

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON has it; `format` changes when a name's meaning does."""
        return {"format": 1, **asdict(self)}


def read_cluster(addresses: Sequence[str], now: Sequence[Answer], before: Sequence[Answer] = ()) -> ClusterStatus:
    """Say what a cluster's PS tasks have answered.

    Args:
        addresses: Of the PS tasks, in order.
        now: What each has answered.
        before: What each had answered some time earlier; empty for none: there are no rates then.

    Returns:
        The cluster. Rates are by each task's own clock, and only of one life of it.
    """
    earlier = earlier_of(now, before)
    shards = [_shard(*item) for item in zip(addresses, now, earlier, strict=True)]
    replies = [reply for reply in now if isinstance(reply, pb.StatusReply)]
    incarnations = sorted({reply.incarnation for reply in replies})
    problems = list(_problems(shards, replies, incarnations))
    incarnation = incarnations[0] if len(incarnations) == 1 else 0
    at = _sequencer(now)
    queues = [
        _queue(address, info)
        for address, item in zip(addresses, now, strict=True)
        if isinstance(item, pb.StatusReply)
        for info in item.queues
    ]
    if at is None:
        return ClusterStatus(incarnation, (), (), shards, problems=problems, queues=queues)
    reply, old = now[at], earlier[at]
    assert isinstance(reply, pb.StatusReply)
    counted = reply.statistics
    paths = [item.load.save_path for item in replies if item.load.HasField("save_age_secs")]
    own = reply.load
    lag = _mean_staleness(old, reply)
    return ClusterStatus(
        incarnation,
        [_step(name, reply, old) for name in sorted(reply.steps)],
        sorted((_worker(item, reply, old) for item in reply.clients), key=lambda item: (item.task, item.client)),
        shards,
        policy={field.name: value for field, value in reply.policy.ListFields()},
        directory=reply.directory,
        chief=reply.chief.task or reply.chief.holder,
        chief_silent_secs=reply.chief.silent_secs if reply.chief.holder else None,
        pushes_per_sec=None if old is None else (counted.accepted - old.statistics.accepted) / _secs(old, reply),
        mean_staleness=lag,
        refused=counted.refused,
        dropped_stale=counted.dropped_stale,
        dropped_nan=counted.dropped_nan,
        duplicates=counted.duplicates,
        last_save=(
            LastSave(own.save_age_secs, dict(sorted(own.save_steps.items())), own.save_path or next(iter(paths), ""))
            if own.HasField("save_age_secs")
            else None
        ),
        problems=problems,
        queues=queues,
        together=_together(reply, old),
        to_come=list(reply.to_come),
    )


def earlier_of(now: Sequence[Answer], before: Sequence[Answer]) -> list[pb.StatusReply | None]:
    """Give what each task had answered earlier, where the counters can be compared and time has passed; None else."""
    first: Sequence[Answer | None] = before or [None] * len(now)
    return [
        old
        if isinstance(old, pb.StatusReply)
        and isinstance(new, pb.StatusReply)
        and (old.process, old.incarnation) == (new.process, new.incarnation)
        and new.statistics.secs > old.statistics.secs
        else None
        for old, new in zip(first, now, strict=True)
    ]


def _secs(old: pb.StatusReply, new: pb.StatusReply) -> float:
    return new.statistics.secs - old.statistics.secs


def _sequencer(now: Sequence[Answer]) -> int | None:
    """Give the place of the task that orders pushes; None if it has not answered."""
    for at, reply in enumerate(now):
        if isinstance(reply, pb.StatusReply) and reply.incarnation and reply.shard == reply.sequencer:
            return at
    return None


def _problems(shards: Sequence[ShardStatus], replies: Sequence[pb.StatusReply], incarnations: Sequence[int]) -> Any:
    for shard in shards:
        if shard.full:
            yield f"{shard.address} waits for disk space: {shard.error}"
        elif shard.error:
            yield f"{shard.address} does not answer: {shard.error}"
        elif shard.state == "vacant":
            yield f"{shard.address} holds no state: it waits for the chief to initialize or restore it."
        elif shard.draining:
            yield f"{shard.address} was asked to end, and waits for a checkpoint."
    sizes = {reply.shards for reply in replies if reply.incarnation}
    if sizes and max(sizes) != len(shards):
        yield f"The run has {max(sizes)} PS tasks; {len(shards)} were asked. Name the addresses of all."
    if len([number for number in incarnations if number]) > 1:
        yield f"PS tasks are of different incarnations, {incarnations}: of different runs, or just being restored."
    if replies and any(incarnations) and not any(r.incarnation and r.shard == r.sequencer for r in replies):
        yield "The PS task that orders pushes has not answered: steps and workers are not known."


def _shard(address: str, reply: Answer, old: pb.StatusReply | None) -> ShardStatus:
    if not isinstance(reply, pb.StatusReply):
        error = " ".join(str(reply).split()) or type(reply).__name__
        return ShardStatus(address, error, full=_NO_ROOM in error)
    counted, load = reply.statistics, reply.load
    tasks = {item.client: item.task for item in reply.clients if item.task}
    rates: dict[str, Any] = {}
    if old is not None:
        secs, until = _secs(old, reply), old.statistics
        rates = {
            "bytes_in_per_sec": (counted.bytes_in - until.bytes_in) / secs,
            "bytes_out_per_sec": (counted.bytes_out - until.bytes_out) / secs,
            "applies_per_sec": (counted.applied - until.applied) / secs,
            "load": min((counted.apply_secs - until.apply_secs) / secs, 1.0),
        }
    return ShardStatus(
        address,
        state=_STATES.get(reply.state, "unknown"),
        incarnation=reply.incarnation,
        process=reply.process,
        host=reply.host,
        sequencer=bool(reply.incarnation) and reply.shard == reply.sequencer,
        draining=reply.draining,
        applied=reply.applied,
        value_bytes=load.value_bytes,
        resident_bytes=load.resident_bytes,
        staged_parts=load.staged_parts,
        staged_bytes=load.staged_bytes,
        requests=load.requests,
        kept=dict(load.kept),
        kept_limit=load.kept_limit,
        holders={tasks.get(client, client): count for client, count in load.holders.items()},
        **rates,
    )


def _queue(address: str, info: pb.QueueInfo) -> QueueStatus:
    capacity = info.capacity if info.capacity >= 0 else None
    return QueueStatus(
        info.name,
        address,
        info.kind,
        info.size,
        capacity,
        info.bytes,
        info.closed,
        info.entering,
        info.leaving,
        info.kept,
    )


def _step(name: str, reply: pb.StatusReply, old: pb.StatusReply | None) -> StepStatus:
    value = reply.steps[name]
    rate = (value - old.steps[name]) / _secs(old, reply) if old is not None and name in old.steps else None
    return StepStatus(name, value, reply.limits.get(name), rate)


def _worker(client: pb.ClientInfo, reply: pb.StatusReply, old: pb.StatusReply | None) -> WorkerStatus:
    clients = {item.client: item for item in old.clients} if old is not None else {}
    # One that has joined since made all its pushes since.
    was = clients.get(client.client, pb.ClientInfo())
    pushes = client.pushes - was.pushes
    lag = (client.staleness_sum - was.staleness_sum) / pushes if old is not None and pushes > 0 else client.staleness
    rate = pushes / _secs(old, reply) if old is not None else None
    return WorkerStatus(
        client.task, client.client, client.pushes, rate, float(lag), client.silent_secs, client.lead, client.waited_secs
    )


def _together(reply: pb.StatusReply, old: pb.StatusReply | None) -> TogetherStatus:
    counted, until = reply.statistics, (old or pb.StatusReply()).statistics
    waited = counted.waited - until.waited
    opened = [
        OpenStepStatus(
            item.step,
            item.base,
            item.contributions,
            item.wanted,
            item.open_secs,
            [AwaitedStatus(who, why) for who, why in sorted(item.waits_for.items())],
        )
        for item in reply.open_steps
    ]
    return TogetherStatus(
        counted.contributions,
        counted.late,
        counted.made,
        (counted.waited_secs - until.waited_secs) / waited if waited else None,
        counted.lead_waits,
        counted.lead_wait_secs,
        opened,
    )


def _mean_staleness(old: pb.StatusReply | None, reply: pb.StatusReply) -> float | None:
    counted, until = reply.statistics, (old or pb.StatusReply()).statistics
    pushes = sum(counted.staleness) - sum(until.staleness)
    return (counted.staleness_sum - until.staleness_sum) / pushes if pushes else None

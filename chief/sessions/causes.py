"""Diagnosis of a session that is not ready: the likeliest reasons, one of them found by asking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from globalstep.errors import OpError
from globalstep.wire.declarations import State
from globalstep.worker.client.causes import ASK_SECS, why_no_answer

if TYPE_CHECKING:
    from globalstep.proto import globalstep_pb2 as pb
    from globalstep.worker.client.client import ClusterClient


#: A chief gives a sign of life every few seconds.
_SILENT_SECS = 15.0
#: So does each client, every second.
_QUIET_SECS = 5.0


def why_no_chief(statuses: Sequence[pb.StatusReply]) -> str:
    """Say why the chief has not made the model ready."""
    lease = statuses[0].chief
    chief = lease.task or lease.holder
    if not chief:
        return (
            "no chief has come to PS task 0: it was not started yet, no task says is_chief=True, or the chief's "
            "cluster names other PS tasks"
        )
    if lease.silent_secs > _SILENT_SECS:
        return (
            f"{chief} is the chief, and was last heard {lease.silent_secs:.0f} s ago: it has died or is being started "
            "again, it cannot reach PS task 0, or it is stopped; with failover_secs another task takes its place"
        )
    if any(int(status.state) == State.VACANT for status in statuses):
        return (
            f"{chief} is the chief, and was heard {lease.silent_secs:.0f} s ago: it waits for a PS task that it "
            "cannot reach, or for a checkpoint, or it has not noticed yet that one was started again"
        )
    return (
        f"{chief} is the chief, and was heard {lease.silent_secs:.0f} s ago: it is initializing or restoring the "
        "model, which takes its time where that is large, its init_fn does something long, or it stands in a debugger"
    )


def why_not_ended(client: ClusterClient) -> str:
    """Say why the chief has not saved the last step and ended the job."""
    statuses = client.statuses(timeout_secs=ASK_SECS, brief=True)
    if isinstance(statuses[0], OpError):
        return why_no_answer(client)
    lease = statuses[0].chief
    chief = lease.task or lease.holder
    if not chief:
        return "no task has the chief's lease: the chief has left or died, and no task with failover_secs has asked yet"
    if lease.silent_secs > _QUIET_SECS:
        return (
            f"{chief} is the chief, and was last heard {lease.silent_secs:.0f} s ago: it has died, it is stopped, or "
            "it cannot reach PS task 0; this task takes its place when its failover_secs are over"
        )
    return (
        f"{chief} is the chief, and was heard {lease.silent_secs:.0f} s ago: it is in a long step, it saves, which "
        "takes its time where values are large, or its loop does not ask should_stop()"
    )


def why_not_left(client: ClusterClient, tasks: Sequence[str]) -> str:
    """Say why tasks have not left a job that is done."""
    statuses = client.statuses(timeout_secs=ASK_SECS, brief=True)
    answers = [status for status in statuses if not isinstance(status, OpError)]
    if len(answers) < len(statuses):
        return why_no_answer(client)
    silent: dict[str, float] = {}
    for one in (one for status in answers for one in status.clients):
        name = next((name for name in (one.task, one.client) if name in tasks), "")
        if name:
            silent[name] = min(one.silent_secs, silent.get(name, one.silent_secs))
    if not silent:
        gone = {task: how for status in answers for task, how in status.gone.items() if task in tasks}
        if gone:
            return f"{'; '.join(f'{task} {how}' for task, how in sorted(gone.items()))}: it may be started again"
        return (
            f"{tasks[0]} has not come yet: it is being started, it was never started, or it died before it came. Leave "
            "out of the ClusterSpec what is not to be started; a step limit, or request_stop(), ends a job at once"
        )
    name = max(silent, key=lambda name: silent[name])
    if silent[name] > _QUIET_SECS:
        return (
            f"{name} was last heard {silent[name]:.0f} s ago: it has died, its machine or process stands still, or it "
            "cannot reach the PS tasks any more; it counts as gone when its lease of 15 s is over"
        )
    return (
        f"{name} was heard {silent[name]:.0f} s ago, so it runs: its loop does not ask should_stop(), a step of it "
        "takes long, or it does something after its loop before it closes its session"
    )


def why_not_written(client: ClusterClient, directory: str) -> str:
    """Say why a checkpoint is not written yet."""
    cause = why_no_answer(client)
    if cause:
        return cause
    return (
        f"all PS tasks answer: the storage of {directory or '.'} is slow or hangs, the values are large, or pushes "
        "that come before the snapshot are still on their way"
    )

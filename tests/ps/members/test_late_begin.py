"""A BEGIN or a RECOVER that comes late, or twice, to a PS task that was started again: it begins nothing there."""

import pytest

from globalstep.errors import AbortedError, LostStateError, NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock
from globalstep.worker.client.recovering import recover_lost

VACANT, STARTED_SECS = pb.STATE_VACANT, 1000.0


def process(clock, log_dir=""):
    """A process of a PS task, as it is right after its start."""
    return Control(Handler(Shard(clock)), "p", "h", log_dir=str(log_dir))


def status(task):
    return task.call("Status", pb.StatusRequest(brief=True))


def begin(incarnation, spent=0, owner="chief", **more):
    return pb.BeginRequest(
        incarnation=incarnation,
        shards=2,
        sequencer=0,
        owner=owner,
        spent_incarnations=spent,
        key=bytes(32),
        run=pb.RunIdentity(id="a"),
        **more,
    )


@pytest.fixture
def clock():
    return ManualClock(STARTED_SECS)


@pytest.mark.parametrize("logged", [False, True])
def test_a_begin_that_is_older_than_the_process_is_refused(clock, tmp_path, logged):
    policy = pb.RunPolicy(durability="log" if logged else "checkpoint")
    first = process(clock, tmp_path)
    late = begin(int(STARTED_SECS * 1000) + 1, policy=policy)
    first.call("Begin", late)
    clock.advance(5.0)
    again = process(clock, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AbortedError, match="came too late: PS task 0 was started again"):
        again.call("Begin", late)
    assert (status(again).state, status(again).incarnation) == (VACANT, 0)
    assert sorted(tmp_path.rglob("*")) == before
    newer = begin(int((STARTED_SECS + 5.0) * 1000) + 1, policy=policy)
    again.call("Begin", newer)


def test_a_begin_from_a_host_whose_clock_is_ahead_is_refused_by_the_next_process(clock):
    """Its number is greater than the start of every process, but it was meant for another one."""
    first = process(clock)
    late = begin(10**9, spent=status(first).spent_incarnations)
    clock.advance(5.0)
    again = process(clock)
    with pytest.raises(AbortedError, match="begin anew"):
        again.call("Begin", late)
    assert status(again).state == VACANT
    first.call("Begin", late)


def test_a_doubled_begin_is_answered_alike_and_drops_nothing(clock):
    task = process(clock)
    first = begin(10**9, spent=status(task).spent_incarnations)
    for _ in range(2):
        task.call("Begin", first)
    for number in (10**9 - 1, 10**9):
        with pytest.raises(AbortedError, match=f"client chief began incarnation {10**9}"):
            task.call("Begin", begin(number, owner="late"))
    assert (status(task).incarnation, status(task).owner) == (10**9, "chief")


def test_a_begin_that_is_older_than_a_loss_of_state_is_refused(clock):
    task = process(clock)
    first = begin(10**9, spent=status(task).spent_incarnations)
    task.call("Begin", first)
    task.handler.shard.handle(events.Lose(task.handler.shard.log))
    with pytest.raises(AbortedError, match="or lost its state"):
        task.call("Begin", first)
    assert status(task).state == VACANT


class Transport:
    """Calls a task in this process."""

    label = "/job:ps/task:0"
    address = ""

    def __init__(self, task):
        self._task = task
        self.methods = []

    def unary(self, method, request, timeout_secs):
        self.methods.append(method)
        return _Done(self._task, method, request)


class _Done:
    def __init__(self, task, method, request):
        self._call = lambda: task.call(method, request)

    def result(self):
        return self._call()


def test_a_client_that_slept_through_a_restore_brings_no_task_back_to_the_old_life(clock, tmp_path):
    """Task 1 was restarted right after the new life began; its log of the old one must not be played."""
    transports = [Transport(process(clock, tmp_path)) for _ in range(3)]
    transports[2]._task.call("Begin", begin(10**9 + 1))
    with pytest.raises(AbortedError, match=f"is in incarnation {10**9 + 1}, this client in {10**9}"):
        recover_lost(transports, 10**9, 0, "", "a")
    assert [transport.methods for transport in transports] == [["Status"]] * 3


def test_a_number_that_a_dead_process_had_begun_is_not_given_again(clock, tmp_path):
    """Found by the simulation: another task's clock is ahead, so that the chief asks for the same number again."""
    policy = pb.RunPolicy(durability="log")
    process(clock, tmp_path).call("Begin", begin(10**9, policy=policy))
    again = process(clock, tmp_path)
    with pytest.raises(AbortedError, match="was begun before. Begin anew"):
        again.call("Begin", begin(10**9, policy=policy))
    assert status(again).spent_incarnations == 10**9
    again.call("Begin", begin(10**9 + 1, policy=policy))


def test_a_log_whose_begin_was_torn_off_is_no_log(clock, tmp_path):
    """Found by the simulation: a task said that it was back, and held nothing, again and again."""
    begun = process(clock, tmp_path)
    begun.call("Begin", begin(10**9, policy=pb.RunPolicy(durability="log")))
    begun.durability.close()
    (segment,) = tmp_path.rglob("segment-*.log")
    with segment.open("r+b") as file:
        file.truncate(40)
    again = process(clock, tmp_path)
    with pytest.raises(NotFoundError, match="the BEGIN of its life had not come to the disk"):
        again.call("Recover", pb.LogRequest(incarnation=10**9, shard=0, shards=2, run="a"))
    assert status(again).state == VACANT


def test_a_log_of_a_life_that_has_ended_is_not_played(clock, tmp_path):
    """Even where it is kept, for `globalstep replay`."""
    task = process(clock, tmp_path)
    kept = pb.RunPolicy(durability="log", keep_log=True)
    task.call("Begin", begin(10**9, policy=kept))
    task.call("Open", pb.OpenRequest(incarnation=10**9, client="chief"))
    task.call("Begin", begin(10**9 + 1, policy=kept))
    task.call("Open", pb.OpenRequest(incarnation=10**9 + 1, client="chief"))
    again = process(clock, tmp_path)
    late = pb.LogRequest(incarnation=10**9, shard=0, shards=2, run="a")
    with pytest.raises(NotFoundError, match="has ended, or another has begun"):
        again.call("Recover", late)
    assert status(again).state == VACANT
    with pytest.raises(LostStateError, match="cannot come back from a log: The run whose log is in"):
        recover_lost([Transport(again), Transport(process(clock, tmp_path))], 10**9, 1, "", "a")

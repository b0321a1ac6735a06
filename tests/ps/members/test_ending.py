"""When a PS task ends that nobody has told to: by a clock that is moved by hand."""

import math

import pytest

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.members.ending import EXIT_ABANDONED, Patience, Vigil
from globalstep.ps.members.presence import LINGER_SECS
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock

CHIEF, WORKER = "/job:worker/task:0", "/job:worker/task:1"
LEASE_SECS = 15.0
PATIENCE = Patience(start_secs=1000.0, abandon_secs=100.0)


class Watched:
    """A PS task's state and its vigil."""

    def __init__(self, patience=PATIENCE):
        self.clock = ManualClock()
        self.shard = Shard(self.clock)
        self.vigil = Vigil(self.shard, patience, self.clock)
        self.traffic = 0

    def begin(self, *expected, shards=1):
        self.shard.handle(
            events.Begin(1, shard=0, shards=shards, sequencer=0, owner="c", opened=True, expected_tasks=expected)
        )

    def comes(self, client, task):
        self.shard.handle(events.Heartbeat(client, task, LEASE_SECS))

    def leaves(self, client, task, unfinished=False):
        self.shard.handle(events.Leave(client, "", task, unfinished))

    def ends_after(self, limit_secs=5000):
        """Let time pass; give the second at which it ends, and the exit code."""
        for second in range(limit_secs):
            self.shard.members.find_losses()
            if (code := self.vigil.over(self.traffic)) is not None:
                return second, code
            self.clock.advance(1.0)
        return math.inf, None


@pytest.fixture
def watched():
    return Watched()


def test_where_nobody_ever_comes_it_ends_with_an_error(watched, caplog):
    assert watched.ends_after() == (1000, EXIT_ABANDONED)
    assert "No client has come yet; waiting for a chief, or a session, to begin a run" in caplog.text
    assert "ends in 970 s with code 3 unless a client comes (--start-secs)" in caplog.text
    assert len(caplog.records) < 12, "not too often"


def test_a_start_that_takes_its_time_is_nothing_to_speak_of(watched, caplog):
    """Programs import a framework for ten seconds before they come."""
    watched.ends_after(15)
    watched.comes("w", WORKER)
    watched.ends_after(14)
    assert not caplog.records
    watched.comes("w", WORKER)
    watched.ends_after(2)
    assert [f"holds no model; {WORKER}: waiting for the chief" in line for line in caplog.messages] == [True]
    watched.begin(CHIEF, WORKER)
    watched.leaves("w", WORKER)
    watched.ends_after(6)
    assert "never came" in caplog.messages[1], "once a run has begun it says so soon"


def test_workers_that_crash_before_there_was_a_chief_are_named(watched, caplog):
    watched.comes("w", WORKER)
    assert watched.ends_after() == (LEASE_SECS + 100, EXIT_ABANDONED)
    assert f"{WORKER} is gone, without having left" in caplog.text


def test_when_every_task_has_left_in_good_order_the_job_is_over(watched, caplog):
    watched.begin(CHIEF, WORKER)
    for client, task in (("c", CHIEF), ("w", WORKER)):
        watched.comes(client, task)
        watched.leaves(client, task)
    assert watched.ends_after() == (LINGER_SECS, 0)
    assert "the job was not declared done: all that came have left" in caplog.text


def test_where_nobody_knows_who_is_to_come_one_who_left_may_come_back_for_longer(watched):
    watched.begin()
    watched.comes("notebook", "")
    watched.leaves("notebook", "")
    assert watched.ends_after() == (100, 0)


def test_while_a_client_is_there_it_waits_for_ever_without_a_word(watched, caplog):
    watched.begin(CHIEF, WORKER)
    for _ in range(500):
        watched.comes("w", WORKER)
        assert watched.ends_after(10) == (math.inf, None)
    assert not caplog.records


@pytest.mark.parametrize("expected", [(CHIEF,), (CHIEF, WORKER)])
def test_the_end_waits_a_little_for_tasks_that_never_came(watched, expected):
    watched.begin(*expected)
    watched.comes("c", CHIEF)
    watched.shard.handle(events.Finish(1, "c"))
    watched.leaves("c", CHIEF)
    assert watched.ends_after() == (LINGER_SECS + 1 if WORKER in expected else 0, 0)


@pytest.mark.parametrize("comes_back", [False, True])
def test_one_of_two_ps_tasks_waits_for_the_chief_that_was_killed_when_it_had_told_this_one_of_the_end(
    watched, caplog, comes_back
):
    """Without the one that has heard it could not tell the other."""
    watched.begin(CHIEF, shards=2)
    watched.comes("c", CHIEF)
    watched.shard.handle(events.Finish(1, "c"))
    if comes_back:
        assert watched.ends_after(65) == (math.inf, None)
        watched.comes("c2", CHIEF)
        watched.leaves("c2", CHIEF)
    assert watched.ends_after() == (0 if comes_back else LEASE_SECS + 100, 0)
    assert f"as {CHIEF} said, which is gone and may not have told all PS tasks" in caplog.text


def test_a_lost_worker_is_waited_for_and_named(watched, caplog):
    watched.begin(CHIEF, WORKER)
    watched.comes("w", WORKER)
    watched.comes("c", CHIEF)
    watched.leaves("c", CHIEF)
    assert watched.ends_after() == (LEASE_SECS + 100, EXIT_ABANDONED)
    assert f"{WORKER} is gone, without having left" in caplog.text


def test_a_chief_that_is_started_again_in_time_goes_on(watched):
    watched.begin(CHIEF)
    watched.comes("c", CHIEF)
    assert watched.ends_after(int(LEASE_SECS) + 99) == (math.inf, None)
    watched.comes("started again", CHIEF)
    watched.leaves("started again", CHIEF)
    assert watched.ends_after() == (LINGER_SECS, 0)


def test_a_task_that_left_before_its_work_was_done_may_come_back(watched, caplog):
    watched.begin(CHIEF)
    watched.comes("c", CHIEF)
    watched.leaves("c", CHIEF, unfinished=True)
    assert watched.ends_after() == (100, EXIT_ABANDONED)
    assert f"{CHIEF} left before the end of the job" in caplog.text


def test_that_a_client_leaves_says_not_that_the_job_is_done_to_a_task_that_was_started_again(watched, caplog):
    watched.comes("w", WORKER)
    watched.leaves("w", WORKER)
    assert watched.ends_after() == (100, EXIT_ABANDONED)
    assert "this task holds no model, and nothing says that the last step was saved" in caplog.text


def test_a_task_that_never_came_is_named(watched, caplog):
    watched.begin(CHIEF, WORKER)
    watched.comes("c", CHIEF)
    watched.leaves("c", CHIEF)
    assert watched.ends_after() == (100, EXIT_ABANDONED)
    assert f"{WORKER} never came" in caplog.text


def test_whoever_pushes_without_a_lease_is_there(watched):
    watched.begin(CHIEF)
    watched.comes("c", CHIEF)
    watched.leaves("c", CHIEF)
    for _ in range(20):
        watched.traffic += 1
        assert watched.ends_after(int(LINGER_SECS) - 1) == (math.inf, None)


@pytest.mark.parametrize("came", [False, True])
def test_zero_is_for_ever(came):
    watched = Watched(Patience(0.0, 0.0))
    if came:
        watched.comes("w", WORKER)
    assert watched.ends_after(20_000) == (math.inf, None)


def test_a_job_that_is_done_names_who_does_not_leave(watched, caplog):
    watched.begin(CHIEF, WORKER)
    watched.shard.handle(events.Finish(1, "c"))
    for _ in range(20):
        watched.comes("w", WORKER)
        assert watched.ends_after(1) == (math.inf, None)
    assert f"The job is done; waiting for {WORKER} to leave" in caplog.text


def test_an_abandoned_task_closes_and_tells_its_exit_code():
    server = PSServer(PSOptions(grace_secs=0.2, patience=Patience(abandon_secs=20.0)), clock=ManualClock())
    server.control.call("Heartbeat", pb.HeartbeatRequest(client="w", task=WORKER, lease_secs=LEASE_SECS))
    server.control.call("Leave", pb.LeaveRequest(client="w", task=WORKER, unfinished=True))
    server.join()
    assert server.exit_code == EXIT_ABANDONED


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="GLOBALSTEP_PS_START_SECS is "):
        Patience.from_environ({"GLOBALSTEP_PS_START_SECS": text})

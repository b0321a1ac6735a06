"""How far workers are ahead of the slowest, by a clock that is moved by hand (rung 1)."""

from __future__ import annotations

import pytest

from globalstep.ps.members.leads import Leads
from globalstep.ps.members.presence import LINGER_SECS, UNLEASED_SECS, Presence, Standing
from globalstep.runtime.clock import ManualClock

LEASE_SECS = 15.0


class Run:
    """Workers by name, with leases and pushes."""

    def __init__(self, most):
        self.clock = ManualClock()
        self.presence = Presence(self.clock)
        self.leads = Leads(most)
        self._begun_at = self.clock.monotonic()

    def heard(self, *names, trains=True):
        for name in names:
            self.presence.heard(name, f"task {name}", LEASE_SECS, Standing(takes_task=trains))

    def push(self, name, times=1):
        for _ in range(times):
            self.leads.count(name, self.clock.monotonic())

    def ask(self, name):
        now = self.clock.monotonic()
        return self.leads.ask(name, self.presence, now, now - self._begun_at)

    def pushes_until_held(self, name):
        """How many pushes a worker makes that waits as it is told, and asks when it has to."""
        made, free = 0, 0
        while made < 100:
            self.push(name)
            made += 1
            if free:
                free -= 1
                continue
            answer = self.ask(name)
            if not answer.over:
                return made
            free = answer.free_pushes
        return made


@pytest.mark.parametrize("most", [0, 1, 2, 7])
def test_a_worker_is_held_one_push_beyond_the_bound(most):
    run = Run(most)
    run.heard("a", "b")
    run.push("b")
    assert run.pushes_until_held("a") == most + 2
    run.push("b")
    assert run.ask("a").over


def test_the_slowest_is_never_held():
    run = Run(0)
    run.heard("a", "b", "c")
    for name, times in (("a", 5), ("b", 3), ("c", 4)):
        run.push(name, times)
    assert [run.ask(name).over for name in "abc"] == [False, True, False]


def test_so_many_workers_are_counted_and_then_those_go_that_are_not_here():
    """Each has pushed once under a name of its own, and is ahead of the one that is here."""
    run = Run(5)
    run.heard("a")
    for number in range((1 << 16) + 1):
        run.push(f"ghost{number}")
    run.clock.advance(UNLEASED_SECS + 1.0)
    run.heard("a")
    assert run.ask("a").over
    assert not run.leads.view(0.0)


def test_who_waits_is_told_for_whom_since_when_and_why():
    run = Run(1)
    run.heard("a", "b", "c")
    run.push("a")
    run.push("b", 4)
    run.clock.advance(7.0)
    answer = run.ask("b")
    assert (answer.over, answer.free_pushes, answer.lead) == (False, 0, 4)
    assert list(answer.waits_for) == [
        "task c, which came 7 s ago and has not pushed yet",
        "task a, which is behind by 3, pushed 7 s ago, and was heard of 7 s ago",
    ]


def test_of_many_some_are_named():
    run = Run(0)
    names = [f"w{at}" for at in range(20)]
    run.heard("a", *names)
    run.push("a")
    answer = run.ask("a")
    assert len(answer.waits_for) == 9
    assert answer.waits_for[-1] == "12 more"


def test_a_dead_worker_is_waited_for_until_its_lease_is_over():
    run = Run(0)
    run.heard("a", "b")
    run.push("b")
    run.push("a", 2)
    run.clock.advance(LEASE_SECS)
    run.heard("a")
    assert not run.ask("a").over
    run.clock.advance(0.3)
    assert run.ask("a").over


def test_who_has_left_is_not_waited_for():
    run = Run(0)
    run.heard("a", "b")
    run.push("b")
    run.push("a", 2)
    assert not run.ask("a").over
    run.presence.left("b")
    run.clock.advance(0.3)
    assert run.ask("a").over


def test_who_comes_back_begins_with_the_slowest():
    run = Run(1)
    run.heard("a", "b")
    run.push("b")
    run.push("a")
    run.clock.advance(LEASE_SECS + 1.0)
    run.heard("a")
    run.push("a", 50)
    assert run.ask("a").over
    run.heard("b")  # it slept
    assert run.pushes_until_held("a") == 2
    assert run.pushes_until_held("b") == 4


def test_who_comes_late_begins_with_the_slowest():
    run = Run(1)
    run.heard("a")
    run.push("a", 50)
    assert run.ask("a").over
    run.heard("new")
    run.clock.advance(1.0)
    assert run.pushes_until_held("a") == 2
    run.push("new")
    assert run.ask("a").over
    assert run.ask("new").free_pushes == 1


def test_who_never_pushes_is_waited_for_a_while_once():
    run = Run(0)
    run.heard("a", "looks on")
    run.heard("evaluates", trains=False)
    run.push("a")
    assert list(run.ask("a").waits_for) == ["task looks on, which came 0 s ago and has not pushed yet"]
    run.clock.advance(LINGER_SECS)
    run.heard("a", "looks on", "evaluates")
    assert run.pushes_until_held("a") == 100


def test_who_keeps_no_lease_is_waited_for_a_while_after_its_push():
    run = Run(0)
    run.heard("a")
    run.push("b")  # of a PS task that has come back, which has not heard of it yet
    assert run.pushes_until_held("a") == 2
    assert list(run.ask("a").waits_for) == ["client b, which is behind by 1, pushed 0 s ago, and was heard of 0 s ago"]
    run.clock.advance(UNLEASED_SECS)
    assert run.ask("a").over


def test_alone_without_a_lease_nobody_waits():
    run = Run(0)
    assert run.pushes_until_held("a") == 100


def test_who_waits_and_since_when_can_be_looked_at():
    run = Run(1)
    run.heard("a", "b")
    run.push("b")
    run.push("a", 4)
    assert not run.ask("a").over
    run.clock.advance(2.0)
    assert not run.ask("a").over
    run.clock.advance(1.0)
    assert run.leads.view(run.clock.monotonic()) == {"a": (3, 3.0), "b": (0, 0.0)}
    run.push("b", 2)
    assert run.ask("a").over
    assert run.leads.view(run.clock.monotonic()) == {"a": (1, 0.0), "b": (0, 0.0)}


def test_who_was_too_far_ahead_at_its_push_reads_anew_however_late_it_asks():
    run = Run(0)
    run.heard("a", "b")
    run.push("b")
    run.push("a")
    assert run.ask("a").over
    run.push("a")
    run.push("b")  # before "a" has asked: it need not wait any more, but has read without this
    assert [run.ask("a").waited for _ in range(2)] == [True, True]
    assert (run.ask("b").over, run.ask("b").waited) == (True, False)


def test_clients_of_long_ago_are_forgotten():
    run = Run(0)
    run.heard("a")
    for number in range(100):
        run.push("a")
        run.push(f"gone {number}")
        run.clock.advance(UNLEASED_SECS)
        run.heard("a")
        run.ask("a")
    assert len(run.leads._clocks) == len(run.leads._pushed_at) < 25

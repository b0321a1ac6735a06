"""A state that cannot be is noticed, whatever is wrong with it."""

import pytest

from globalstep.ps.ledger.ledger import Entry, EntryKind, Unfinished
from globalstep.ps.ledger.signatures import Floor, Signer
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.shard.replies import Kept
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, PushId, Read, State, VariableDecl

PUSH = PushId("w", 1)


def _set(name, value):
    return lambda now: setattr(now, name, value)


WRONG = {
    "a vacant task that holds something": _set("state", State.VACANT),
    "two sequencers": _set("sequencer", 1),
    "a shard that there is not": _set("shard", 2),
    "an entry that was admitted and not applied": _set("applied", 1),
    "a step that nobody may see": lambda now: now.ledger.visible.pop("step"),
    "a step that the store has otherwise": lambda now: now.store.set_steps({"step": 7}),
    "a visible step that lags behind nothing": lambda now: (
        now.ledger.under_way()[3].clear(),
        now.ledger.under_way()[2][1].clear(),
    ),
    "a reply from the future": lambda now: now.replies.keep(Kept(PUSH, 99, (), [])),
    "a reply to somebody else": lambda now: now.replies.by_client.update(x=Kept(PUSH, 1, (), [])),
    "a shard that has applied what was not admitted": lambda now: now.ledger.under_way()[0].__setitem__(1, 99),
    "a pending entry that was applied": lambda now: now.ledger.under_way()[2][1].append(
        Entry(0, EntryKind.PUSH, PUSH, 0)
    ),
    "an entry that waits for no shard": lambda now: now.ledger.under_way()[3].append(Unfinished(2, set(), {"step": 1})),
    "an entry that waits for a shard without it": lambda now: now.ledger.under_way()[3].append(
        Unfinished(2, {1}, {"step": 1})
    ),
}


def running():
    """The sequencer of two shards; its step is 1, and an entry is pending on the other shard."""
    shard = Shard(ManualClock())
    shard.handle(events.Begin(1, shard=0, shards=2, sequencer=0, owner="chief", opened=True))
    shard.handle(events.Declare(1, "chief", [VariableDecl("step", "int64", (), is_step=True)], []))
    start = PushParts([Op(OpKind.ASSIGN, "step", fill=0.0)])
    shard.handle(events.Push(1, PushId("chief", 1), start, (), (), {}))
    shard.handle(events.Push(1, PUSH, PushParts(), [Increment("step")], (), {}, [1]))
    return shard


def test_a_state_that_can_be_has_no_problems():
    shard = running()
    assert problems(shard.now) == []
    assert (shard.now.ledger.steps, shard.now.ledger.visible) == ({"step": 1}, {"step": 0})


@pytest.mark.parametrize("options", [{}, {"layout": Layout((), None, [Read("step")], [], [], 0), "known": True}])
def test_a_pull_shows_a_step_as_all_tasks_have_it(options):
    shard = running()
    for _ in range(2):
        assert shard.handle(events.Pull(1, "worker", [Read("step")], **options)).values[0] == 0
    floor = Signer(b"", 1).floor(1, 2)
    assert shard.handle(events.Pull(1, "worker", [Read("step")], {1: Floor(2, floor)}, **options)).values[0] == 1


@pytest.mark.parametrize("what", WRONG)
def test_a_state_that_cannot_be_is_noticed(what):
    now = running().now
    WRONG[what](now)
    assert problems(now)

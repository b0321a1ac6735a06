"""Calls of a chief that come late, or of one that was replaced: they do nothing to a life that is not theirs."""

import pytest

from globalstep.errors import AbortedError, FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import PushId
from globalstep.worker.client.client import ClusterClient

INCARNATION = 10**9


def process(name, clock):
    """A process of a PS task, as it is right after its start."""
    return Control(Handler(Shard(clock)), name, "h")


def status(task):
    return task.call("Status", pb.StatusRequest(brief=True))


@pytest.fixture
def task():
    """A PS task in a run whose chief has term 7 and was replaced by one of term 8."""
    task = process("p", ManualClock())
    run = pb.RunIdentity(id="a")
    step = pb.VariableDecl(name="global_step", dtype="int64", is_step=True)
    task.call("Begin", pb.BeginRequest(incarnation=INCARNATION, shards=1, owner="first", run=run, chief_term=7))
    task.call("Declare", pb.DeclareRequest(incarnation=INCARNATION, client="first", variables=[step]))
    task.call(
        "Open",
        pb.OpenRequest(incarnation=INCARNATION, client="first", last_steps={"global_step": 100}, run=run, chief_term=7),
    )
    for name, term in (("first", 7), ("second", 8)):
        beat = pb.HeartbeatRequest(client=name, candidate=name, chief_term=term, lease_secs=15.0, run=run)
        task.call("Heartbeat", beat)
    return task


def test_a_finish_of_another_life_does_not_end_a_task_that_has_just_started():
    fresh = process("new", ManualClock())
    for late in ("", "old"):
        with pytest.raises(FailedPreconditionError, match=f"meant for the process {late or 'that it does not name'}"):
            fresh.call("Finish", pb.EndRequest(incarnation=INCARNATION, client="chief", process=late))
        assert status(fresh).state == pb.STATE_VACANT
    # One that was started again within the run is told so by name.
    fresh.call("Finish", pb.EndRequest(incarnation=INCARNATION, client="chief", process="new"))
    assert status(fresh).state == pb.STATE_DONE


@pytest.mark.parametrize("incarnation", [0, INCARNATION])
def test_a_task_that_ended_without_a_state_keeps_nothing(incarnation):
    """What a client has heard of its incarnation is 0; a part under that number would have been kept."""
    shard = Shard(ManualClock())
    fresh = Control(Handler(shard), "new", "h")
    fresh.call("Finish", pb.EndRequest(incarnation=INCARNATION, client="chief", process="new"))
    with pytest.raises(AbortedError, match=f"belongs to incarnation {incarnation}, and this PS task has none"):
        shard.handle(events.Stage(incarnation, PushId("liar", 1), PushParts()))
    assert problems(shard.now) == []
    # Its chief may say again that the job is done.
    fresh.call("Finish", pb.EndRequest(incarnation=INCARNATION, client="chief", process="new"))
    assert status(fresh).state == pb.STATE_DONE


def test_a_finish_of_another_incarnation_is_refused(task):
    with pytest.raises(AbortedError, match=f"belongs to incarnation {INCARNATION - 1}"):
        task.call("Finish", pb.EndRequest(incarnation=INCARNATION - 1, client="second", process="p"))
    assert status(task).state == pb.STATE_READY


def test_a_chief_finishes_with_a_task_that_lost_its_state_in_the_run():
    """Also where it was started again between the question for its process and the call."""
    clock = ManualClock()
    ps = LocalPS(2, clock=clock)
    client = ClusterClient(ps.transports(), clock=clock)
    client.begin(open=True)
    ps.controls[1].handler.shard.handle(events.Lose(ps.controls[1].handler.shard.log))
    call = Control.call
    asked = []

    def restarted(self, method, request):
        reply = call(self, method, request)
        if method == "Status" and self is ps.controls[1] and not asked:
            asked.append(self.process)
            self.process = "started again"
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Control, "call", restarted)
        client.finish()
    assert asked
    assert [status(control).state for control in ps.controls] == [pb.STATE_DONE] * 2
    client.close()


def test_a_chief_that_was_replaced_sets_no_limits(task):
    late = pb.OpenRequest(incarnation=INCARNATION, client="first", num_steps={"global_step": 1}, chief_term=7)
    with pytest.raises(AbortedError, match="term 7, which has been replaced"):
        task.call("Open", late)
    assert status(task).limits == {"global_step": 100}


def test_a_chief_that_was_replaced_writes_no_snapshot(task, tmp_path):
    late = pb.WriteSnapshotRequest(incarnation=INCARNATION, directory=str(tmp_path), file="f", chief_term=7)
    late.snapshot.client, late.snapshot.sequence = "first", 1
    with pytest.raises(AbortedError, match="term 7, which has been replaced"):
        task.call("WriteSnapshot", late)


def test_a_goodbye_that_comes_late_does_not_empty_the_lease(task):
    """The process that left it has been given it again, with a greater term."""
    for term, holder in ((7, "second"), (8, "")):
        task.call("Leave", pb.LeaveRequest(client=f"session of {term}", candidate="second", chief_term=term))
        assert status(task).chief.holder == holder

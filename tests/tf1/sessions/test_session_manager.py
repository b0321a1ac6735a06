import pytest
from small_model import LocalCluster, build

from globalstep.chief.sessions.cluster_start import Found, not_serving, stop_limits, survey
from globalstep.errors import DeadlineExceededError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph_keys import GraphKeys
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.session_manager import SessionManager
from globalstep.tf1.variables.variable_collections import (
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import StopLimit
from globalstep.worker.waits.polling_wait import PollingWait


def status(state, incarnation=0):
    return pb.StatusReply(state=state, incarnation=incarnation)


VACANT = status(pb.STATE_VACANT)


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        ([VACANT, VACANT], Found.VACANT),
        ([status(pb.STATE_READY, 3), status(pb.STATE_READY, 3)], Found.RUNNING),
        ([status(pb.STATE_READY, 3), status(pb.STATE_DONE, 3)], Found.RUNNING),
        ([status(pb.STATE_READY, 3), VACANT], Found.BROKEN),
        ([status(pb.STATE_DONE), status(pb.STATE_DONE)], Found.BROKEN),
        ([status(pb.STATE_READY, 3), status(pb.STATE_READY, 2)], Found.BROKEN),
        ([status(pb.STATE_INITIALIZING, 1), status(pb.STATE_INITIALIZING, 1)], Found.BROKEN),
    ],
)
def test_what_a_chief_finds(statuses, found):
    assert survey(statuses) is found


def test_who_does_not_serve_is_named():
    labels = ["/job:ps/task:0 at a:1", "/job:ps/task:1 at b:2"]
    assert not_serving([status(pb.STATE_READY, 1), status(pb.STATE_READY, 1)], labels) == ""
    assert not_serving([status(pb.STATE_READY, 1), VACANT], labels) == (
        "the chief to initialize or restore the model: /job:ps/task:1 at b:2 is vacant"
    )
    assert "/job:ps/task:0 at a:1: 1; /job:ps/task:1 at b:2: 2" in not_serving(
        [status(pb.STATE_READY, 1), status(pb.STATE_READY, 2)], labels
    )


def test_the_lowest_stop_limit_counts():
    hooks = [StopAtStepHook(last_step=50), object(), StopAtStepHook(num_steps=20)]
    assert stop_limits(hooks, "s", 10, {}) == [StopLimit("s", last_step=30)]
    assert stop_limits(hooks[:2], "s", 10, {}) == [StopLimit("s", last_step=50)]
    # A chief that comes back to a running cluster does not count its steps anew.
    assert stop_limits(hooks[2:], "s", 25, {"s": 30}) == [StopLimit("s", last_step=30)]
    assert stop_limits([object()], "s", 0, {}) == []


def test_a_polling_wait_is_quiet_for_5_s_and_speaks_every_30_s(caplog):
    clock = ManualClock()
    wait = PollingWait(clock, max_wait_secs=100)
    with caplog.at_level("INFO", "globalstep"):
        while wait.pause("waiting for ps 1 at b:2"):
            pass
    assert clock.monotonic() == 100.0
    assert len(caplog.messages) == 4
    assert caplog.messages[0].startswith(("Waited 5 s", "Waited 6 s"))
    assert caplog.messages[0].endswith("waiting for ps 1 at b:2")


def test_a_polling_wait_polls_fast_at_first():
    clock = ManualClock()
    wait = PollingWait(clock, max_wait_secs=100)
    waits = []
    for _ in range(9):
        before = clock.monotonic()
        wait.pause("x")
        waits.append(clock.monotonic() - before)
    assert waits[0] == pytest.approx(0.1)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_a_worker_that_waits_in_vain_says_for_whom(cluster):
    build()
    manager = SessionManager(ready_op=report_uninitialized_variables(), clock=ManualClock())
    with pytest.raises(DeadlineExceededError) as error:
        manager.wait_for_session(cluster.target, max_wait_secs=60)
    assert str(error.value) == (
        "Session was not ready after waiting 60 secs. It waited for the chief to initialize or restore the "
        "model: /job:ps/task:0 in this process is vacant; /job:ps/task:1 in this process is vacant"
    )


def test_a_worker_waits_for_variables_that_nobody_has_initialized(cluster):
    build()
    manager = SessionManager(ready_op=report_uninitialized_variables(), clock=ManualClock())
    chief = manager.prepare_session(cluster.target, init_op=global_variables_initializer())
    Variable([1.0], name="extra")
    worker = SessionManager(ready_op=report_uninitialized_variables(), clock=ManualClock())
    with pytest.raises(
        DeadlineExceededError, match=r"It waited for Variables not initialized: extra. The run has no Variable"
    ):
        worker.wait_for_session(cluster.target, max_wait_secs=5)
    chief.close()


@pytest.mark.usefixtures("soon")
def test_a_task_that_does_not_answer_is_named(cluster, monkeypatch):
    build()
    control = cluster.ps.controls[1]
    monkeypatch.setattr(
        type(control), "call", lambda self, method, request: _unreachable(self is control, self, method, request)
    )
    with pytest.raises(DeadlineExceededError, match=r"^Session was not ready after waiting 20 secs\. .*no answer"):
        SessionManager(clock=ManualClock()).prepare_session(
            cluster.target, init_op=global_variables_initializer(), max_wait_secs=20
        )


def _unreachable(is_down, control, method, request):
    if is_down:
        raise UnavailableError("/job:ps/task:1: no answer")
    return getattr(control, f"_{method}")(request)


def test_there_must_be_a_way_to_initialize(cluster):
    build()
    with pytest.raises(
        RuntimeError, match=r"^Model is not initialized and no init_op or init_fn or local_init_op was given$"
    ):
        SessionManager().prepare_session(cluster.target)


def test_one_source_of_a_restore(cluster):
    model = build()
    with pytest.raises(ValueError, match=r"^Can not provide both checkpoint_dir and checkpoint_filename_with_path\.$"):
        SessionManager().prepare_session(
            cluster.target, saver=Saver([model.w]), checkpoint_dir="a", checkpoint_filename_with_path="b"
        )


def test_recover_session_says_whether_the_model_is_ready(cluster, tmp_path):
    model = build()
    saver, initialize = Saver(), global_variables_initializer()
    manager = SessionManager(ready_op=report_uninitialized_variables())
    session, ready = manager.recover_session(cluster.target, saver, checkpoint_dir=str(tmp_path))
    assert not ready
    session.run(initialize)
    session.run(model.train, {model.by: 3.0})
    saver.save(session, str(tmp_path / "m"), global_step=model.step)
    session.close()
    again, ready = manager.recover_session(cluster.target, saver, checkpoint_dir=str(tmp_path))
    assert ready
    again.close()
    other = LocalCluster(shards=3)
    restored, ready = manager.recover_session(other.target, saver, checkpoint_dir=str(tmp_path))
    assert ready
    assert restored.run(model.w).tolist() == [3.0, 3.0]
    restored.close()
    other.close()


def test_recover_session_runs_local_init_without_a_checkpoint(cluster):
    build()
    epoch = Variable(7.0, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], name="epoch")
    manager = SessionManager(local_init_op=local_variables_initializer(), ready_op=report_uninitialized_variables())
    session, ready = manager.recover_session(cluster.target)
    assert not ready
    assert session.run(epoch) == 7
    session.close()


def test_waiting_for_a_checkpoint_has_an_end(cluster, tmp_path):
    build()
    clock = ManualClock()
    manager = SessionManager(clock=clock)
    session = manager.prepare_session(
        cluster.target,
        init_op=global_variables_initializer(),
        saver=Saver(),
        checkpoint_dir=str(tmp_path),
        wait_for_checkpoint=True,
        max_wait_secs=50,
    )
    assert clock.monotonic() == 50.0
    session.close()

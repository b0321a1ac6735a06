import threading

import pytest
from small_model import build

from globalstep.errors import AbortedError, OutOfRangeError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.graph.graph import Graph, get_default_graph
from globalstep.tf1.ops.constant_ops import constant
from globalstep.tf1.ops.summaries import summary_iterator
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.sessions.supervisor import Supervisor, basic_train_loop


def events_in(directory):
    (file,) = directory.glob("events.*")
    return list(summary_iterator(str(file)))


def test_the_old_loop_trains_saves_and_ends(cluster, tmp_path):
    model = build()
    sv = Supervisor(logdir=str(tmp_path), save_model_secs=600, save_summaries_secs=600)
    assert get_default_graph().finalized
    with sv.managed_session(cluster.target) as sess:
        step = 0
        while not sv.should_stop() and step < 5:
            _, step = sess.run([model.train, model.step], {model.by: 1.0})
        sv.saver.save(sess, sv.save_path, global_step=sv.global_step)
    assert (tmp_path / "model.ckpt-6.index.json").exists()
    assert (tmp_path / "graph.pbtxt").exists()
    assert cluster.view().state == pb.STATE_DONE
    logs = [event.session_log.status for event in events_in(tmp_path) if event.HasField("session_log")]
    assert logs[0] == 1
    assert logs[-1] == 2


def test_it_restores_and_calls_init_fn_only_without_a_checkpoint(tmp_path):
    calls, found = [], []
    for _ in range(2):
        with Graph().as_default():
            model = build()
            sv = Supervisor(logdir=str(tmp_path), init_fn=calls.append)
            with sv.managed_session() as sess:
                found.append(sess.run(model.w).tolist())
                sess.run(model.train, {model.by: 2.0})
                sv.saver.save(sess, sv.save_path, global_step=model.step)
    assert found == [[0.0, 0.0], [2.0, 2.0]]
    assert len(calls) == 1


@pytest.mark.parametrize("how", ["loop", "request", "end of data", "closed"])
def test_a_chief_that_stops_first_goes_on_to_save_until_the_others_have_left(cluster, tmp_path, how):
    """Its stop ends nobody else, as in TensorFlow: a worker trains all of its own data."""
    waits = threading.Event()

    class Waits(type(SYSTEM_CLOCK)):
        """Says when the chief waits."""

        def wait(self, event, timeout_secs):
            if threading.current_thread().name == "chief":
                waits.set()
            return super().wait(event, timeout_secs)

    model = build()
    chief = Supervisor(
        logdir=str(tmp_path), save_model_secs=10_000, save_summaries_secs=0, stop_grace_secs=5, clock=Waits()
    )
    session = chief.prepare_or_wait_for_session(cluster.target)

    def run():
        session.run(model.train, {model.by: 1.0})
        if how == "request":
            chief.request_stop()
        elif how == "end of data":
            chief.request_stop(OutOfRangeError("no more input"))
        elif how == "closed":
            session.close()
        chief.stop()

    thread = threading.Thread(target=run, name="chief")
    with Graph().as_default():
        its = build()
        worker = Supervisor(is_chief=False)
        with worker.managed_session(cluster.target) as sess:
            sess.run(its.train, {its.by: 1.0})
            thread.start()
            assert waits.wait(30)
            for _ in range(9):
                assert not worker.should_stop()
                sess.run(its.train, {its.by: 1.0})
            assert thread.is_alive()
            assert cluster.view().state == pb.STATE_READY
    thread.join(60)
    assert not thread.is_alive()
    assert chief.should_stop()
    assert cluster.view().state == pb.STATE_DONE
    assert cluster.sequencer.steps == {"global_step": 11}
    assert (tmp_path / "model.ckpt-11.index.json").exists() == (how != "closed")
    assert (worker.save_path, worker.summary_op) == (None, None)
    session.close()


def test_a_session_that_was_closed_before_the_stop_ends_the_job_too(cluster):
    model = build()
    sv = Supervisor()
    with sv.prepare_or_wait_for_session(cluster.target) as sess:
        sess.run(model.train, {model.by: 1.0})
    assert cluster.view().state == pb.STATE_READY
    sv.stop()
    assert cluster.view().state == pb.STATE_DONE
    sv.stop()


def test_a_stop_after_a_session_of_its_own_was_closed_does_nothing():
    model = build()
    sv = Supervisor()
    with sv.prepare_or_wait_for_session() as sess:
        sess.run(model.train, {model.by: 1.0})
    sv.stop()
    assert sv.should_stop()


def test_an_error_of_the_block_is_raised_and_does_not_end_the_job(cluster):
    build()
    sv = Supervisor()
    with pytest.raises(KeyError, match="a bug"), sv.managed_session(cluster.target):
        raise KeyError("a bug")
    assert cluster.view().state == pb.STATE_READY


def test_the_end_of_an_input_ends_the_block(cluster):
    build()
    sv = Supervisor()
    with sv.managed_session(cluster.target):
        raise OutOfRangeError("no more input")
    assert cluster.view().state == pb.STATE_DONE


def test_an_error_of_a_service_stops_the_loop():
    build()
    sv = Supervisor()

    def run():
        with sv.managed_session():
            sv.loop(None, lambda: 1 / 0)
            sv.wait_for_stop()
            assert sv.should_stop()

    with pytest.raises(ZeroDivisionError):
        run()


def test_loop_calls_until_the_stop():
    build()
    called = threading.Event()
    sv = Supervisor()
    with sv.managed_session():
        thread = sv.loop(0.0, called.set)
        assert called.wait(10)
    assert not thread.is_alive()


def test_services_write_summaries_and_checkpoints(tmp_path):
    model = build()
    scalar("loss", model.loss)
    sv = Supervisor(logdir=str(tmp_path), save_summaries_secs=0.01, save_model_secs=0.01)
    with sv.managed_session() as sess:
        for _ in range(3):
            sess.run(model.train, {model.by: 1.0})
    assert list(tmp_path.glob("model.ckpt-*.index.json"))
    tags = {value.tag for event in events_in(tmp_path) for value in event.summary.value}
    assert tags == {"loss", "global_step/sec"}


def test_a_summary_of_the_program_is_written_at_the_present_step(tmp_path):
    model = build()
    summary = scalar("loss", model.loss)
    sv = Supervisor(logdir=str(tmp_path), summary_op=None, save_model_secs=0, save_summaries_secs=0)
    with sv.managed_session() as sess:
        sess.run(model.train, {model.by: 1.0})
        sv.summary_computed(sess, sess.run(summary))
        sv.SummaryComputed(sess, sess.run(summary), global_step=7)
    steps = [event.step for event in events_in(tmp_path) if event.summary.value]
    assert steps == [1, 7]


def test_what_needs_a_writer_or_a_chief_says_so():
    constant(1.0)
    for sv in (Supervisor(logdir=""), Supervisor(is_chief=False)):
        with pytest.raises(RuntimeError, match=r"^Writing a summary requires a summary writer\.$"):
            sv.summary_computed(None, b"")
        assert sv.save_path is None
    with pytest.raises(RuntimeError, match=r"^Only chief supervisor can start standard services\."):
        sv.start_standard_services(None)


def test_a_supervisor_can_be_used_again():
    model = build()
    sv = Supervisor()
    for _ in range(2):
        with sv.managed_session() as sess:
            assert sess.run(model.w).tolist() == [0.0, 0.0]


def test_the_basic_loop_goes_on_where_a_task_was_restarted(tmp_path):
    model, runs = build(), []

    def step(session, stop_at, by):
        runs.append(session.run(model.train, {model.by: by}))
        if len(runs) == 2:
            raise AbortedError("A PS task was restarted.")
        if len(runs) == stop_at:
            sv.request_stop()

    sv = Supervisor(logdir=str(tmp_path))
    basic_train_loop(sv, step, args=[4], kwargs={"by": 1.0})
    assert len(runs) == 4

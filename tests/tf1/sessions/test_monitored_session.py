import threading

import numpy as np
import pytest
from small_model import build

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from globalstep.chief.sessions.train_loop import MAX_RECOVERIES
from globalstep.errors import AbortedError, JobDoneError, OutOfRangeError, UnavailableError
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.ops.constant_ops import constant, placeholder
from globalstep.tf1.sessions.monitored_session import MonitoredSession, SingularMonitoredSession
from globalstep.worker.client.joined_run import Shutdown


class Journal(SessionRunHook):
    """Notes every call, in a list that hooks may share."""

    def __init__(self, calls=None, name="", fetch=None, feed=None, stop_after=None):
        self.calls = [] if calls is None else calls
        self.name = name
        self.fetch = fetch
        self.feed = feed
        self.stop_after = stop_after
        self.results = []

    def note(self, call):
        self.calls.append(f"{self.name}{call}")

    def begin(self):
        self.note("begin")

    def after_create_session(self, session, coord):
        self.note("create")
        self.coord = coord

    def before_run(self, run_context):
        self.note("before")
        if self.fetch is None and self.feed is None:
            return None
        return SessionRunArgs(self.fetch, self.feed)

    def after_run(self, run_context, run_values):
        self.note("after")
        self.results.append(run_values.results)
        if self.stop_after is not None and len(self.results) >= self.stop_after:
            run_context.request_stop()

    def end(self, session):
        self.note("end")


class Cluster:
    def __init__(self):
        self.done = False
        self.shutdown = Shutdown()

    def job_done(self):
        return self.done


class FakeSession:
    """Answers each run with what `script` gives next; an exception is raised, a function called."""

    def __init__(self, script):
        self.cluster = Cluster()
        self.graph = get_default_graph()
        self.script = script
        self.closed = False

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return dict.fromkeys(fetches, step) if isinstance(fetches, dict) else step

    def close(self):
        self.closed = True


class Creator:
    """Makes FakeSessions that share one script; an exception in `problems` comes first."""

    def __init__(self, script, problems=()):
        self.script = list(script)
        self.problems = list(problems)
        self.made = []

    def create_session(self):
        if self.problems:
            raise self.problems.pop(0)
        self.made.append(FakeSession(self.script))
        return self.made[-1]


def test_hooks_are_called_in_order_around_one_run():
    model, calls = build(), []
    hooks = [Journal(calls, "a."), Journal(calls, "b.")]
    with MonitoredSession(hooks=hooks) as session:
        session.run(model.train, {model.by: 1.0})
    assert calls == [f"{name}{call}" for call in ("begin", "create", "before", "after", "end") for name in ("a.", "b.")]


def test_hooks_get_their_fetches_from_the_callers_run():
    model = build()
    hook = Journal(fetch={"step": model.step, "w": [model.w]})
    with MonitoredSession(hooks=[hook]) as session:
        loss = session.run(model.loss)
        session.run(model.train, {model.by: 2.0})
        session.run([])
    assert loss == 0.0
    assert [result["step"] for result in hook.results] == [0, 0, 1]
    assert hook.results[2]["w"][0].tolist() == [2.0, 2.0]


def test_hooks_can_feed():
    model = build()
    with MonitoredSession(hooks=[Journal(feed={model.by: 3.0})]) as session:
        session.run(model.train)
        assert session.run(model.w, {}).tolist() == [3.0, 3.0]


def test_a_node_fed_twice_is_refused():
    model, other = build(), placeholder(np.float32, [], name="other")
    feeding = [Journal(feed={model.by: 1.0}), Journal(feed={other: 2.0, model.by: 1.0})]
    with (
        SingularMonitoredSession(hooks=feeding) as session,
        pytest.raises(RuntimeError, match=r"^Same tensor is fed by two hooks\. Conflict\(s\): \['by:0'\]$"),
    ):
        session.run(model.train)
    with (
        SingularMonitoredSession(hooks=feeding[:1]) as session,
        pytest.raises(RuntimeError, match=r"^Same tensor is fed by a SessionRunHook and user\."),
    ):
        session.run(model.train, {model.by: 1.0})


def test_a_stop_is_seen_after_all_hooks_and_forbids_another_run():
    constant(1.0)
    first, second = Journal(stop_after=1), Journal()
    with SingularMonitoredSession(hooks=[first, second]) as session:
        assert not session.should_stop()
        session.run([])
        assert session.should_stop()
        assert second.calls[-1] == "after"
        with pytest.raises(RuntimeError, match=r"^Run called even after should_stop requested\.$"):
            session.run([])
    assert first.calls[-1] == "end"


@pytest.mark.parametrize("error", [OutOfRangeError("end"), StopIteration(), JobDoneError("done")])
def test_the_end_of_an_input_ends_the_block_and_calls_end(error):
    constant(1.0)
    hook = Journal()
    with MonitoredSession(hooks=[hook]):
        raise error
    assert hook.calls[-1] == "end"


def test_any_other_error_leaves_the_block_without_end():
    constant(1.0)
    hook = Journal()
    with pytest.raises(KeyError), MonitoredSession(hooks=[hook]):
        raise KeyError("x")
    assert "end" not in hook.calls


def test_after_run_is_skipped_when_the_run_fails():
    hook = Journal()
    creator = Creator([OutOfRangeError("end of input")])
    with MonitoredSession(creator, [hook]) as session:
        session.run("x")
    assert hook.calls == ["begin", "create", "before", "end"]


def test_a_closed_session_cannot_be_used():
    constant(1.0)
    session = MonitoredSession()
    session.close()
    assert session.should_stop()
    with pytest.raises(RuntimeError, match=r"^Session is already closed\.$"):
        session.close()
    with pytest.raises(RuntimeError, match=r"^Attempted to use a closed session\.$"):
        session.run([])


def test_the_graph_is_frozen_only_meanwhile():
    constant(1.0)
    with MonitoredSession() as session:
        assert session.graph is get_default_graph()
        with pytest.raises(RuntimeError, match="Graph is finalized and cannot be modified"):
            constant(2.0)
    constant(2.0)
    assert session.graph is None


def test_hooks_can_still_grow_the_graph_in_begin():
    class Grows(SessionRunHook):
        def begin(self):
            self.node = constant(5.0)

    hook = Grows()
    with MonitoredSession(hooks=[hook]) as session:
        assert session.run(hook.node) == 5.0


def test_a_hook_that_fails_at_the_start_leaves_no_session_behind():
    class Fails(SessionRunHook):
        def after_create_session(self, session, coord):
            raise ValueError("no such directory")

    creator = Creator([])
    with pytest.raises(ValueError, match="no such directory"):
        MonitoredSession(creator, [Fails()])
    assert creator.made[0].closed
    constant(1.0)


def test_a_lost_session_is_made_anew_and_the_run_done_again(caplog):
    clock, hook = ManualClock(), Journal()
    creator = Creator([AbortedError("a"), UnavailableError("b"), 7])
    with caplog.at_level("INFO", "globalstep"):
        session = MonitoredSession(creator, [hook], clock=clock)
        assert session.run("x") == 7
    assert [made.closed for made in creator.made] == [True, True, False]
    assert hook.calls == ["begin", *["create", "before"] * 3, "after"]
    assert clock.monotonic() == pytest.approx(0.1 + 0.2)
    assert "recovery 2 of at most 20 in a row). Cause: UnavailableError: b" in caplog.text
    session.close()


def test_making_a_session_is_tried_again_too():
    creator = Creator([1], problems=[AbortedError("begun by another"), UnavailableError("down")])
    with MonitoredSession(creator, clock=ManualClock()) as session:
        assert session.run("x") == 1
    assert len(creator.made) == 1


def test_recovery_has_a_limit_that_a_completed_run_resets():
    clock = ManualClock()
    lost = [AbortedError("gone")] * MAX_RECOVERIES
    creator = Creator([*lost, 1, *lost, AbortedError("last")])
    session = MonitoredSession(creator, clock=clock)
    assert session.run("x") == 1
    with pytest.raises(AbortedError, match="last"):
        session.run("x")
    assert clock.monotonic() > 2 * 100
    session.close()


def test_a_run_that_was_carried_out_is_not_done_again_when_a_hook_loses_the_session():
    class Loses(SessionRunHook):
        lost = 0

        def after_run(self, run_context, run_values):
            if not self.lost:
                self.lost += 1
                raise AbortedError("lost while a hook was reading")

    creator = Creator([1, 2])
    with MonitoredSession(creator, [Loses()], clock=ManualClock()) as session:
        assert session.run("x") == 1
        assert len(creator.made) == 1
        assert session.run("x") == 2
        assert len(creator.made) == 2


def test_a_singular_session_does_not_recover():
    model = build()

    class Loses(SessionRunHook):
        def after_run(self, run_context, run_values):
            raise AbortedError("lost")

    with pytest.raises(AbortedError), SingularMonitoredSession(hooks=[Loses()]) as session:
        session.run(model.loss)


def test_a_lost_connection_that_a_thread_reported_is_the_cause():
    hook = Journal()
    creator = Creator([ValueError("the queue is closed"), 5])
    session = MonitoredSession(creator, [hook], clock=ManualClock())
    hook.coord.request_stop(AbortedError("PS gone"))
    assert session.run("x") == 5
    assert len(creator.made) == 2
    session.close()


def test_an_error_that_a_thread_reported_stops_the_loop_and_is_raised_at_the_end():
    hook = Journal()
    session = MonitoredSession(Creator([1]), [hook])
    hook.coord.request_stop(ValueError("bad record"))
    assert session.should_stop()
    with pytest.raises(ValueError, match="bad record"):
        session.close()


def test_threads_get_a_grace_period(caplog):
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="slow")
    thread.start()
    clock, hook = ManualClock(), Journal()
    session = MonitoredSession(Creator([]), [hook], stop_grace_period_secs=7, clock=clock)
    hook.coord.register_thread(thread)
    with caplog.at_level("INFO", "globalstep"):
        session.close()
    assert 7.0 <= clock.monotonic() < 7.1
    assert "Coordinator stopped with threads still running: slow" in caplog.text
    release.set()
    thread.join()


def test_a_refused_run_returns_what_was_computed_before_the_push():
    model = build()
    hook = Journal(fetch=[model.step])
    with MonitoredSession(hooks=[StopAtStepHook(last_step=2), hook]) as session:
        for _ in range(2):
            session.run(model.train, {model.by: 1.0})
        assert session.should_stop()
        raw = session._tf_sess()
        # Another loop, without the stop hook, comes one push too late.
        late = MonitoredSession(_Given(raw), [hook])
        train, loss, step = late.run([model.train, model.loss, model.step], {model.by: 1.0})
        assert (train, loss, step) == (None, -4.0, 2)
        assert hook.results[-1] == [2]
        assert late.should_stop()
        # A plain loop may go on calling; nothing is applied.
        late.run(model.train, {model.by: 1.0})
        assert raw.run(model.w).tolist() == [2.0, 2.0]


class _Given:
    """A creator of a session that belongs to somebody else."""

    def __init__(self, session):
        self._session = session

    def create_session(self):
        return self._session


def test_the_job_is_done_when_the_cluster_says_so():
    creator = Creator([1, 2])
    with MonitoredSession(creator) as session:
        assert not session.should_stop()
        creator.made[0].cluster.done = True
        assert session.should_stop()
        assert session.run("x") == 1


def test_step_fn_runs_with_and_without_hooks():
    model, hook = build(), Journal()

    def step_fn(step_context):
        plain = step_context.session.run(model.step)
        step_context.run_with_hooks(model.train, {model.by: 1.0})
        assert step_context.run_with_hooks(fetches=model.step) == 1
        return plain, step_context.session.run(model.step)

    with MonitoredSession(hooks=[hook]) as session:
        assert session.run_step_fn(step_fn) == (0, 1)
        assert hook.calls.count("after") == 2


def test_step_fn_can_end_the_loop():
    constant(1.0)
    hook = Journal()
    with MonitoredSession(hooks=[hook]) as session:
        session.run_step_fn(lambda step_context: step_context.request_stop())
        pytest.fail("the block has ended")
    assert hook.calls[-1] == "end"


def test_step_fn_must_name_its_argument():
    constant(1.0)
    with (
        MonitoredSession() as session,
        pytest.raises(ValueError, match=r"`step_fn` may either have one `step_context` argument"),
    ):
        session.run_step_fn(lambda context: None)

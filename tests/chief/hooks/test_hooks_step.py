import pytest

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunValues
from globalstep.errors import UnavailableError
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.step import GlobalStepWaiterHook, StepCounterHook, StopAtStepHook
from globalstep.tf1.variables.training_util import get_or_create_global_step
from globalstep.wire.declarations import Outcome, OutcomeKind, StopLimit
from globalstep.worker.client.joined_run import Shutdown


class Cluster:
    """The authoritative step: each reading takes the next of `steps`, the last one for ever."""

    def __init__(self, *steps, done=False):
        self.shutdown = Shutdown()
        self.steps = list(steps)
        self.done = done
        self.readings = 0

    def global_steps(self):
        self.readings += 1
        return {"global_step": self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]}

    def job_done(self):
        return self.done


class Session:
    last_outcome = None

    def __init__(self, *steps, done=False):
        self.cluster = Cluster(*steps, done=done)


class Writer:
    def __init__(self):
        self.summaries = []

    def add_summary(self, summary, step):
        self.summaries.append((summary.value[0].tag, summary.value[0].simple_value, step))


def after(hook, results, session):
    context = SessionRunContext(SessionRunArgs(None), session)
    hook.before_run(context)
    hook.after_run(context, SessionRunValues(results))
    return context.stop_requested


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StopAtStepHook(last_step=1), "StopAtStepHook"),
        (StepCounterHook, "StepCounterHook"),
        (lambda: GlobalStepWaiterHook(1), "_GlobalStepWaiterHook"),
    ],
)
def test_they_need_a_global_step(make, name):
    with pytest.raises(RuntimeError, match=rf"^Global step should be created to use {name}\.$"):
        make().begin()


def test_stop_needs_one_of_its_arguments():
    with pytest.raises(ValueError, match=r"^One of num_steps or last_step must be specified\.$"):
        StopAtStepHook()
    with pytest.raises(ValueError, match=r"^Only one of num_steps or last_step can be specified\.$"):
        StopAtStepHook(num_steps=1, last_step=2)


def test_stop_at_last_step_reads_afresh_only_when_near():
    step = get_or_create_global_step()
    hook = StopAtStepHook(last_step=10)
    hook.begin()
    session = Session(9, 10)
    hook.after_create_session(session, None)
    assert hook.before_run(None) == SessionRunArgs(step)
    assert not after(hook, 8, session)
    assert session.cluster.readings == 0
    assert not after(hook, 9, session)
    assert after(hook, 9, session)


def test_stop_believes_what_the_push_was_told():
    get_or_create_global_step()
    hook = StopAtStepHook(last_step=10)
    hook.begin()
    session = Session(10)
    session.last_outcome = Outcome(OutcomeKind.ACCEPTED, index=20, steps={"global_step": 10})
    assert after(hook, 3, session)


def test_stop_after_num_steps_is_counted_once():
    get_or_create_global_step()
    hook = StopAtStepHook(num_steps=10)
    hook.begin()
    assert hook.last_step is None
    hook.after_create_session(Session(5), None)
    assert hook.last_step == 15
    hook.after_create_session(Session(8), None)
    assert hook.last_step == 15
    assert not after(hook, 13, Session(14))
    assert after(hook, 14, Session(15))


def test_the_limit_for_the_parameter_servers():
    # Programs divide numbers of examples; TensorFlow stops at the first step that is no less.
    assert StopAtStepHook(last_step=6.25).store_limit("s") == StopLimit("s", last_step=7)
    hook = StopAtStepHook(num_steps=3.0)
    assert hook.store_limit("s") == StopLimit("s", num_steps=3)
    hook.adopt_limit(12)
    assert hook.store_limit("s") == StopLimit("s", last_step=12)


def test_stop_ignores_a_refused_run():
    get_or_create_global_step()
    hook = StopAtStepHook(last_step=1)
    hook.begin()
    assert not after(hook, None, Session(5))


def test_counter_needs_one_interval():
    with pytest.raises(ValueError, match=r"^exactly one of every_n_steps and every_n_secs should be provided\.$"):
        StepCounterHook(every_n_steps=1, every_n_secs=1)
    with pytest.raises(ValueError, match=r"^exactly one of every_n_steps and every_n_secs should be provided\.$"):
        StepCounterHook(every_n_steps=None)


def test_counter_reports_steps_of_all_workers(caplog):
    get_or_create_global_step()
    clock, writer = ManualClock(), Writer()
    hook = StepCounterHook(every_n_steps=10, summary_writer=writer, clock=clock)
    hook.begin()
    with caplog.at_level("INFO", "globalstep"):
        after(hook, 0, Session(1))
        clock.advance(2.0)
        after(hook, 9, Session(9))
        after(hook, 10, Session(21))
        clock.advance(1.0)
        after(hook, 31, Session(31))
    assert writer.summaries == [("global_step/sec", 10.0, 21), ("global_step/sec", 10.0, 31)]
    assert [record.getMessage() for record in caplog.records] == ["global_step/sec: 10", "global_step/sec: 10"]


def test_counter_by_seconds():
    get_or_create_global_step()
    clock, writer = ManualClock(), Writer()
    hook = StepCounterHook(every_n_steps=None, every_n_secs=1.0, summary_writer=writer, clock=clock)
    hook.begin()
    for step in range(5):
        after(hook, step, Session(step + 1))
        clock.advance(0.5)
    assert [step for _, _, step in writer.summaries] == [3, 5]


def test_counter_warns_of_a_step_that_stands_still_five_times(caplog):
    get_or_create_global_step()
    hook = StepCounterHook(every_n_steps=1, clock=ManualClock())
    hook.begin()
    for _ in range(8):
        after(hook, 3, Session(3))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 5
    assert warnings[0].startswith(
        "It seems that global step (tf.train.get_global_step) has not been increased. Current value (could be "
        "stable): 3 vs previous value: 3."
    )


def test_waiter_holds_back_the_first_run_only(caplog):
    get_or_create_global_step()
    clock = ManualClock()
    hook = GlobalStepWaiterHook(3000, clock=clock)
    hook.begin()
    session = Session(0, 1500, 2000, 3001)
    context = SessionRunContext(SessionRunArgs(None), session)
    with caplog.at_level("INFO", "globalstep"):
        assert hook.before_run(context) is None
    assert clock.monotonic() == 1.5
    assert [record.getMessage() for record in caplog.records] == [
        "Waiting for global step 3000 before starting training.",
        "Waiting for global step 3000 before starting training. Current step is 1500.",
    ]
    hook.before_run(context)
    assert session.cluster.readings == 4


def test_waiter_with_nothing_to_wait_for_reads_nothing():
    get_or_create_global_step()
    hook = GlobalStepWaiterHook(0)
    hook.begin()
    session = Session(0)
    hook.before_run(SessionRunContext(SessionRunArgs(None), session))
    assert session.cluster.readings == 0


def test_waiter_gives_up_when_the_job_is_done():
    get_or_create_global_step()
    hook = GlobalStepWaiterHook(100, clock=ManualClock())
    hook.begin()
    session = Session(5, done=True)
    hook.before_run(SessionRunContext(SessionRunArgs(None), session))
    assert session.cluster.readings == 1


def test_a_worker_that_waits_for_a_step_ends_when_its_process_is_asked_to():
    get_or_create_global_step()
    hook = GlobalStepWaiterHook(3000, clock=ManualClock())
    hook.begin()
    session = Session(5)
    session.cluster.shutdown.asked = True
    with pytest.raises(UnavailableError, match="asked to end; it waited for global step 3000"):
        hook.before_run(SessionRunContext(SessionRunArgs(None), session))

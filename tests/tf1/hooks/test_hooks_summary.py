import pytest
from small_model import build

from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.summary import SummarySaverHook
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.sessions.monitored_session import SingularMonitoredSession
from globalstep.tf1.sessions.scaffold import Scaffold


class Writer:
    def __init__(self):
        self.calls = []

    def add_session_log(self, log, step):
        self.calls.append((log.SessionStatus.Name(log.status), step))

    def add_summary(self, summary, step):
        self.calls.append(("summary", step))

    def flush(self):
        self.calls.append("flush")


@pytest.fixture
def model():
    return build()


def run(model, hook, count, each=lambda: None, scaffold=None):
    with SingularMonitoredSession(hooks=[hook], scaffold=scaffold) as session:
        for _ in range(count):
            session.run(model.train, {model.by: 1.0})
            each()


def test_it_needs_a_step_and_one_source():
    for arguments in ({}, {"scaffold": Scaffold(), "summary_op": "s"}):
        with pytest.raises(ValueError, match=r"^Exactly one of scaffold or summary_op must be provided\.$"):
            SummarySaverHook(save_steps=1, **arguments)
    with pytest.raises(ValueError, match=r"^Either every_secs or every_steps should be provided\.$"):
        SummarySaverHook(summary_op="s")
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use SummarySaverHook\.$"):
        SummarySaverHook(save_steps=1, summary_op="s").begin()


def test_the_first_run_and_then_every_n_steps(model):
    writer = Writer()
    summaries = [scalar("a", model.loss), scalar("b", model.loss)]
    run(model, SummarySaverHook(save_steps=3, summary_writer=writer, summary_op=summaries), 7)
    assert writer.calls == [("START", 1), *[("summary", step) for step in (1, 1, 4, 4, 7, 7)], "flush"]


def test_every_n_secs(model):
    clock, writer = ManualClock(), Writer()
    hook = SummarySaverHook(save_secs=1, summary_writer=writer, summary_op=scalar("a", model.loss), clock=clock)
    run(model, hook, 5, each=lambda: clock.advance(0.5))
    assert writer.calls == [("START", 1), ("summary", 1), ("summary", 3), ("summary", 5), "flush"]


def test_the_summaries_of_the_scaffold(model):
    writer = Writer()
    scalar("a", model.loss)
    scaffold = Scaffold()
    run(model, SummarySaverHook(save_steps=1, summary_writer=writer, scaffold=scaffold), 2, scaffold=scaffold)
    assert writer.calls == [("START", 1), ("summary", 1), ("summary", 2), "flush"]


def test_without_summaries_only_the_start_is_written(model):
    writer = Writer()
    scaffold = Scaffold()
    run(model, SummarySaverHook(save_steps=1, summary_writer=writer, scaffold=scaffold), 2, scaffold=scaffold)
    assert writer.calls == [("START", 1), "flush"]

import pytest
from small_model import build, wait_for_saves

from globalstep.chief.hooks.checkpoint import CheckpointSaverListener
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import GraphKeys, add_to_collection
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook, saver_from
from globalstep.tf1.ops.summaries import SummaryWriterCache, summary_iterator
from globalstep.tf1.sessions.monitored_session import SingularMonitoredSession
from globalstep.tf1.sessions.scaffold import Scaffold


class Listener(CheckpointSaverListener):
    def __init__(self, stop_at=None):
        self.calls = []
        self.stop_at = stop_at

    def begin(self):
        self.calls.append("begin")

    def before_save(self, session, global_step_value):
        self.calls.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.calls.append(("after", global_step_value))
        return global_step_value == self.stop_at

    def end(self, session, global_step_value):
        self.calls.append(("end", global_step_value))


@pytest.fixture(autouse=True)
def close_writers():
    yield
    SummaryWriterCache.clear()


@pytest.fixture
def model():
    return build()


def run(model, hook, scaffold, count, each=lambda: None):
    with SingularMonitoredSession(hooks=[hook], scaffold=scaffold) as session:
        for _ in range(count):
            if session.should_stop():
                return
            session.run(model.train, {model.by: 1.0})
            each()


def saved(directory):
    names = [path.name for path in directory.glob("model.ckpt-*.index.json")]
    return sorted(int(name.split("-")[1].split(".")[0]) for name in names)


def test_it_needs_a_step_and_one_interval(tmp_path):
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use CheckpointSaverHook\.$"):
        CheckpointSaverHook(tmp_path, save_steps=1).begin()
    with pytest.raises(ValueError, match=r"^Either every_secs or every_steps should be provided\.$"):
        CheckpointSaverHook(tmp_path)
    with pytest.raises(ValueError, match=r"^Can not provide both every_secs and every_steps\.$"):
        CheckpointSaverHook(tmp_path, save_secs=1, save_steps=1)
    with pytest.raises(ValueError, match=r"^You cannot provide both saver and scaffold\.$"):
        CheckpointSaverHook(tmp_path, save_steps=1, saver=object(), scaffold=Scaffold())


def test_it_saves_at_the_start_every_n_steps_and_at_the_end(model, tmp_path):
    scaffold = Scaffold()
    run(model, CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold), scaffold, 5)
    assert saved(tmp_path) == [0, 2, 4, 5]
    assert (tmp_path / "graph.pbtxt").exists()
    assert f'model_checkpoint_path: "{tmp_path}/model.ckpt-5"' in (tmp_path / "checkpoint").read_text()


def test_a_save_that_comes_late_does_not_shift_those_after_it(model, tmp_path):
    """Other workers push between the chief's runs: here each of its runs finds the step three further."""
    scaffold = Scaffold()
    more = model.step.assign_add(2)

    def run_three(session):
        session.run(model.train, {model.by: 1.0})
        session.raw_session().run(more)

    with SingularMonitoredSession(
        hooks=[CheckpointSaverHook(tmp_path, save_steps=10, scaffold=scaffold)], scaffold=scaffold
    ) as session:
        for _ in range(14):
            run_three(session)
            wait_for_saves()
    # Before, each save began the count anew: 10, 22, 34.
    assert saved(tmp_path) == [10, 22, 31, 40, 42]


def test_it_does_not_save_the_last_step_twice(model, tmp_path):
    scaffold, listener = Scaffold(), Listener()
    hook = CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold, listeners=[listener])
    run(model, hook, scaffold, 4)
    assert [call for call in listener.calls if call[0] == "after"] == [("after", 0), ("after", 2), ("after", 4)]


def test_it_saves_every_n_secs(model, tmp_path):
    clock, scaffold = ManualClock(), Scaffold()
    hook = CheckpointSaverHook(tmp_path, save_secs=10, scaffold=scaffold, clock=clock)
    run(model, hook, scaffold, 6, each=lambda: clock.advance(4.0))
    assert saved(tmp_path) == [0, 4, 6]


def test_listeners_are_called_around_each_save(model, tmp_path):
    scaffold, listener = Scaffold(), Listener()
    hook = CheckpointSaverHook(tmp_path, save_steps=10, scaffold=scaffold, listeners=[listener])
    run(model, hook, scaffold, 1)
    assert listener.calls == ["begin", ("before", 0), ("after", 0), ("before", 1), ("after", 1), ("end", 1)]


def test_a_listener_can_stop_training(model, tmp_path):
    scaffold, listener = Scaffold(), Listener(stop_at=4)
    hook = CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold, listeners=[listener])
    run(model, hook, scaffold, 100, each=wait_for_saves)
    # Heard of in the run after the one that took the cut, which may not be undone.
    assert listener.calls[-1] == ("end", 5)


def test_it_writes_the_graph_and_its_saves_to_events(model, tmp_path):
    scaffold = Scaffold()
    run(model, CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold), scaffold, 2)
    SummaryWriterCache.clear()
    (file,) = tmp_path.glob("events.*")
    events = list(summary_iterator(str(file)))
    assert any(event.graph_def for event in events)
    logs = [(event.step, event.session_log.checkpoint_path) for event in events if event.HasField("session_log")]
    assert logs == [(0, f"{tmp_path}/model.ckpt"), (2, f"{tmp_path}/model.ckpt")]


def test_the_saver_is_found_in_its_collection():
    with pytest.raises(RuntimeError, match=r"^No items in collection savers\. Please add a saver"):
        saver_from()
    add_to_collection(GraphKeys.SAVERS, "one")
    assert saver_from() == "one"
    add_to_collection(GraphKeys.SAVERS, "two")
    with pytest.raises(RuntimeError, match=r"^More than one item in collection savers\. Please indicate"):
        saver_from()

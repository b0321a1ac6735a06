import json

import pytest
from small_model import LocalCluster, build

from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.device import replica_device_setter
from globalstep.tf1.graph.graph import device
from globalstep.tf1.hooks.profile import ProfilerHook
from globalstep.tf1.sessions.monitored_session import SingularMonitoredSession


def train(hook, count, each=lambda: None):
    model = build()
    with SingularMonitoredSession(hooks=[hook]) as session:
        for _ in range(count):
            session.run(model.train, {model.by: 1.0})
            each()
        assert session.raw_session().trace is None


def written(directory):
    return sorted(path.name for path in directory.glob("*"))


def test_it_needs_a_step_and_one_interval():
    with pytest.raises(ValueError, match=r"^Either every_secs or every_steps should be provided\.$"):
        ProfilerHook()
    with pytest.raises(ValueError, match=r"^Can not provide both every_secs and every_steps\.$"):
        ProfilerHook(save_secs=1, save_steps=1)
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use ProfilerHook\.$"):
        ProfilerHook(save_steps=1).begin()


def test_every_n_steps_but_not_the_first(tmp_path):
    train(ProfilerHook(save_steps=2, output_dir=str(tmp_path / "traces")), 6)
    assert written(tmp_path / "traces") == ["timeline-2.json", "timeline-4.json", "timeline-6.json"]


def test_every_n_secs(tmp_path):
    clock = ManualClock()
    train(ProfilerHook(save_secs=2, output_dir=str(tmp_path), clock=clock), 5, each=lambda: clock.advance(1.0))
    assert written(tmp_path) == ["timeline-3.json", "timeline-5.json"]


def test_the_file_has_the_spans_of_the_run(tmp_path):
    train(ProfilerHook(save_steps=1, output_dir=str(tmp_path)), 2)
    content = json.loads((tmp_path / "timeline-2.json").read_text())
    events = content["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert {"run", "compute", "push"} <= set(spans)
    run, push = spans["run"], spans["push"]
    assert run["ts"] <= push["ts"]
    assert push["ts"] + push["dur"] <= run["ts"] + run["dur"]
    assert push["args"]["changes"] == 1
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["session", "MainThread", "/job:ps/task:0 in this process"]


def test_each_ps_task_has_its_apply_within_the_push(tmp_path):
    cluster = LocalCluster(2)
    with device(replica_device_setter(ps_tasks=2)):
        model = build()
    try:
        hook = ProfilerHook(save_steps=1, output_dir=str(tmp_path))
        with SingularMonitoredSession(hooks=[hook], master=cluster.target) as session:
            shards = sorted(set(session.raw_session().cluster.where.values()))
            for _ in range(2):
                session.run(model.train, {model.by: 1.0})
    finally:
        cluster.close()
    assert shards == [0, 1]
    events = json.loads((tmp_path / "timeline-2.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    (push,) = [event for event in events if event["name"] == "push"]
    (apply,) = [event for event in events if event["name"] == "apply"]
    assert apply["dur"] > 0
    assert push["ts"] <= apply["ts"]
    assert apply["ts"] + apply["dur"] <= push["ts"] + push["dur"]
    # The step is the other task's: what moves it on is no change of values.
    assert rows[apply["tid"]] == "/job:ps/task:1 in this process"
    assert rows[push["tid"]] == "MainThread"

"""A traced run leaves what it did in its RunMetadata, and Timeline makes a Chrome trace of that."""

import json

import pytest

import globalstep as gs
from globalstep.errors import JobDoneError
from globalstep.python.client import timeline
from globalstep.wire.declarations import StopLimit


def test_a_traced_run_is_shown():
    w = gs.Variable([1.0, 2.0])
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(gs.reduce_sum(gs.square(w)))
    options, metadata = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE), gs.RunMetadata()
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        session.run(train_op, options=options, run_metadata=metadata)
        session.run(train_op)
        assert session.trace is None
    (device,) = metadata.step_stats.dev_stats
    spans = [span.node_name for span in device.node_stats]
    assert {"pull", "compute", "push"} <= set(spans)
    trace = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())
    shown = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in shown] == spans
    assert all(event["dur"] >= 0 and event["ts"] > 0 for event in shown)
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "M"} == {"process_name", "thread_name"}
    assert len(spans) == len(set(spans)) or spans.count("compute") == 1


def test_a_run_that_comes_after_the_last_step_is_shown_too():
    step = gs.train.create_global_step()
    train_op = step.assign_add(1)
    options, metadata = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE), gs.RunMetadata()
    with gs.Session() as session:
        session.run(step.initializer)
        session.cluster.open([StopLimit("global_step", last_step=0)])
        with pytest.raises(JobDoneError):
            session.run(train_op, options=options, run_metadata=metadata)
    (device,) = metadata.step_stats.dev_stats
    assert "push" in {span.node_name for span in device.node_stats}


def test_metadata_goes_into_event_files(tmp_path):
    node = gs.constant(1.0)
    options, metadata = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE), gs.RunMetadata()
    with gs.Session() as session, gs.summary.FileWriter(str(tmp_path)) as writer:
        session.run(node, options=options, run_metadata=metadata)
        writer.add_run_metadata(metadata, "step 1", 1)
    (path,) = tmp_path.iterdir()
    tagged = [event.tagged_run_metadata for event in gs.train.summary_iterator(str(path))]
    read = gs.RunMetadata.FromString(next(one for one in tagged if one.tag).run_metadata)
    assert read.step_stats == metadata.step_stats


def test_a_monitored_session_and_its_hooks_get_it_too():
    seen = []

    class Hook(gs.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(run_values.run_metadata)

    step = gs.train.create_global_step()
    options, metadata = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE), gs.RunMetadata()
    with gs.train.MonitoredSession(hooks=[Hook()]) as session:
        session.run(step, options=options, run_metadata=metadata)
    assert metadata.step_stats.dev_stats
    assert seen == [metadata]

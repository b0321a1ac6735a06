import json
import threading

import pytest

from globalstep.runtime.clock import ManualClock
from globalstep.tf1.execution.tracing import Trace


def test_spans_are_timed_by_the_clock_in_microseconds():
    clock = ManualClock(10.0)
    trace = Trace(clock=clock)
    with trace.span("run", fetches=2):
        clock.advance(0.5)
        with trace.span("push"):
            clock.advance(0.25)
    push, run = trace.events
    assert (push["name"], push["ts"], push["dur"]) == ("push", 10.5e6, 0.25e6)
    assert (run["name"], run["ts"], run["dur"], run["args"]) == ("run", 10e6, 0.75e6, {"fetches": 2})


def test_a_block_that_fails_is_recorded_too():
    trace = Trace()
    with pytest.raises(KeyError), trace.span("pull"):
        raise KeyError
    assert [event["name"] for event in trace.events] == ["pull"]


def test_the_file_names_process_and_threads():
    trace = Trace("/job:worker/task:1")
    thread = threading.Thread(target=lambda: trace.add("apply", 1.0, 2.0), name="applier")
    thread.start()
    thread.join()
    content = json.loads(trace.to_json())
    assert {event["args"]["name"] for event in content["traceEvents"] if event["ph"] == "M"} == {
        "/job:worker/task:1",
        "applier",
    }
    (span,) = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert (span["name"], span["cat"], span["ts"], span["dur"]) == ("apply", "apply", 1e6, 2e6)


def test_a_row_of_another_task_has_one_number_that_is_no_threads():
    trace = Trace("/job:worker/task:1", ManualClock(3.0))
    trace.add("push", trace.now(), 1.0)
    for row in ("/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"):
        trace.add("apply", 3.25, 0.5, row=row)
    push, *applied = trace.events
    first, second, again = (event["tid"] for event in applied)
    assert first == again != second
    assert push["tid"] == threading.get_native_id()
    assert min(first, second) > 1 << 22
    named = {event["tid"]: event["args"]["name"] for event in json.loads(trace.to_json())["traceEvents"][1:4]}
    assert named == {push["tid"]: "MainThread", first: "/job:ps/task:0", second: "/job:ps/task:1"}

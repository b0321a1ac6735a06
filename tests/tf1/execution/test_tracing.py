import json
import threading

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

import io
import json
import re

import pytest

from globalstep.deploy.launch.console import PROGRESS_MARK, Console
from globalstep.runtime.clock import ManualClock


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_bear_the_name_of_their_task():
    stream = io.StringIO()
    console = Console(stream, {})
    console.line("ps:0", "serving")
    console.say("done")
    assert stream.getvalue() == "[ps:0] serving\ndone\n"


def test_a_terminal_gets_colours_by_role():
    stream = _Terminal()
    console = Console(stream, {})
    console.line("ps:1", "a")
    console.line("worker:0", "b")
    first, second = stream.getvalue().splitlines()
    assert first == "\x1b[35m[ps:1]\x1b[0m a"
    assert second == "\x1b[36m[worker:0]\x1b[0m b"


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(environ):
    stream = _Terminal()
    Console(stream, environ).line("ps:1", "a")
    assert stream.getvalue() == "[ps:1] a\n"


def test_progress_off_a_terminal_is_a_plain_line_now_and_then():
    stream, clock = io.StringIO(), ManualClock()
    console = Console(stream, {}, progress_secs=5.0, clock=clock)
    for step in (1, 2, 3):
        console.line("chief:0", f"{PROGRESS_MARK}step {step}")
    assert stream.getvalue() == "[chief:0] step 1\n"
    clock.advance(5.0)
    console.line("chief:0", f"{PROGRESS_MARK}step 4")
    console.line("chief:0", f"{PROGRESS_MARK}step 5")
    console.finish()
    assert stream.getvalue().splitlines() == ["[chief:0] step 1", "[chief:0] step 4", "[chief:0] step 5"]


def test_finish_does_not_repeat_progress_that_was_shown():
    stream = io.StringIO()
    console = Console(stream, {}, clock=ManualClock())
    console.line("chief:0", f"{PROGRESS_MARK}step 1")
    console.finish()
    assert stream.getvalue() == "[chief:0] step 1\n"


def test_progress_that_was_held_back_does_not_follow_later_lines():
    stream = io.StringIO()
    console = Console(stream, {}, clock=ManualClock())
    console.line("chief:0", f"{PROGRESS_MARK}step 1")
    console.line("chief:0", f"{PROGRESS_MARK}step 2")
    console.line("chief:0", "final step: 2")
    console.finish()
    assert stream.getvalue() == "[chief:0] step 1\n[chief:0] final step: 2\n"


def test_progress_on_a_terminal_stays_below_the_lines():
    stream = _Terminal()
    console = Console(stream, {"NO_COLOR": "1"})
    console.line("chief:0", f"{PROGRESS_MARK}step 1")
    console.line("worker:0", "hello")
    console.finish()
    assert stream.getvalue() == "\r\x1b[K[chief:0] step 1\r\x1b[K[worker:0] hello\n[chief:0] step 1\n"


def test_progress_wider_than_the_terminal_is_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = _Terminal()
    Console(stream, {"NO_COLOR": "1"}).line("chief:0", PROGRESS_MARK + "x" * 50)
    assert stream.getvalue() == "\r\x1b[K[chief:0] " + "x" * 9


def test_timed_lines_begin_with_the_time():
    stream, clock = io.StringIO(), ManualClock()
    console = Console(stream, {}, clock=clock, log_format="timed")
    console.line("worker:0", "loss 0.1")
    console.say("globalstep launch: it ended", ["as it was to"])
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    first, second, third = stream.getvalue().splitlines()
    assert re.fullmatch(stamp + r"\[worker:0\] loss 0\.1", first)
    assert re.fullmatch(stamp + "globalstep launch: it ended", second)
    assert third == "    as it was to"


def test_lines_for_a_stream_that_is_closed_are_lost():
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        for log_format in ("text", "json"):
            console = Console(stream, {}, progress_secs=1e9, clock=ManualClock(), log_format=log_format)
            console.line("worker:0", "loss 0.5")
            for _ in range(2):
                console.line("worker:0", PROGRESS_MARK + "step 10")
            console.finish()


def test_json_lines_bear_their_task():
    stream = io.StringIO()
    console = Console(stream, {}, log_format="json")
    console.line("ps:0", '{"level": "INFO", "message": "x"}')
    console.line("worker:0", "plain")
    console.line("chief:0", PROGRESS_MARK + "step 5")
    console.say("bye")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert found[0] == {"task": "ps:0", "level": "INFO", "message": "x"}
    assert [(one["task"], one["message"]) for one in found[1:]] == [
        ("worker:0", "plain"), ("chief:0", "step 5"), ("launch", "bye"),
    ]  # fmt: skip
    assert found[2]["progress"] is True

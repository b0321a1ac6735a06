import argparse
import io
import json
import os
import pty
import re
import subprocess
import sys
import types

import pytest
from rich.console import Console as RichConsole

from globalstep.deploy.launch import options as launch_options
from globalstep.deploy.launch.console import PROGRESS_MARK, Console
from globalstep.deploy.launch.launcher import Task
from globalstep.deploy.launch.table import LiveConsole, Row, draw_cluster, rows_of
from globalstep.deploy.status.cluster_status import read_cluster
from globalstep.errors import InvalidArgumentError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb

ROWS = [
    Row("ps:0", 11, "running", 0),
    Row("ps:1", 12, "failed (137)", 1),
    Row("chief:0", 13, "running", 0),
    Row("worker:0", 14, "running", 2),
    Row("worker:1", 0, "starting", 0),
]


def reply(secs, pushes):
    return pb.StatusReply(
        state=pb.STATE_READY, incarnation=1, shards=2, process="p",
        clients=[pb.ClientInfo(client="c", task="/job:worker/task:0", pushes=pushes, staleness_sum=3 * pushes)],
        statistics=pb.Statistics(secs=secs, applied=pushes, bytes_in=pushes * 10**6, bytes_out=pushes * 2 * 10**6),
        load=pb.Load(resident_bytes=64_000_000),
    )  # fmt: skip


def drawn(table):
    console = RichConsole(file=io.StringIO(), width=120, record=True)
    console.print(table)
    return console.export_text()


def test_each_process_is_a_row_with_what_the_cluster_says_of_it():
    gone = UnavailableError("refused")
    status = read_cluster(["a:1", "b:2"], [reply(12.0, 30), gone], [reply(10.0, 10), gone])
    text = drawn(draw_cluster(ROWS, status))
    header = "ROLE PID STATE STEPS/S STALENESS IN/S OUT/S MEMORY RESTARTS"
    assert " ".join(text.splitlines()[0].split()) == header
    assert re.search(r"ps:0 +11 +ready +10\.0 +10\.0 MB +20\.0 MB +64\.0 MB +0", text)
    assert re.search(r"ps:1 +12 +failed \(137\) +- +- +- +- +1", text)
    assert re.search(r"chief:0 +13 +running +- +- +0", text)
    assert re.search(r"worker:0 +14 +running +10\.0 +3\.00 +2", text)
    assert re.search(r"worker:1 +- +starting", text)


def test_it_fits_on_a_terminal_of_80_columns():
    status = read_cluster(["a:1", "b:2"], [reply(12.0, 30)] * 2, [reply(10.0, 10)] * 2)
    console = RichConsole(file=io.StringIO(), width=80, record=True)
    console.print(draw_cluster([Row("worker:7", 1234567, "failed (137)", 10), *ROWS], status))
    assert "…" not in console.export_text()


def test_a_task_that_ended_as_it_was_asked_to_has_not_failed():
    task = Task("ps:0", [], {})
    task.process = types.SimpleNamespace(pid=1, returncode=143)
    assert rows_of([task]) == [Row("ps:0", 1, "ended (143)", 0)]
    task.process.returncode = 137
    assert rows_of([task]) == [Row("ps:0", 1, "failed (137)", 0)]


def test_before_anything_has_answered_there_is_a_table_too():
    assert "worker:1" in drawn(draw_cluster(ROWS, None))
    (row,) = rows_of([Task("ps:0", [], {})])
    assert row == Row("ps:0", 0, "starting", 0)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_go_above_the_table_and_progress_below_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    console = LiveConsole(stream, {})
    console.table(draw_cluster(ROWS[:1], None))
    console.line("ps:0", "serving [on] 1")
    console.line("chief:0", PROGRESS_MARK + "step 5 of 9")
    console.say("done")
    console.finish()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    assert "[ps:0] serving [on] 1" in lines
    assert lines[-1] == "[chief:0] step 5 of 9"
    assert lines[-2].startswith("ps:0 ")
    assert lines.index("[ps:0] serving [on] 1") < lines.index("done") < len(lines) - 3


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


def options(*argv):
    parser = argparse.ArgumentParser()
    launch_options.add_arguments(parser)
    return parser.parse_args(argv)


def test_options_reach_the_tasks():
    tasks = [Task("ps:0", ["a"], {}), Task("chief:0", ["b"], {})]
    assert launch_options.apply_options(options("--metrics-port", "9100", "--log-format", "json"), tasks) == "json"
    assert [task.environ["GLOBALSTEP_METRICS_PORT"] for task in tasks] == [f"127.0.0.1:{port}" for port in (9100, 9101)]
    assert tasks[1].environ["GLOBALSTEP_LOG_FORMAT"] == "json"
    assert tasks[1].command == ["b"]
    with pytest.raises(InvalidArgumentError, match="no room for 2"):
        launch_options.apply_options(options("--metrics-port", "65535"), tasks)


def test_pinned_tasks_start_through_taskset(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    tasks = [Task("ps:0", ["a"], {}), Task("chief:0", ["b"], {})]
    launch_options.apply_options(options("--pin-cpus"), tasks)
    assert [task.command for task in tasks] == [
        ["/bin/taskset", "--cpu-list", "0", "a"], ["/bin/taskset", "--cpu-list", "1,2", "b"],
    ]  # fmt: skip


@pytest.mark.processes
def test_a_launch_on_a_terminal_shows_the_table(tmp_path):
    script = tmp_path / "say.py"
    script.write_text("print('hello from', __file__)\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "globalstep", "launch", "--grace-secs", "0.2", "--pin-cpus", str(script)]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    seen = b""
    try:
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # the other end of a terminal is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "[worker:0] hello from" in text
    assert re.search(r"ROLE +PID +STATE", text)
    assert re.search(r"worker:0 +\d+ +ended", text)

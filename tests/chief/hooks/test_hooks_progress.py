import io

import pytest
from small_model import build

from globalstep.chief.hooks.progress import PROGRESS_PREFIX, progress_line
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.progress import ProgressHook
from globalstep.tf1.sessions.monitored_session import SingularMonitoredSession


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def not_launched(monkeypatch):
    monkeypatch.delenv("GLOBALSTEP_LAUNCH", raising=False)


def train(stream, first_secs=1.0, **arguments):
    """Run 7 steps of a second each, but for the first."""
    model, clock = build(), ManualClock()
    hook = ProgressHook(last_step=10, loss=model.loss, stream=stream, clock=clock, **arguments)
    with SingularMonitoredSession(hooks=[hook]) as session:
        for secs in (first_secs, *[1.0] * 6):
            clock.advance(secs)
            session.run(model.train, {model.by: 1.0})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((120, 350.1, 2000, 0.1234), "step 120/2000  350.1 steps/s  loss 0.123  eta 5s"),
        ((5, 0.0), "step 5"),
        ((5, 2.0, 905, [1.0, 2.0]), "step 5/905  2.0 steps/s  loss 1.500  eta 7m30s"),
        ((0, 1.0, 36000), "step 0/36000  1.0 steps/s  eta 10h00m"),
        ((10, 1.0, 10), "step 10/10  1.0 steps/s"),
    ],
)
def test_the_line(arguments, line):
    assert progress_line(*arguments) == line


def test_a_terminal_gets_one_live_line():
    stream = Terminal()
    train(stream, every_secs=3.0)
    assert stream.getvalue() == (
        "\rstep 3/10  1.0 steps/s  loss -4.000  eta 7s\x1b[K"
        "\rstep 6/10  1.0 steps/s  loss -10.000  eta 4s\x1b[K"
        "\rstep 7/10  1.0 steps/s  loss -12.000  eta 3s\x1b[K\n"
    )


def test_the_first_run_is_no_measure_of_the_time_left():
    """It compiles, connects and waits: 100 s here, which would make 900 s of the nine steps that are left."""
    stream = Terminal()
    train(stream, first_secs=100.0, every_secs=3.0)
    assert stream.getvalue() == (
        "\rstep 1/10  loss 0.000\x1b[K"
        "\rstep 4/10  1.0 steps/s  loss -6.000  eta 6s\x1b[K"
        "\rstep 7/10  1.0 steps/s  loss -12.000  eta 3s\x1b[K"
        "\rstep 7/10  loss -12.000\x1b[K\n"
    )


def test_the_launcher_gets_marked_lines(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_LAUNCH", "1")
    stream = io.StringIO()
    train(stream, every_secs=3.0)
    assert stream.getvalue().split("\n") == [
        f"{PROGRESS_PREFIX}step 3/10  1.0 steps/s  loss -4.000  eta 7s",
        f"{PROGRESS_PREFIX}step 6/10  1.0 steps/s  loss -10.000  eta 4s",
        f"{PROGRESS_PREFIX}step 7/10  1.0 steps/s  loss -12.000  eta 3s",
        "",
    ]


def test_elsewhere_there_is_a_log_line_every_5_s(caplog):
    stream = io.StringIO()
    with caplog.at_level("INFO", "globalstep"):
        train(stream)
    lines = [message for message in caplog.messages if message.startswith("step")]
    assert stream.getvalue() == ""
    assert lines == ["step 5/10  1.0 steps/s  loss -8.000  eta 5s", "step 7/10  1.0 steps/s  loss -12.000  eta 3s"]

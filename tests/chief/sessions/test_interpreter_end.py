"""What a program leaves open when Python ends: nothing starts a thread then, and what was written is in its file."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from globalstep.chief.events.events import summary_iterator

pytestmark = [pytest.mark.processes, pytest.mark.ends]

ROOT = Path(__file__).resolve().parents[3]
#: This interpreter, and those that `make test-pythons` has made environments for.
PYTHONS = [sys.executable, *map(str, sorted(ROOT.glob(".venv-pythons/*/bin/python")))]

# Python 3.12 and newer start no thread once functions registered with atexit are called; here no other does so either.
_NO_THREADS_AT_THE_END = """
import atexit, threading
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
# Registered last, called first.
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
"""

_TRAINED = """
import globalstep as gs
w = gs.Variable(gs.zeros([2]), name="w")
loss = gs.reduce_sum(gs.square(w - 1.0))
gs.summary.scalar("loss", loss)
train = gs.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=gs.train.get_or_create_global_step())
hooks = [gs.train.StopAtStepHook(last_step=7)]
session = gs.train.MonitoredTrainingSession(
    checkpoint_dir="run", hooks=hooks, save_summaries_steps=1, log_step_count_steps=1
)
"""

_CLOSED = """
with session:
    while not session.should_stop():
        session.run(train)
"""

_LEFT_OPEN = """
while not session.should_stop():
    session.run(train)
"""

_WRITER = """
import globalstep as gs
writer = gs.summary.FileWriter("run")
for step in range(7):
    value = gs.Summary.Value(tag="loss", simple_value=1.0)
    writer.add_summary(gs.Summary(value=[value]), step + 1)
"""


@pytest.mark.parametrize("python", PYTHONS, ids=["this", *(path.split("/")[-3] for path in PYTHONS[1:])])
@pytest.mark.parametrize(
    "program", [_TRAINED + _CLOSED, _TRAINED + _LEFT_OPEN, _WRITER], ids=["closed", "left open", "a writer"]
)
def test_no_thread_is_started_when_python_ends_and_no_event_is_lost(tmp_path, program, python):
    script = tmp_path / "program.py"
    script.write_text(program + textwrap.dedent(_NO_THREADS_AT_THE_END))
    ended = subprocess.run(
        [python, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0
    events = [event for path in sorted((tmp_path / "run").glob("events.*")) for event in summary_iterator(str(path))]
    steps = [event.step for event in events for value in event.summary.value if value.tag.startswith("loss")]
    assert steps == [1, 2, 3, 4, 5, 6, 7]

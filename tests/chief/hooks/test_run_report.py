"""What the chief tells of a run, by default: where it began, how far it is, how it ended."""

import io
import json

import pytest
from small_model import LocalCluster, build

from globalstep.chief.hooks.run_report import progress_line
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.log_format import CONCLUSION_MARK, PROGRESS_MARK
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.optimizers.optimizers import GradientDescentOptimizer
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch):
    monkeypatch.delenv("GLOBALSTEP_LAUNCH", raising=False)
    monkeypatch.delenv("GLOBALSTEP_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    yield
    SummaryWriterCache.clear()


def train(steps, secs=1.0, hooks=(), fetches=None, error=None, **arguments):
    """Train to a step with runs of so many seconds, in a graph of its own."""
    clock = ManualClock()
    with Graph().as_default():
        model = build()
        hooks = [StopAtStepHook(last_step=steps), *hooks]
        with MonitoredTrainingSession(hooks=hooks, clock=clock, **arguments) as session:
            while not session.should_stop():
                clock.advance(secs)
                session.run(model.train if fetches is None else fetches(model), {model.by: 1.0})
                if error is not None:
                    raise error


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "globalstep.progress"]


def test_elsewhere_than_on_a_terminal_there_are_few_lines_with_the_loss_of_the_train_op(caplog):
    train(300)
    said = lines(caplog)
    # Every 10 s for two minutes, then every minute.
    shown = [int(line.split()[1].split("/")[0]) for line in said[:-1]]
    assert shown == [11, 21, 31, 41, 51, 61, 71, 81, 91, 101, 111, 171, 231, 291]
    assert said[0] == "step 11/300  1.0 steps/s  loss -20.000  eta 4m49s"
    assert (
        said[-1] == "done: 300 steps in 5m00s, now at 300 of 300; without a run_dir, or checkpoint_dir, nothing is kept"
    )


def test_the_loss_is_found_behind_a_group_and_not_asked_for_where_no_train_op_runs(caplog):
    from globalstep.tf1.ops.control_flow_ops import group

    grouped = {}

    def both(model):
        if not grouped:
            model.step.graph.finalized = False
            grouped["op"] = group(model.train)
        return [grouped["op"], model.step]

    train(13, fetches=both)
    assert lines(caplog)[0] == "step 11/13  1.0 steps/s  loss -20.000  eta 2.0 s"


def test_a_run_that_feeds_nothing_and_trains_nothing_is_not_asked_for_the_loss():
    clock = ManualClock()
    model = build()
    with MonitoredTrainingSession(clock=clock) as session:
        session.run(model.train, {model.by: 1.0})
        clock.advance(100.0)
        assert list(session.run(model.w)) == [1.0, 1.0]


def test_short_runs_say_one_line_and_what_comes_next(caplog, tmp_path):
    where = str(tmp_path / "a run")
    train(5, checkpoint_dir=where)
    (line,) = lines(caplog)
    done, _, following = line.partition("; next: ")
    assert done == f"done: 5 steps in 5.0 s, now at 5 of 5; saved {where}/model.ckpt-5"
    assert following == f"tensorboard --logdir '{where}', globalstep audit '{where}'"


def test_a_run_that_is_over_says_that_there_is_nothing_to_do(caplog, tmp_path):
    where = str(tmp_path)
    train(5, checkpoint_dir=where)
    caplog.clear()
    train(3, checkpoint_dir=where)
    assert lines(caplog) == [
        f"restored {where}/model.ckpt-5",
        "already at 5 of 3, nothing to do: a larger last step (steps=, or last_step=), or another directory, trains on",
    ]


def test_a_model_that_comes_back_on_other_ps_tasks_says_so(caplog, tmp_path):
    train(2, checkpoint_dir=str(tmp_path))
    cluster = LocalCluster(3)
    train(4, checkpoint_dir=str(tmp_path), master=cluster.target)
    cluster.close()
    assert f"restored {tmp_path}/model.ckpt-2 (1 PS then, 3 now)" in lines(caplog)


def test_a_failure_says_from_where_the_run_goes_on(caplog, tmp_path):
    with pytest.raises(ValueError, match="a bug"):
        train(5, checkpoint_dir=str(tmp_path), error=ValueError("a bug"))
    assert lines(caplog) == [f"failed at step 1 (ValueError); the same command continues from {tmp_path}/model.ckpt-0"]


@pytest.mark.parametrize("how", ["argument", "variable", "a worker", "quiet log"])
def test_it_can_be_turned_off_and_only_the_chief_speaks(caplog, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("GLOBALSTEP_PROGRESS", "0")
    if how == "quiet log":
        caplog.set_level("ERROR", "globalstep")
    cluster = LocalCluster(1)
    if how == "a worker":
        chief_graph, clock = Graph(), ManualClock()
        with chief_graph.as_default():
            build()
            chief = MonitoredTrainingSession(cluster.target, progress=False, clock=clock)
        train(20, master=cluster.target, is_chief=False)
        with chief_graph.as_default():
            chief.close()
    else:
        train(20, master=cluster.target, **({"progress": False} if how == "argument" else {}))
    cluster.close()
    assert lines(caplog) == []


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch, caplog):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    train(4)
    written = terminal.getvalue()
    assert "\r\x1b[Kstep 3/4  1.0 steps/s  loss -4.000  eta 1.0 s\r" in written
    assert written.endswith(
        "\r\x1b[Kdone: 4 steps in 4.0 s, now at 4 of 4; without a run_dir, or checkpoint_dir, nothing is kept\n"
    )
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((5, 0.0), "step 5"),
        ((5, 2.0, 905, [1.0, 2.0]), "step 5/905  2.0 steps/s  loss 1.500  eta 7m30s"),
        ((0, 1.0, 36000), "step 0/36000  1.0 steps/s  eta 10h00m"),
        ((10, 1.0, 10), "step 10/10  1.0 steps/s"),
    ],
)
def test_the_line(arguments, line):
    assert progress_line(*arguments) == line


def test_the_launcher_shows_the_line(monkeypatch, capsys):
    monkeypatch.setenv("GLOBALSTEP_LAUNCH", "1")
    train(3)
    out = capsys.readouterr().out.split("\n")
    assert out.pop(-2).startswith(CONCLUSION_MARK)
    assert out == [
        f"{PROGRESS_MARK}step 2/3  1.0 steps/s  loss -2.000  eta 1.0 s",
        f"{PROGRESS_MARK}step 3/3  1.0 steps/s  loss -4.000",
        "",
    ]


def test_of_several_optimizers_the_loss_is_that_of_the_one_that_runs(caplog):
    clock = ManualClock()
    model = build()
    other = GradientDescentOptimizer(0.0).minimize(model.loss * 100.0, global_step=model.step)
    with MonitoredTrainingSession(clock=clock) as session:
        for op in [model.train] * 12 + [other] * 10:
            clock.advance(1.0)
            session.run(op, {model.by: 1.0})
    assert [line.partition("loss ")[2] for line in lines(caplog) if line.startswith("step")] == ["-20.000", "-2400.000"]


def test_a_graph_without_a_global_step_is_trained_in_silence(caplog):
    from globalstep.tf1.variables.variables import Variable

    w = Variable([1.0], name="w")
    train_op = GradientDescentOptimizer(1.0).minimize(w * w)
    with MonitoredTrainingSession() as session:
        session.run(train_op)
    assert lines(caplog) == []


def test_under_a_launcher_it_says_for_its_summary_where_it_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLOBALSTEP_LAUNCH", "1")
    train(30, checkpoint_dir=str(tmp_path))
    (line,) = [line for line in capsys.readouterr().out.split("\n") if line.startswith(CONCLUSION_MARK)]
    found = json.loads(line.removeprefix(CONCLUSION_MARK))
    assert (found["step"], found["steps"], found["checkpoint"]) == (30, 30, str(tmp_path / "model.ckpt-30"))
    assert found["secs"] > 0

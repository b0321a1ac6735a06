"""An evaluator task follows the checkpoints of a run, and the chief takes note."""

import json

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.training.evaluation import Following, note_training
from globalstep.errors import InvalidArgumentError
from globalstep.runtime.clock import ManualClock

X = np.eye(3, dtype=np.float32)
START = np.zeros(3, np.float32)


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


def fit(steps, run_dir, **options):
    given = {"optimizer": gs.optim.SGD(0.1), "steps": steps, "run_dir": run_dir, **options}
    return gs.fit(START, loss_fn, [(X, X[0])], **given)


def place(monkeypatch, job, index=0):
    cluster = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "evaluator": ["127.0.0.1:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))


def test_the_task_evaluates_what_the_others_trained(tmp_path, monkeypatch):
    fit(6, tmp_path)
    place(monkeypatch, "evaluator")
    result = fit(6, tmp_path, evaluate=gs.Evaluate([(X, X[0])], every_steps=2))
    assert [entry["step"] for entry in result.history] == [6]
    assert not result.is_chief
    assert np.isclose(result.metrics["loss"], loss_fn(gs.load(tmp_path, START), X, X[0])[0])
    assert (tmp_path / "best").is_dir()
    assert np.array_equal(result.model, gs.load(tmp_path, START))
    again = fit(6, tmp_path, evaluate=gs.Evaluate([(X, X[0])], every_steps=2))
    assert np.array_equal(again.model, result.model), "where another evaluator had evaluated the last checkpoint"


def test_a_module_has_the_values_of_the_last_checkpoint(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    data = [(torch.eye(3), torch.ones(3, 1))]

    def fit_module(**options):
        module = torch.nn.Linear(3, 1)
        result = gs.fit(
            module,
            lambda module, x, y: ((module(x) - y) ** 2).mean(),
            data,
            optimizer=gs.optim.SGD(0.1),
            steps=3,
            run_dir=tmp_path,
            **options,
        )
        assert result.model is module
        return module.state_dict()

    trained = fit_module()
    place(monkeypatch, "evaluator")
    followed = fit_module(evaluate=gs.Evaluate(data))
    assert all(torch.equal(followed[name], value) for name, value in trained.items())


def test_it_waits_for_checkpoints_until_the_run_has_ended(tmp_path):
    """The clock stands for the other tasks: each look of the evaluator at it finds a further checkpoint."""
    fit(2, tmp_path)

    class Training(ManualClock):
        def wait(self, event, timeout_secs):
            if len(following.evaluations.history) < 3:
                step = 2 + 2 * len(following.evaluations.history)
                fit(step, tmp_path)
                note_training(str(tmp_path), step, ended=step == 6)
            self.advance(timeout_secs)
            return False

    following = Following(gs.Evaluate([(X, X[0])]), tmp_path, START, loss_fn, None, Training())
    assert following.run() == 6
    assert [entry["step"] for entry in following.evaluations.history] == [2, 4, 6]


def test_callbacks_are_called_on_the_chief_alone(tmp_path, monkeypatch):
    """An evaluator has no trainer, and a logger's file is the chief's: the job of one with a CSVLogger failed."""
    fit(6, tmp_path / "run")
    place(monkeypatch, "evaluator")
    log = tmp_path / "log.csv"
    result = fit(6, tmp_path / "run", evaluate=gs.Evaluate([(X, X[0])]), callbacks=[gs.CSVLogger(log)])
    assert [entry["step"] for entry in result.history] == [6]
    assert not log.exists()


def test_an_end_of_an_earlier_run_is_not_believed_at_once(tmp_path):
    fit(2, tmp_path)
    clock = ManualClock()
    following = Following(gs.Evaluate([(X, X[0])]), tmp_path, START, loss_fn, None, clock)
    assert not following._is_over(2, 10.0)
    assert following._is_over(2, 61.0)
    note_training(str(tmp_path), 3, ended=False)
    assert not following._is_over(2, 61.0)


def test_it_needs_to_know_what_to_evaluate_and_where(monkeypatch):
    place(monkeypatch, "evaluator")
    with pytest.raises(InvalidArgumentError, match="This task is an evaluator.*needs evaluate= and run_dir="):
        fit(6, None)
    with pytest.raises(InvalidArgumentError, match="/job:evaluator/task:0, which does not train: call gs.fit"):
        gs.Trainer(START, loss_fn, optimizer=gs.optim.SGD())

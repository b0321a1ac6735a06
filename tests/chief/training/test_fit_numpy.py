"""gs.fit and gs.Trainer with a plain function: what holds for every framework."""

import contextlib
import csv
import errno
import json
import os

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.sessions.chief_role import own_task
from globalstep.chief.training import evaluation
from globalstep.errors import InvalidArgumentError, NotFoundError
from globalstep.files.storage import LocalStorage

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(24, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 24, 4)]


def loss_fn(params, x, y):
    error = x @ params["w"] + params["b"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(x), "b": 2 * np.mean(error, keepdims=True)}


def start():
    return {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}


def fit(params=None, loss=loss_fn, batches=BATCHES, optimizer=None, **options):
    return gs.fit(
        start() if params is None else params, loss, batches, optimizer=optimizer or gs.optim.SGD(0.05), **options
    )


def test_a_model_is_trained():
    result = fit(steps=300)
    assert result.step == 300
    assert result.is_chief
    assert np.allclose(result.model["w"], [1, -2, 3], atol=1e-3)
    assert result.loss < 1e-4
    assert set(result.model) == {"w", "b"}


def test_batches_are_gone_through_once_or_as_often_as_said():
    assert fit().step == 6
    assert fit(epochs=3).step == 18
    assert fit(epochs=2, accumulate=4).step == 3
    assert fit(batches=iter(BATCHES)).step == 6
    assert fit(batches=iter(BATCHES), accumulate=4).step == 2
    assert fit(batches=lambda: iter(BATCHES), epochs=2).step == 12
    assert fit(batches=lambda rank, epoch: iter(BATCHES[epoch:]), epochs=3).step == 15


@pytest.mark.parametrize("held", [{}, {"w": None, "b": None}, {"b": None, "w": None}])
def test_several_batches_make_a_step_of_their_mean(held):
    def into_one_dict(params, x, y):
        loss, gradients = loss_fn(params, x, y)
        held.update(gradients)
        return loss, held

    whole = fit(batches=[(X[:8], Y[:8])], steps=5)
    parts = fit(loss=into_one_dict if held else loss_fn, batches=BATCHES[:2], steps=5, accumulate=2)
    assert np.allclose(whole.model["w"], parts.model["w"], atol=1e-6)
    assert np.isclose(whole.loss, parts.loss)


def test_a_loop_of_ones_own():
    losses = []
    with gs.Trainer(start(), loss_fn, optimizer=gs.optim.SGD(0.05), steps=10) as trainer:
        for batch in trainer.batches(BATCHES):
            losses.append(trainer.step(batch))
            assert trainer.global_step == len(losses)
        assert trainer.done
        with pytest.raises(RuntimeError, match="Training is over at step 10"):
            trainer.step(BATCHES[0])
    assert len(losses) == 10
    assert (trainer.rank, trainer.world_size, trainer.is_chief) == (0, 1, True)
    assert trainer.result.step == 10
    assert trainer.result.loss == losses[-1] < losses[0]


def test_a_run_that_others_end_between_done_and_a_step_refuses_nothing(monkeypatch):
    with gs.Trainer(start(), loss_fn, optimizer=gs.optim.SGD(0.05), steps=10) as trainer:
        loss = trainer.step(BATCHES[0])
        assert not trainer.done
        monkeypatch.setattr(trainer._loop, "should_stop", lambda: True)
        assert trainer.step(BATCHES[1]) == loss
        assert (trainer.done, trainer.global_step) == (True, 1)
        with pytest.raises(RuntimeError, match="Training is over at step 1"):
            trainer.step(BATCHES[1])


def test_a_loop_may_be_ended():
    with gs.Trainer(start(), loss_fn, optimizer=gs.optim.SGD(0.05)) as trainer:
        for batch in trainer.batches(BATCHES):
            trainer.step(batch)
            if trainer.global_step == 4:
                trainer.stop()
    assert trainer.result.step == 4


@pytest.mark.parametrize("optimizer", [gs.optim.Adam(0.01), gs.optim.SGD(gs.optim.StepLR(0.1, 5), momentum=0.9)])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path, optimizer):
    def noisy(params, x, y, rng):
        loss, gradients = loss_fn(params, x, y)
        return loss, {
            name: value + rng.normal(size=value.shape).astype(np.float32) for name, value in gradients.items()
        }

    whole = fit(loss=noisy, optimizer=optimizer, steps=17, seed=5)
    fit(loss=noisy, optimizer=optimizer, steps=8, seed=5, run_dir=tmp_path)
    rest = fit(loss=noisy, optimizer=optimizer, steps=17, seed=5, run_dir=tmp_path)
    assert rest.step == 17
    for name in ("w", "b"):
        assert rest.model[name].tolist() == whole.model[name].tolist()
        assert gs.load(tmp_path)[name].tolist() == whole.model[name].tolist()
        assert gs.load(tmp_path, start(), step=17)[name].tolist() == whole.model[name].tolist()


def test_a_run_that_has_ended_has_nothing_to_do(tmp_path):
    first = fit(steps=5, run_dir=tmp_path)
    again = fit(steps=5, run_dir=tmp_path)
    assert again.step == 5
    assert np.isnan(again.loss)
    assert again.model["w"].tolist() == first.model["w"].tolist()


def test_training_in_memory_again_starts_from_what_it_is_given():
    """As a cell of a notebook does that is run twice."""
    one, two = fit(steps=5), fit(steps=5)
    assert one.model["w"].tolist() == two.model["w"].tolist()
    assert fit(params=one.model, steps=5).loss < one.loss


def test_parameters_have_optimizers_by_their_names():
    frozen = {"b": gs.optim.SGD(0.0), "*": gs.optim.Adam(0.1)}
    result = fit(optimizer=frozen, steps=5)
    assert result.model["b"].tolist() == [0.0]
    assert result.model["w"].all()
    tensorflow = fit(optimizer=gs.train.AdagradOptimizer(0.5), steps=5)
    assert tensorflow.loss < result.loss + 100


def test_gradients_are_clipped():
    def steep(params, x, y):
        return np.float32(1), {"w": np.full(3, 40, np.float32), "b": np.full(1, 30, np.float32)}

    by_norm = fit(loss=steep, steps=1, optimizer=gs.optim.SGD(1.0), clip_grad_norm=1.0)
    assert np.isclose(np.sqrt((by_norm.model["w"] ** 2).sum() + by_norm.model["b"][0] ** 2), 1.0)
    by_value = fit(loss=steep, steps=1, optimizer=gs.optim.SGD(1.0), clip_grad_value=2.0)
    assert by_value.model["w"].tolist() == [-2, -2, -2]


def test_moving_averages(tmp_path):
    fit(steps=3, run_dir=tmp_path, ema_decay=0.5, checkpoint_every_steps=1, keep_checkpoints=9)
    history = [gs.load(tmp_path, step=step)["w"] for step in range(4)]
    average = history[0]
    for values in history[1:]:
        average = 0.5 * average + 0.5 * values
    assert np.allclose(gs.load(tmp_path, ema=True)["w"], average)
    assert set(gs.load(tmp_path)) == {"w", "b"}


def _text(path):
    return path.read_text() if path.exists() else ""


class TestEvaluation:
    @staticmethod
    def evaluate(metrics=None, **options):
        given = {"rmse": lambda y, z: np.sqrt(np.mean((y - z) ** 2))} if metrics is None else metrics
        predict = options.pop("predict", lambda params, x, y: (y, x @ params["w"] + params["b"]))
        options = {"mode": "min", "every_steps": 10, **options}
        return gs.Evaluate(BATCHES, given, predict=predict, **options)

    def test_metrics_of_checkpoints(self, tmp_path):
        result = fit(steps=25, run_dir=tmp_path, evaluate=self.evaluate())
        assert [entry["step"] for entry in result.history] == [10, 20, 25]
        weights = gs.load(tmp_path, step=20)
        error = X @ weights["w"] + weights["b"] - Y
        assert np.isclose(result.history[1]["metrics"]["rmse"], np.sqrt(np.mean(error**2)))
        assert result.metrics == result.history[-1]["metrics"]
        assert json.loads((tmp_path / "evaluations.json").read_text()) == result.history
        assert list((tmp_path / "eval").iterdir())

    def test_the_best_checkpoint_is_kept(self, tmp_path):
        values = {10: 0.5, 20: 0.9, 30: 0.7}
        seen = []

        def auc(params, batches):
            seen.append(params)
            return values[10 * len(seen)]

        assert self.evaluate({"val_loss": auc}, mode=None).mode == "min"
        evaluate = self.evaluate({"auc": auc}, predict=None, mode=None)
        result = fit(steps=30, run_dir=tmp_path, evaluate=evaluate, keep_checkpoints=1)
        assert result.best_step == 20
        assert gs.load(tmp_path, step="best")["w"].tolist() == seen[1]["w"].tolist()
        assert gs.load(tmp_path)["w"].tolist() == seen[2]["w"].tolist()
        assert sum(".index." in path.name for path in (tmp_path / "best").iterdir()) == 1

    def test_training_ends_when_it_no_longer_improves(self, tmp_path, caplog):
        values = iter([1.0, 2.0, 2.0, 1.5, 1.5, 1.5])
        evaluate = self.evaluate({"auc": lambda *_: next(values)}, predict=None, mode="max", patience=2)
        with caplog.at_level("INFO"):
            result = fit(steps=100, run_dir=tmp_path, evaluate=evaluate)
        assert result.best_step == 20
        assert 40 <= result.step < 100
        assert sum("Training ends" in line for line in caplog.messages) == 1

    @pytest.mark.parametrize(
        ("optimizer", "said"),
        [
            (gs.optim.SGD(0.25, momentum=0.5), ["learning_rate of SGD: 0.25 now, 0.5 before"]),
            (gs.optim.SGD(0.5, momentum=0.75), ["momentum of SGD: 0.75 now, 0.5 before"]),
            (gs.optim.SGD(0.5, momentum=0.5), []),
        ],
    )
    def test_a_run_that_goes_on_with_other_hyper_parameters_says_so(self, tmp_path, caplog, optimizer, said):
        fit(steps=3, run_dir=tmp_path, optimizer=gs.optim.SGD(0.5, momentum=0.5))
        fit(steps=5, run_dir=tmp_path, optimizer=optimizer)
        lines = [line for line in caplog.messages if "goes on from step" in line]
        assert lines == [f"The run in {tmp_path} goes on from step 3 with changes: {one}." for one in said]

    def test_a_run_that_goes_on_remembers_the_best(self, tmp_path):
        evaluate = self.evaluate({"auc": lambda params, _: -float(np.sum(params["w"] ** 2))}, predict=None, mode="max")
        fit(steps=10, run_dir=tmp_path, evaluate=evaluate)
        result = fit(steps=30, run_dir=tmp_path, evaluate=evaluate)
        assert [entry["step"] for entry in result.history] == [10, 20, 30]
        assert result.best_step == 10

    def test_where_a_run_went_back_behind_its_best_another_one_is_kept(self, tmp_path):
        values = iter([1.0, 2.0, 0.0])
        evaluate = self.evaluate({"auc": lambda *_: next(values)}, predict=None, mode="max")
        assert fit(steps=20, run_dir=tmp_path, evaluate=evaluate).best_step == 20
        for path in tmp_path.glob("model.ckpt-20.*"):
            path.unlink()
        assert fit(steps=20, run_dir=tmp_path, evaluate=evaluate).best_step == 10
        assert gs.load(tmp_path, step="best")["w"].tolist() == gs.load(tmp_path, step=10)["w"].tolist()

    @pytest.mark.parametrize(
        "cut", [cut if cut % 4 == 1 else pytest.param(cut, marks=pytest.mark.long) for cut in range(1, 13)]
    )
    def test_an_evaluation_that_is_cut_off_is_made_up_for(self, tmp_path, monkeypatch, cut):
        """At each file of theirs: the run that goes on gives what one gives that never stopped."""
        values = {4: 3.0, 8: 2.0, 12: 1.0, 16: 5.0, 20: 4.0, 22: 6.0}

        def run(run_dir):
            told = []

            class Told(gs.Callback):
                def on_evaluate(self, trainer, step, metrics):
                    told.append(step)

            def score(params, _):
                return values[min(values, key=lambda step: abs(float(params["w"][0]) - step))]

            def count(params, x, y):
                return 0.0, {"w": np.full(3, -1.0, np.float32), "b": np.zeros(1, np.float32)}

            evaluate = self.evaluate({"score": score}, predict=None, mode="min", every_steps=4, patience=3)
            logger = gs.CSVLogger(run_dir / "log.csv")
            return told, fit(loss=count, optimizer=gs.optim.SGD(1.0), steps=22, run_dir=run_dir, evaluate=evaluate,
                             callbacks=[Told(), logger])  # fmt: skip

        class CutError(BaseException):
            pass

        whole, other = tmp_path / "whole", tmp_path / "cut"
        whole.mkdir(), other.mkdir()
        _, expected = run(whole)
        done = []

        @contextlib.contextmanager
        def cutting(storage, path):
            done.append(path)
            if len(done) == cut:
                raise CutError
            with atomic_write(storage, path) as file:
                yield file

        atomic_write = evaluation.atomic_write
        monkeypatch.setattr(evaluation, "atomic_write", cutting)
        with contextlib.suppress(CutError):
            run(other)
        assert len(done) == cut
        monkeypatch.undo()
        before = json.loads(text) if (text := _text(other / "evaluations.json")) else []
        told, result = run(other)
        assert told == [entry["step"] for entry in expected.history[len(before) :]]
        assert result.step == expected.step
        assert result.history == expected.history
        assert result.best_step == expected.best_step == 12
        assert gs.load(other, step="best")["w"].tolist() == gs.load(whole, step="best")["w"].tolist()

    def test_without_a_directory_nothing_is_kept(self):
        result = fit(steps=15, evaluate=gs.Evaluate(BATCHES, every_steps=10))
        assert result.run_dir is None
        assert result.metrics["loss"] < result.history[0]["metrics"]["loss"]
        with pytest.raises(InvalidArgumentError):
            gs.Evaluate(BATCHES, {"auc": None})


def test_callbacks_are_told(tmp_path):
    told = []

    class Telling(gs.Callback):
        def on_start(self, trainer):
            told.append(("start", trainer.global_step))

        def on_step(self, trainer, step, loss):
            told.append(("step", step))

        def on_evaluate(self, trainer, step, metrics):
            told.append(("evaluate", step))

        def on_end(self, trainer, result):
            told.append(("end", result.step))

    logger = gs.CSVLogger(tmp_path / "logs" / "run.csv", every_steps=2)
    evaluate = gs.Evaluate(BATCHES, every_steps=2)
    result = fit(steps=3, run_dir=tmp_path, evaluate=evaluate, callbacks=[Telling(), logger])
    assert sorted(set(told)) == sorted(
        [("start", 0), ("step", 1), ("step", 2), ("step", 3), ("evaluate", 2), ("evaluate", 3), ("end", 3)]
    )
    rows = list(csv.reader((tmp_path / "logs" / "run.csv").read_text().splitlines()))
    assert rows[0] == ["step", "name", "value"]
    assert ["1", "loss"] in [row[:2] for row in rows]
    assert ["3", "eval/loss", str(result.metrics["loss"])] in rows


class TestLoad:
    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(NotFoundError, match="should be a checkpoint in .*nowhere; there is no such directory"):
            gs.load(tmp_path / "nowhere")
        fit(steps=5, run_dir=tmp_path)
        with pytest.raises(NotFoundError, match="a checkpoint of step 3 in .*; it has those of the steps 0, 5"):
            gs.load(tmp_path, step=3)
        with pytest.raises(NotFoundError, match=r"best checkpoint .*gs.Evaluate\(...\)\) keeps one"):
            gs.load(tmp_path, step="best")
        with pytest.raises(InvalidArgumentError, match="step is 'last'"):
            gs.load(tmp_path, step="last")
        with pytest.raises(InvalidArgumentError, match="no moving averages: train with ema_decay"):
            gs.load(tmp_path, ema=True)

    def test_another_model(self, tmp_path):
        fit(steps=1, run_dir=tmp_path)
        with pytest.raises(InvalidArgumentError, match="there is no 'b'.*of another model"):
            gs.load(tmp_path, {"w": np.zeros(3)})
        with pytest.raises(InvalidArgumentError, match=r"'w' has shape \[4\].*shape \[3\]"):
            gs.load(tmp_path, {"w": np.zeros(4), "b": np.zeros(1)})

    def test_a_checkpoint_of_another_program(self, tmp_path):
        with gs.Graph().as_default(), gs.Session() as session:
            gs.Variable([1.0, 2.0], name="layer/kernel")
            session.run(gs.global_variables_initializer())
            gs.train.Saver().save(session, str(tmp_path / "model"), global_step=3)
        assert gs.load(tmp_path)["layer/kernel"].tolist() == [1, 2]


def test_tasks_have_ranks(monkeypatch):
    def place(job, index, **cluster):
        config = {"cluster": {"ps": ["a:1"], **cluster}, "task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        trainer = gs.Trainer(start(), loss_fn, optimizer=gs.optim.SGD())
        return trainer.rank, trainer.world_size, trainer.is_chief

    assert place("worker", 1, worker=["b:1", "c:1"]) == (1, 2, False)
    assert place("chief", 0, worker=["b:1", "c:1"], chief=["d:1"]) == (0, 3, True)
    assert place("worker", 1, worker=["b:1", "c:1"], chief=["d:1"]) == (2, 3, False)
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(InvalidArgumentError, match="TF_CONFIG is not JSON"):
        own_task()


def test_seeds_are_made_only_for_a_loss_that_draws(monkeypatch):
    made = []
    monkeypatch.setattr("globalstep.chief.training.trainer.part_seed", lambda *of: made.append(of) or 7)
    fit(steps=2)
    assert not made
    fit(loss=lambda params, x, y, rng: loss_fn(params, x + rng.normal(), y), steps=2)
    assert len(made) == 2


def test_a_run_dir_without_room_holds_up_no_training(tmp_path, monkeypatch, caplog):
    """As for a chief that is started again on a full disk: which run it is of, the directory says already."""
    assert fit(steps=4, run_dir=str(tmp_path)).step == 4
    open_write, full = LocalStorage.open_write, [True]

    def may_be_full(self, path):
        if full and "globalstep-run.json" not in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_write(self, path)

    class MakesRoom(gs.Callback):
        def on_step(self, trainer, step, loss):
            if step == 9:
                full.clear()

    monkeypatch.setattr(LocalStorage, "open_write", may_be_full)
    result = fit(steps=12, run_dir=str(tmp_path), checkpoint_every_steps=2, callbacks=[MakesRoom()])
    assert result.step == 12
    assert "There is no room for a checkpoint in" in caplog.text
    assert np.array_equal(gs.load(str(tmp_path))["w"], result.model["w"])

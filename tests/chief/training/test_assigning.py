"""`Trainer.assign`: values between steps, in their order; and what is said where the module itself was changed."""

import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError


def numpy_loss(params, x):
    return float((params["w"] * x).sum()), {"w": x.copy(), "v": np.zeros_like(params["v"])}


PARAMS = {"w": np.zeros(3, np.float32), "v": np.ones((), np.float32)}
ONES = np.ones(3, np.float32)


def trainer(**options):
    return gs.Trainer(PARAMS, numpy_loss, optimizer=gs.optim.SGD(1.0), steps=3, **options)


def test_the_next_step_begins_with_what_was_assigned():
    with trainer() as training:
        training.step(ONES)
        training.assign({"w": lambda w: w.clip(-0.25, 0.25), "v": 5})
        assert training.step(ONES) == -0.75
        training.assign({"w": [7, 8, 9]})
        training.step(ONES)
    assert training.result.model["w"].tolist() == [6, 7, 8]
    assert training.result.model["v"] == 5
    assert training.result.step == 3


def test_a_callback_assigns():
    class Clamp(gs.Callback):
        def on_step(self, trainer, step, loss):
            trainer.assign({"w": lambda w: np.maximum(w, -0.5)})

    result = gs.fit(PARAMS, numpy_loss, [ONES], optimizer=gs.optim.SGD(1.0), steps=4, callbacks=[Clamp()])
    assert result.model["w"].tolist() == [-0.5] * 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"w": ONES, "u": 1}, "no parameter 'u'; it has "),
        ({"v": 3, "w": np.ones(4)}, r"'w' has shape \[3\], and the assigned value is float64\[4\]"),
        ({"w": ["a", "b", "c"]}, r"'w' has shape \[3\], and the assigned value"),
    ],
)
def test_what_does_not_fit_changes_nothing(values, said):
    with trainer() as training:
        with pytest.raises(InvalidArgumentError, match=said):
            training.assign(values)
        assert training.step(ONES) == 0
    assert training.result.model["v"] == 1
    with pytest.raises(RuntimeError, match="in a `with` block"):
        training.assign({"w": ONES})


def test_local_steps_keep_their_own():
    local = gs.LocalSteps(gs.optim.SGD(0.1), every=2)
    with trainer(local_steps=local) as training, pytest.raises(InvalidArgumentError, match="not for local_steps"):
        training.assign({"w": ONES})


class TestModulesThatWereChanged:
    def losses(self, caplog, change, module=None):
        torch = pytest.importorskip("torch")
        module = module or torch.nn.Linear(3, 1)
        x = torch.ones(2, 3)
        with (
            caplog.at_level(logging.WARNING, "globalstep"),
            gs.Trainer(
                module, lambda model, x: model(x).square().mean(), optimizer=gs.optim.SGD(0.01), steps=4
            ) as training,
        ):
            while not training.done:
                training.step(x)
                change(torch, module, training)
        return caplog.text.count("was written to in the module")

    def test_a_clamp_is_said_once(self, caplog):
        def clamp(torch, module, training):
            with torch.no_grad():
                module.weight.clamp_(-0.01, 0.01)

        assert self.losses(caplog, clamp) == 1
        assert "'weight'" in caplog.text
        assert 'trainer.assign({"weight": ...})' in caplog.text

    def test_nothing_is_said_of_what_is_assigned_or_read(self, caplog):
        def assign(torch, module, training):
            training.assign({"weight": module.weight.detach().clamp(-0.01, 0.01)})
            module.state_dict()

        assert self.losses(caplog, assign) == 0

    def test_running_averages_are_the_modules_own(self, caplog):
        torch = pytest.importorskip("torch")
        assert self.losses(caplog, lambda *_: None, torch.nn.Sequential(torch.nn.BatchNorm1d(3))) == 0

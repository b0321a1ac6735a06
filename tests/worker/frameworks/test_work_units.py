"""Work units: what one worker makes of them, against numpy; and what is refused. Several: tests/integration."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 40, 4)]


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


def fit(units, batches=BATCHES, loss_fn=loss_fn, **options):
    options = {"optimizer": gs.optim.SGD(0.1), **options}
    return gs.fit(np.zeros(3, np.float32), loss_fn, batches, units=units, **options)


def by_hand(count, first, last, w):
    """Steps of the mean of `count` batches each, in float32, in order."""
    for step in range(first, last):
        total = None
        for unit in range(count):
            gradient = loss_fn(w, *BATCHES[(step * count + unit) % 10])[1]
            total = gradient if total is None else total + gradient
        w = w - np.float32(0.1) * (total / np.float32(count))
    return w


def test_steps_are_the_mean_of_their_units_in_order():
    result = fit(gs.WorkUnits(3), steps=9)
    assert result.step == 9
    assert result.model.tobytes() == by_hand(3, 0, 9, np.zeros(3, np.float32)).tobytes()


def test_epochs_count_units():
    assert fit(gs.WorkUnits(4), epochs=2).step == 5


def test_a_function_gives_the_batch_of_step_and_unit():
    asked = []

    def batch_of(step, unit):
        asked.append((step, unit))
        return BATCHES[step * 2 + unit]

    assert fit(gs.WorkUnits(2), batch_of, steps=3).step == 3
    assert asked == [(step, unit) for step in range(3) for unit in range(2)]


def test_a_run_that_goes_on_makes_the_bits_of_an_unbroken_one(tmp_path):
    drawn = []

    def noisy(w, x, y, rng):
        drawn.append(rng.integers(1 << 40))
        return loss_fn(w, x + rng.normal(size=x.shape).astype(np.float32), y)

    options = {"loss_fn": noisy, "optimizer": gs.optim.Adam(gs.optim.StepLR(0.1, step_size=3, gamma=0.5))}
    whole = fit(gs.WorkUnits(3), steps=8, **options)
    unbroken, drawn[:] = list(drawn), []
    for steps in (5, 8):
        result = fit(gs.WorkUnits(3), steps=steps, run_dir=str(tmp_path / "run"), **options)
    assert drawn == unbroken
    assert len(set(drawn)) == 24
    assert result.model.tobytes() == whole.model.tobytes()


def test_a_loop_of_ones_own_takes_units_until_the_last_step():
    steps = []

    class Told(gs.Callback):
        def on_step(self, trainer, step, loss):
            steps.append(step)

    with gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD(0.1), steps=4, units=gs.WorkUnits(2),
                    callbacks=[Told()]) as trainer:  # fmt: skip
        while not trainer.done:
            assert trainer.unit(BATCHES) > 0.0
        with pytest.raises(RuntimeError, match="Training is over at step 4"):
            trainer.unit(BATCHES)
    assert steps == [1, 2, 3, 4]
    assert trainer.result.step == 4


def test_a_trainer_stops_when_it_is_told_to():
    with gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD(0.1), units=gs.WorkUnits(2)) as trainer:
        for _ in range(5):
            trainer.unit(BATCHES)
        trainer.stop()
        assert trainer.done
    assert trainer.result.step == 2


def trainer_with(**options):
    return gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD(0.1), steps=2, **options)


def call(method, **options):
    with trainer_with(**options) as trainer:
        getattr(trainer, method)(BATCHES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gs.WorkUnits(0), "count is 0"),
        (lambda: gs.WorkUnits(True), "count is True"),
        (lambda: fit(gs.WorkUnits(2), iter(BATCHES), steps=2), "must be a list of batches, or a function of step"),
        (lambda: fit(gs.WorkUnits(2), [], steps=2), "must be a list of batches, or a function of step"),
        (lambda: fit(gs.WorkUnits(2), lambda step, unit: BATCHES[0]), "Give steps"),
        (lambda: fit(gs.WorkUnits(2), accumulate=2), "accumulate or units"),
        (lambda: fit(gs.WorkUnits(2), local_steps=gs.LocalSteps(gs.optim.SGD(0.1), every=2)), "units or local_steps"),
        (lambda: fit(gs.WorkUnits(2), ema_decay=0.9), "WorkUnits has one optimizer, no ema_decay"),
        (lambda: fit(8, steps=2), "must be gs.WorkUnits"),
        (lambda: call("unit"), r"with units: gs.Trainer\(..., units=gs.WorkUnits\(8\)\)"),
        (lambda: call("step", units=gs.WorkUnits(2)), r"call trainer.unit\(batches\)"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()

"""A loop over epochs that asks for the batches of each: every pass begins where the one before has ended."""

import numpy as np
import pytest

import globalstep as gs

DATA = [np.full(3, at, np.float32) for at in range(6)]


def trainer(seen, **options):
    def loss(params, batch):
        seen.append(int(batch[0]))
        return float(batch.sum()), {"w": np.ones(3, np.float32)}

    return gs.Trainer({"w": np.zeros(3, np.float32)}, loss, optimizer=gs.optim.SGD(0.1), **options)


def unsized():
    yield from DATA


def own(rank, epoch, start):
    return DATA[start:]


@pytest.mark.parametrize("data", [DATA, unsized, own])
@pytest.mark.parametrize("per_step", [1, 2])
def test_each_pass_has_all_batches(data, per_step):
    seen = []
    with trainer(seen) as training:
        for _ in range(3):
            if per_step == 1:
                for batch in training.batches(data, epochs=1):
                    training.step(batch)
            else:
                pairs = training.batches(data, epochs=1, per_step=2)
                for batch in pairs:
                    training.step(batch, next(pairs))
    assert seen == 3 * list(range(6))


@pytest.mark.parametrize("data", [DATA, unsized, own])
@pytest.mark.parametrize("stop", [4, 6, 9, 14])
def test_a_run_that_goes_on_has_each_batch_of_each_pass_once(tmp_path, data, stop):
    seen = []
    for steps in (stop, 18):
        with trainer(seen, steps=steps, run_dir=tmp_path) as training:
            for _ in range(3):
                for batch in training.batches(data, epochs=1):
                    training.step(batch)
                if training.done:
                    break
    assert seen == 3 * list(range(6))


def test_a_pass_that_is_left_early_is_over():
    seen = []
    with trainer(seen) as training:
        for _ in range(2):
            for batch in training.batches(DATA, epochs=1):
                training.step(batch)
                if batch[0] == 2:
                    break
    assert seen == [0, 1, 2, 0, 1, 2]


def test_two_iterables_may_be_gone_through_side_by_side():
    seen = []
    others = [batch + 10 for batch in DATA]
    with trainer(seen) as training:
        for _ in range(2):
            for one, other in zip(training.batches(DATA, epochs=1), training.batches(others, epochs=1), strict=False):
                training.step(one, other)
    assert seen == 2 * [number for at in range(6) for number in (at, at + 10)]

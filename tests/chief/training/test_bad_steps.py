"""Gradients that are not finite while the loss is: the step is dropped and said; after some in a row training ends."""

import itertools
import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import NotFiniteGradientError

BAD = {
    "nan": np.full(3, np.nan, np.float32),
    "infinite": np.array([0, np.inf, 0], np.float32),
    "beyond float32": np.array([1e300, 0, 0]),
}
GOOD = np.ones(3, np.float32)


def losses_of(gradients):
    """Give a loss function whose gradients are these, one after the other, the last for ever."""
    gradients = iter([*gradients[:-1], *([gradients[-1]] * 1000)])
    return lambda w, batch: (np.float32(1.0), next(gradients))


def fit(gradients, steps=4, **options):
    options.setdefault("optimizer", gs.optim.SGD(1.0))
    return gs.fit(np.zeros(3, np.float32), losses_of(gradients), [np.zeros(1)] * 4, steps=steps, **options)


def said(caplog, text):
    return [record for record in caplog.records if text in record.getMessage() and record.levelno == logging.WARNING]


@pytest.mark.parametrize("kind", BAD)
def test_a_step_that_is_not_finite_is_dropped_and_said(kind, caplog):
    found = fit([GOOD, BAD[kind], BAD[kind], GOOD])
    assert found.step == 4
    np.testing.assert_array_equal(found.model, [-4, -4, -4])
    assert said(
        caplog, "The gradient of Variable 'model/params' that this session pushed at global_step = 1 is not finite"
    )


@pytest.mark.parametrize("kind", BAD)
def test_training_ends_after_some_in_a_row(kind, tmp_path):
    with pytest.raises(
        NotFiniteGradientError, match=r"'params' was not finite on .* at global step 1, in 10 steps in a row"
    ):
        fit([GOOD, BAD[kind]], run_dir=tmp_path)
    assert np.isfinite(gs.load(tmp_path)["params"]).all()


def test_a_good_step_begins_the_count_anew():
    gradients = [*[BAD["nan"]] * 2, GOOD] * 5
    found = fit([*gradients, GOOD], steps=5, max_bad_steps=3)
    assert found.model.tolist() == [-5, -5, -5]
    with pytest.raises(NotFiniteGradientError, match="in 2 steps in a row"):
        fit([*gradients, GOOD], steps=5, max_bad_steps=2)
    assert fit([*[BAD["nan"]] * 30, GOOD], max_bad_steps=None).step == 4


def test_a_policy_of_the_program_is_kept():
    logged = gs.ConfigProto(run_policy=gs.RunPolicy(staleness="drop", max_staleness=3))
    assert np.isfinite(fit([BAD["nan"], GOOD], config=logged).model).all()
    applied = gs.ConfigProto(run_policy=gs.RunPolicy(on_nan="apply"))
    assert np.isnan(fit([BAD["nan"], GOOD], config=applied).model).all()
    with pytest.raises(NotFiniteGradientError, match='on_nan="stop"'):
        fit([BAD["nan"]], config=gs.ConfigProto(run_policy=gs.RunPolicy(on_nan="stop")))


def test_a_norm_that_overflows_under_clip_grad_norm():
    large = np.full(3, 3e38, np.float32)
    found = fit([GOOD, large, GOOD], steps=3, clip_grad_norm=3.0)
    np.testing.assert_allclose(found.model, [-3, -3, -3])


def test_accumulated_gradients():
    found = fit([GOOD, GOOD, GOOD, BAD["nan"], GOOD, GOOD], steps=2, accumulate=2)
    assert found.model.tolist() == [-2, -2, -2]


def test_steps_of_several_workers_gradients():
    together = gs.train.SyncReplicasOptimizer(gs.optim.SGD(1.0), replicas_to_aggregate=1)
    assert fit([GOOD, BAD["infinite"], GOOD], optimizer=together, steps=3).model.tolist() == [-3, -3, -3]
    with pytest.raises(NotFiniteGradientError, match="in 10 steps in a row"):
        fit([BAD["infinite"]], optimizer=together)


def test_a_unit_of_work_ends_training_at_once():
    batches = itertools.repeat(np.zeros(1))
    with pytest.raises(NotFiniteGradientError, match="'model/params' of unit 1 of step 1 is not finite"):
        gs.fit(
            np.zeros(3, np.float32), losses_of([BAD["nan"]]), lambda step, unit: next(batches),
            optimizer=gs.optim.SGD(1.0), units=gs.WorkUnits(2), steps=2,
        )  # fmt: skip


def test_a_local_step_is_left_out(caplog):
    local = gs.LocalSteps(gs.optim.SGD(1.0), every=2)
    found = fit([GOOD, BAD["nan"], GOOD], steps=3, local_steps=local)
    assert found.step == 3
    assert np.isfinite(found.model).all()
    assert said(caplog, "The gradient of parameter 'params' in a local step of")
    with pytest.raises(NotFiniteGradientError, match="'params' was not finite on .*in 10 steps in a row"):
        fit([BAD["nan"]], steps=30, local_steps=local)


def test_a_round_that_overflows_leaves_nothing_behind():
    # The gradient is finite, and the step of it is not.
    local = gs.LocalSteps(gs.optim.SGD(10.0, momentum=0.9), every=1)
    found = fit([np.full(3, 3e38, np.float32), GOOD], steps=1, local_steps=local)
    assert found.model.tolist() == [-10, -10, -10]


def test_rows_of_a_table():
    torch = pytest.importorskip("torch")
    batches = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    seen = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = gs.torch.Embedding(4, 2)

    def loss_fn(module, ids):
        seen.append(1)
        rows = module.table(ids)
        # The square root's gradient at 0 is infinite, times 0: NaN, where the loss is 0.
        return (torch.sqrt(rows * 0) * 1.0).sum() if len(seen) < 4 else rows.sum()

    found = gs.fit(Net(), loss_fn, batches, optimizer=gs.optim.SGD(0.1), steps=3)
    assert found.step == 3
    assert torch.isfinite(found.model.table.weight).all()

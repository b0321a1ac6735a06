"""The benchmark of local steps: its network's gradients, and its table."""

import numpy as np

from benchmarks.programs import local_steps_job
from benchmarks.programs.local_steps_job import Slowed, loss_fn


def test_gradients_are_those_of_differences():
    random = np.random.default_rng(3)
    shapes = {"w": (5, 4), "b": (4,), "v": (4, 3), "c": (3,)}
    params = {name: random.normal(size=shape) for name, shape in shapes.items()}
    x, y = random.normal(size=(7, 5)), random.integers(3, size=7)
    _, found = loss_fn(params, x, y)
    for name, gradient in found.items():
        at = (0,) * gradient.ndim
        losses = []
        for by in (1e-3, -1e-3):
            moved = {key: value.copy() for key, value in params.items()}
            moved[name][at] += by
            losses.append(float(loss_fn(moved, x, y)[0]))
        np.testing.assert_allclose(gradient[at], (losses[0] - losses[1]) / 2e-3, atol=1e-3)


def test_a_slow_worker_waits_by_what_its_own_steps_take(monkeypatch):
    now, waited = [0.0], []

    def wait(secs):
        waited.append(secs)
        now[0] += secs + 1.0  # it wakes up late

    monkeypatch.setattr(local_steps_job.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(local_steps_job.time, "sleep", wait)
    monkeypatch.setattr(local_steps_job, "loss_fn", lambda *_: (0.0, {}))
    slowed = Slowed(3.0)
    for own in (5.0, 90.0, *[2.0] * 10, 30.0, 2.0):
        now[0] += own
        slowed({}, None, None)
    # Of the first eleven nothing is waited for; what one takes longer, with a push, is not either.
    assert waited == [4.0, 3.0, 3.0]
    assert slowed.step_secs == 2.0 + 13.0 / 3

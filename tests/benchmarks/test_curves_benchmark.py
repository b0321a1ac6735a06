"""The curves of the modes: what is told of a run, and one that is measured."""

import argparse

import numpy as np
import pytest

from benchmarks.modes import curves
from benchmarks.modes.curves import _Run


def test_rates_count_from_a_quarter_of_the_time_on():
    run = _Run([0.0, 1.0, 2.0, 3.0, 4.0], [0, 2, 10, 20, 32], [2.0, 1.0, 0.25, 0.3, 0.1])
    assert run.steps_per_sec == 10.0
    assert (run.secs_to(0.25), run.secs_to(0.01)) == (2.0, float("inf"))


@pytest.mark.processes
@pytest.mark.parametrize(
    "how", ["", *(pytest.param(how, marks=pytest.mark.full_matrix) for how in ("together:2", "local"))]
)
def test_a_short_run_of_two_workers_learns(how):
    run = curves._measured((how, "", 0.05), 2, 1.0, argparse.Namespace(secs=1.5, compute_secs=0.002))
    assert run.at == sorted(run.at)
    assert run.steps[-1] > run.steps[0] == 0
    assert np.isfinite(run.losses).all()
    assert run.losses[-1] < 0.8 * run.losses[0]

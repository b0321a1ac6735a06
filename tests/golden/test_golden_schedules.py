"""Schedules follow TensorFlow's, which computes them in float32; scripts/make_golden.py made the data."""

import pathlib

import golden_cases as cases
import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.optimizers import schedules
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.variables.training_util import create_global_step
from globalstep.wire.expressions import evaluate

DATA = np.load(pathlib.Path(__file__).parent / "schedules.npz")


def schedule(number, step):
    function, arguments = cases.SCHEDULES[number]
    if function == "piecewise_constant":
        return schedules.piecewise_constant(step, **arguments)
    return getattr(schedules, function)(global_step=step, **arguments)


def names():
    return [f"{number}-{function}" for number, (function, _) in enumerate(cases.SCHEDULES)]


def assert_follows(number, found):
    wanted = DATA[str(number)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("number", range(len(cases.SCHEDULES)), ids=names())
def test_a_schedule_follows_tensorflow_where_it_is_fetched(number):
    step = create_global_step()
    rate = schedule(number, step)
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        found = []
        for at in cases.SCHEDULE_STEPS:
            step.load(at, sess)
            found.append(sess.run(rate))
    assert_follows(number, found)


@pytest.mark.parametrize("number", range(len(cases.SCHEDULES)), ids=names())
def test_a_schedule_follows_tensorflow_as_a_closed_expression(number):
    expr = lower(schedule(number, create_global_step()))
    assert expr is not None
    assert_follows(number, [evaluate(expr, {"global_step": at}) for at in cases.SCHEDULE_STEPS])

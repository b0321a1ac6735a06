"""Moving averages on the PS follow TensorFlow's, step by step; scripts/make_golden.py made the data."""

import pathlib

import golden_cases as cases
import numpy as np
import pytest
from golden_sessions import KINDS, open_session

import globalstep as gs
from globalstep.tf1.optimizers.moving_averages import assign_moving_average, weighted_moving_average
from globalstep.tf1.variables.training_util import create_global_step

DATA = np.load(pathlib.Path(__file__).parent / "averages.npz")


def assert_follows(name, at, found):
    wanted = DATA[name][at]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(cases.AVERAGES)))
def test_averages_follow_tensorflow(number, kind):
    values = cases.followed_values()
    w = gs.Variable(values[0], name="w")
    node = gs.placeholder("float32", [4])
    step = create_global_step()
    arguments = dict(cases.AVERAGES[number])
    if "num_updates" in arguments:
        arguments["num_updates"] = step
    plain = gs.train.ExponentialMovingAverage(**arguments)
    debiased = gs.train.ExponentialMovingAverage(**arguments, zero_debias=True, name="Debiased")
    with gs.control_dependencies([gs.assign(w, node), gs.assign_add(step, 1)]):
        updates = [plain.apply([w, node]), debiased.apply([node])]
    shadows = {"variable": plain.average(w), "value": plain.average(node), "debiased": debiased.average(node)}
    with open_session(kind) as sess:
        for at, value in enumerate(values):
            sess.run(updates, {node: value})
            for name, found in sess.run(shadows).items():
                assert_follows(f"{number}-{name}", at, found)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_follow_tensorflow(kind):
    node, weight = gs.placeholder("float32", [4]), gs.placeholder("float32", [])
    average = gs.Variable(np.zeros(4, np.float32), name="average", trainable=False)
    made = {
        "assigned": assign_moving_average(average, node, 0.8),
        "weighted": weighted_moving_average(node, 0.8, weight),
    }
    with open_session(kind) as sess:
        for at, value in enumerate(cases.followed_values()):
            for name, found in sess.run(made, {node: value, weight: 1.0 + at}).items():
                assert_follows(name, at, found)

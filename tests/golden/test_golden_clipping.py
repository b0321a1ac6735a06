"""Clipping gives TensorFlow's numbers; scripts/make_golden.py made the data."""

import pathlib

import golden_cases as cases
import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.ops import clipping

DATA = np.load(pathlib.Path(__file__).parent / "clipping.npz")


def run(nodes):
    with gs.Session() as sess:
        return sess.run(nodes)


def assert_is(name, found):
    np.testing.assert_allclose(found, DATA[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("number", range(len(cases.CLIPS)))
def test_clipping_one_array(number):
    function, arguments = cases.CLIPS[number]
    clipped = getattr(clipping, function)(gs.constant(cases.clip_inputs()[0]), **arguments)
    assert_is(str(number), run(clipped))


def test_global_norm():
    assert_is("global_norm", run(clipping.global_norm([gs.constant(array) for array in cases.clip_inputs()])))


@pytest.mark.parametrize("number", range(len(cases.GLOBAL_CLIPS)))
def test_clipping_by_the_global_norm(number):
    first, *others = [gs.constant(array) for array in cases.clip_inputs()]
    clipped, norm = clipping.clip_by_global_norm([first, None, *others], **cases.GLOBAL_CLIPS[number])
    assert clipped[1] is None
    assert_is(f"global-{number}-norm", run(gs.convert_to_tensor(norm)))
    for index, node in enumerate(clipped):
        if node is not None:
            assert_is(f"global-{number}-{index}", run(node))


def test_an_infinite_norm_makes_everything_nan():
    inputs = [np.array([1.0, np.inf], np.float32), np.ones(2, np.float32)]
    clipped, norm = clipping.clip_by_global_norm([gs.constant(array) for array in inputs], 1.0)
    assert_is("infinite-norm", run(norm))
    for index, node in enumerate(clipped):
        assert_is(f"infinite-{index}", run(node))

"""What public programs read of optimizers, and give to functions in TensorFlow's loose ways."""

import copy

import numpy as np
import pytest

import globalstep as gs


def test_an_optimizer_has_its_hyper_parameters_as_attributes():
    assert gs.train.GradientDescentOptimizer(0.1)._learning_rate == 0.1
    assert copy.deepcopy(gs.train.MomentumOptimizer(0.1, 0.9))._momentum == 0.9
    with pytest.raises(AttributeError, match="'GradientDescentOptimizer' object has no attribute '_momentum'"):
        _ = gs.train.GradientDescentOptimizer(0.1)._momentum


def test_numbers_that_are_taken_loosely():
    with gs.Graph().as_default(), gs.Session() as session:
        padded = gs.pad(gs.constant([1]), [[1, 1]], constant_values=0.0)
        norm = gs.norm(gs.constant([1.0, -2.0]), ord=np.int64(1))
        assert session.run([padded, norm])[0].tolist() == [0, 1, 0]
        assert session.run(norm) == 3

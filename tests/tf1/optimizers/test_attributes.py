"""Optimizers have their hyper-parameters as attributes, which public programs read."""

import copy

import pytest

import globalstep as gs


def test_an_optimizer_has_its_hyper_parameters_as_attributes():
    assert gs.train.GradientDescentOptimizer(0.1)._learning_rate == 0.1
    assert copy.deepcopy(gs.train.MomentumOptimizer(0.1, 0.9))._momentum == 0.9
    with pytest.raises(AttributeError, match="'GradientDescentOptimizer' object has no attribute '_momentum'"):
        _ = gs.train.GradientDescentOptimizer(0.1)._momentum

"""`gs.test.compute_gradient`: Jacobians by gradients and by differences of values."""

import numpy as np
import pytest

import globalstep as gs


def test_both_jacobians_are_those_of_the_function(session):
    x = gs.placeholder(gs.float64, [2, 3])
    matrix = np.arange(12.0).reshape(3, 4)
    theoretical, numerical = gs.test.compute_gradient(x, [2, 3], gs.matmul(x, matrix), [2, 4])
    expected = np.kron(np.eye(2), matrix)
    assert theoretical.shape == numerical.shape == (6, 8)
    np.testing.assert_allclose(theoretical, expected)
    np.testing.assert_allclose(numerical, expected, atol=1e-8)


def test_several_inputs_at_given_values_with_others_fed(session):
    x, y, factor = (gs.placeholder(gs.float64, [2]) for _ in range(3))
    found = gs.test.compute_gradient(
        [x, y], [[2], [2]], x * y * factor, [2], x_init_value=[np.array([1.0, 2]), np.array([3.0, 4])],
        extra_feed_dict={factor: [10, 100]},
    )  # fmt: skip
    for (theoretical, numerical), diagonal in zip(found, ([30, 400], [10, 200]), strict=True):
        np.testing.assert_allclose(theoretical, np.diag(diagonal))
        np.testing.assert_allclose(numerical, np.diag(diagonal), rtol=1e-6, atol=1e-9)


def test_the_error_is_small_for_a_right_gradient_and_large_for_a_wrong_one(session):
    table = gs.placeholder(gs.float64, [4, 2])
    rows = gs.gather(table, [2, 0, 2])
    assert gs.test.compute_gradient_error(table, [4, 2], rows * rows, [3, 2]) < 1e-6
    x = gs.placeholder(gs.float64, [2])
    wrong = x * x + gs.stop_gradient(x)
    assert gs.test.compute_gradient_error(x, [2], wrong, [2]) == pytest.approx(1, abs=1e-6)


def test_what_it_cannot_do_is_said(session):
    x = gs.placeholder(gs.float64, [2])
    with pytest.raises(ValueError, match="No gradient goes from"):
        gs.test.compute_gradient(x, [2], gs.stop_gradient(x), [2])


def test_it_needs_a_session():
    with gs.Graph().as_default():
        x = gs.placeholder(gs.float64, [2])
        with pytest.raises(ValueError, match="needs a default session"):
            gs.test.compute_gradient(x, [2], x, [2])

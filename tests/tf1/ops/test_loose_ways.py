"""What TensorFlow takes, and gives, besides what its documents say."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.python.framework import function


def test_numbers_that_are_taken_loosely():
    with gs.Graph().as_default(), gs.Session() as session:
        padded = gs.pad(gs.constant([1]), [[1, 1]], constant_values=0.0)
        norm = gs.norm(gs.constant([1.0, -2.0]), ord=np.int64(1))
        assert session.run([padded, norm])[0].tolist() == [0, 1, 0]
        assert session.run(norm) == 3


def test_a_function_of_the_program_may_write_to_what_it_is_given():
    def double(array):
        array *= 2
        return array

    with gs.Graph().as_default(), gs.Session() as session:
        v = gs.Variable([1.0, 2.0])
        doubled = gs.py_func(double, [v], gs.float32)
        session.run(gs.global_variables_initializer())
        assert [session.run(doubled).tolist() for _ in range(2)] == [[2, 4]] * 2
        assert session.run(v).tolist() == [1, 2]


@pytest.mark.parametrize("form", ["grad_func", "python_grad_func"])
def test_a_function_s_own_gradient(form):
    def of_arguments(x, dy):
        return 100 * x * dy

    def of_operation(op, dy):
        return of_arguments(*op.inputs, dy)

    @function.Defun(gs.float32, **{form: of_arguments if form == "grad_func" else of_operation})
    def square(x):
        return x * x

    with gs.Graph().as_default(), gs.Session() as session:
        x = gs.constant(3.0)
        y = square(x, name="squared")
        assert session.run([y, gs.gradients(y, x)[0]]) == [9, 300]


def test_cross_entropies_in_the_order_of_before():
    flipped = gs.contrib.nn
    with gs.Graph().as_default(), gs.Session() as session:
        scores, share = gs.constant([[1.0, 2.0]]), gs.constant([[0.0, 1.0]])
        pairs = [
            (
                flipped.deprecated_flipped_softmax_cross_entropy_with_logits(scores, share, -1),
                gs.nn.softmax_cross_entropy_with_logits(labels=share, logits=scores),
            ),
            (
                flipped.deprecated_flipped_sigmoid_cross_entropy_with_logits(logits=scores, targets=share),
                gs.nn.sigmoid_cross_entropy_with_logits(labels=share, logits=scores),
            ),
        ]
        for one, other in session.run(pairs):
            np.testing.assert_array_equal(one, other)

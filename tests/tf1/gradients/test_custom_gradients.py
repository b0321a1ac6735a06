"""Gradients that a program defines itself, for a function of its own and for other ops."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.python.framework import function


def test_a_function_gives_its_own_gradient(session):
    @gs.custom_gradient
    def both(x, y):
        return [x * y, {"sum": x + y}], lambda of_product, of_sum: (of_product * 100.0, of_sum * 10.0)

    x, y = gs.placeholder(gs.float32, [2]), gs.placeholder(gs.float32, [2])
    product, rest = both(x, y)
    feed = {x: [1.0, 2.0], y: [3.0, 4.0]}
    np.testing.assert_array_equal(session.run([product, rest["sum"]], feed), [[3, 8], [4, 6]])
    gradients = gs.gradients(product + rest["sum"], [x, y])
    np.testing.assert_array_equal(session.run(gradients, feed), [[100, 100], [10, 10]])
    # What is not used has a gradient of zeros.
    np.testing.assert_array_equal(session.run(gs.gradients(product * 2.0, [x, y]), feed), [[200, 200], [0, 0]])


def test_its_gradient_has_a_gradient(session):
    cube = gs.custom_gradient(lambda x: (x**3, lambda dy: dy * x**2))
    x = gs.placeholder(gs.float32, [])
    (first,) = gs.gradients(cube(x), x)
    assert session.run([first, gs.gradients(first, x)[0]], {x: 3.0}) == [9, 6]


def test_the_variables_that_it_uses_get_gradients(session):
    @gs.custom_gradient
    def scaled(x):
        w = gs.get_variable("w", [2], initializer=gs.ones_initializer())
        return x * w, lambda dy, variables: (dy * 7.0, [dy * 3.0 for _ in variables])

    x = gs.placeholder(gs.float32, [2])
    gradients = gs.gradients(scaled(x), [x, *gs.trainable_variables()])
    session.run(gs.global_variables_initializer())
    np.testing.assert_array_equal(session.run(gradients, {x: [1.0, 2.0]}), [[7, 7], [3, 3]])


def test_what_is_no_custom_gradient():
    with pytest.raises(ValueError, match="no keyword arguments"):
        gs.custom_gradient(lambda x: (x, lambda dy: dy))(x=gs.constant(1.0))
    with pytest.raises(TypeError, match="must accept a 'variables' keyword argument"):
        gs.custom_gradient(lambda x: (x * gs.get_variable("w", []), lambda dy: dy))(gs.constant(1.0))
    with pytest.raises(TypeError, match="op_type must be a string"):
        gs.RegisterGradient(gs.round)


@pytest.mark.parametrize(
    ("op_type", "make", "expected"),
    [
        ("Round", gs.round, [20.0, -70.0]),
        ("PyFunc", lambda x: gs.py_func(np.sin, [x], gs.float32), [20.0, -70.0]),
        ("Tanh", gs.tanh, [20.0, -70.0]),
    ],
)
def test_nodes_made_within_a_map_have_the_registered_gradient(session, op_type, make, expected):
    gs.RegisterGradient("TimesTenOfInput")(lambda op, grad: grad * 10.0 * op.inputs[0])
    x = gs.placeholder(gs.float32, [2])
    with gs.get_default_graph().gradient_override_map({op_type: "TimesTenOfInput"}):
        within = make(x)
    gradients = gs.gradients([within, gs.tanh(x)], x)
    of_tanh = 1 - np.tanh([2.0, -7.0]) ** 2
    np.testing.assert_allclose(session.run(gradients, {x: [2.0, -7.0]}), [expected + of_tanh], rtol=1e-5)


def test_a_function_of_the_graph_is_called_where_it_stands(session):
    doubled = function.Defun(gs.float32, func_name="doubled", noinline=True)(lambda x: x * 2)
    x = gs.placeholder(gs.float32, [2])
    assert session.run(gs.gradients(doubled(x), x)[0], {x: [1.0, 2.0]}).tolist() == [2, 2]

    @function.Defun(python_grad_func=lambda op, dy: dy * op.inputs[0] * op.outputs[0], shape_func=lambda op: [()])
    def squared(x):
        return x * x

    assert session.run([squared(x), gs.gradients(squared(x), x)[0]], {x: [1.0, 2.0]})[1].tolist() == [1, 8]

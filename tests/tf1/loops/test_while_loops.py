"""What the golden programs do not show of loops: refusals, effects, random numbers, and what has no gradient."""

import numpy as np
import pytest

import globalstep as gs


def count_to(n, body, *first):
    return gs.while_loop(lambda i, *_: i < n, lambda i, *rest: (i + 1, *body(*rest)), [0, *first])


def test_one_variable_is_given_without_its_list(session):
    assert session.run(gs.while_loop(lambda x: x < 5, lambda x: x + 2, [1])) == 5
    (kept,) = gs.while_loop(lambda x: x < 5, lambda x: x + 2, [1], return_same_structure=True)
    assert session.run(kept) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((lambda: True, lambda: (), []), ValueError, "No loop variables provided"),
        ((True, lambda x: x, [1]), TypeError, "cond must be callable"),
        ((lambda x: x < 1, 2, [1]), TypeError, "body must be callable"),
        ((lambda x: x < 1, lambda x: (x, x), [1]), ValueError, "same nested structure"),
        ((lambda x: x, lambda x: x, [1]), TypeError, "type int32 that does not match expected type of bool"),
        ((lambda x: x < [1, 2], lambda x: x, [1]), ValueError, "Shape must be rank 0 but is rank 1"),
        ((lambda x: x < 1, lambda x: gs.to_float(x), [1]), TypeError, "enters the loop with dtype int32"),
        (
            (lambda x: gs.reduce_sum(x) < 9, lambda x: gs.concat([x, x], 0), [gs.ones]),
            ValueError,
            r"enters the loop with shape \(2,\), but has shape \(4,\) after one iteration",
        ),
    ],
)
def test_what_is_no_loop_is_refused(arguments, error, text):
    cond, body, first = arguments
    with pytest.raises(error, match=text):
        gs.while_loop(cond, body, [item([2]) if callable(item) else item for item in first])


def test_other_refusals():
    x = gs.ones([2])
    with pytest.raises(TypeError, match="parallel_iterations must be a positive integer"):
        gs.while_loop(lambda x: True, lambda x: x, [x], parallel_iterations=0)
    with pytest.raises(ValueError, match="the specified shape invariant is"):
        gs.while_loop(lambda x: True, lambda x: x, [x], shape_invariants=[gs.TensorShape([3])])
    with pytest.raises(ValueError, match="2 shape invariants for 1 loop variables"):
        gs.while_loop(lambda x: True, lambda x: x, [x], shape_invariants=[gs.TensorShape([2])] * 2)


def test_a_body_may_not_change_a_variable():
    w = gs.Variable(1.0)
    with pytest.raises(ValueError, match="may not change Variables"):
        count_to(3, lambda x: [x + w.assign_add(1.0)], 0.0)

    def after_assignment(x):
        with gs.control_dependencies([w.assign(2.0)]):
            return [gs.identity(x)]

    with pytest.raises(ValueError, match="may not change Variables"):
        count_to(3, after_assignment, 0.0)


def test_what_is_inside_cannot_be_fetched(session):
    inside = []

    def body(x):
        inside.append(x * 2)
        return inside

    count_to(3, body, 1.0)
    with pytest.raises(gs.errors.InvalidArgumentError, match="has a value only inside of the loop"):
        session.run(inside[0])


def test_an_error_names_the_node_inside(session):
    x = gs.placeholder(gs.float32, [None])
    _, y = gs.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, gs.add(y, gs.ones([2]), name="clash")), [0, x],
        shape_invariants=[gs.TensorShape([]), gs.TensorShape([None])],
    )  # fmt: skip
    with pytest.raises(gs.errors.InvalidArgumentError, match="'while/clash' .* in a loop"):
        session.run(y, {x: np.ones(3)})


def test_random_numbers_are_drawn_anew_in_each_iteration_and_the_gradient_sees_the_same(session):
    x = gs.placeholder(gs.float32, [1000])
    _, y, each = gs.while_loop(
        lambda i, *_: i < 2,
        lambda i, y, kept: (i + 1, gs.nn.dropout(y, 0.5), kept.write(i, y)),
        [0, x, gs.TensorArray(gs.float32, 2)],
    )
    after_one = each.stack()[1]
    value, once, gradient = session.run([y, after_one, gs.gradients(y, x)[0]], {x: np.ones(1000)})
    assert set(value) == {0.0, 4.0}
    assert set(once) == {0.0, 2.0}
    np.testing.assert_array_equal(gradient, value)
    assert 180 < np.count_nonzero(value) < 320
    assert not np.array_equal(session.run(y, {x: np.ones(1000)}), value)


def test_python_is_called_once_an_iteration_also_where_a_gradient_is_wanted(session):
    calls = []
    x = gs.placeholder(gs.float32, [])

    def counted(y):
        known = gs.py_func(lambda v: (calls.append(float(v)), np.float32(v))[1], [gs.stop_gradient(y)], gs.float32)
        return [y * 2 + gs.stop_gradient(known) * 0]

    _, y = count_to(3, counted, x)
    assert session.run([y, gs.gradients(y, x)[0]], {x: 1.5}) == [12.0, 8.0]
    assert calls == [1.5, 3.0, 6.0]


def test_assertions_within_hold_in_each_iteration(session):
    limit, x = gs.placeholder(gs.float32, []), gs.placeholder(gs.float32, [])

    def body(y):
        with gs.control_dependencies([gs.assert_less(y, limit)]):
            return [y**2.0]

    _, y = count_to(3, body, x)
    (gradient,) = gs.gradients(y, x)
    assert session.run([y, gradient], {x: 2.0, limit: 20.0}) == [256.0, 1024.0]
    for node in (y, gradient):
        with pytest.raises(gs.errors.InvalidArgumentError, match="assertion failed"):
            session.run(node, {x: 2.0, limit: 10.0})


def test_what_comes_before_the_loop_runs_before_it(session):
    w = gs.Variable(1.0)
    session.run(w.initializer)
    with gs.control_dependencies([w.assign_add(1.0)]):
        _, y = count_to(3, lambda y: [y * w], 1.0)
    assert session.run(y) == 8.0


def test_variables_may_be_made_in_a_body(session):
    def body(y):
        return [y * gs.get_variable("factor", [], initializer=gs.constant_initializer(3.0))]

    _, y = count_to(2, body, 1.0)
    session.run(gs.global_variables_initializer())
    assert [v.name for v in gs.trainable_variables()] == ["factor:0"]
    assert session.run([y, gs.gradients(y, gs.trainable_variables())[0]]) == [9.0, 6.0]


def test_what_has_no_gradient():
    x = gs.placeholder(gs.float32, [])
    _, whole = count_to(3, lambda y: [y + 1], gs.cast(x, gs.int32))
    assert gs.gradients(whole, x) == [None]
    _, kept = gs.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), [0, x], back_prop=False)
    assert gs.gradients(kept, x) == [None]
    _, y = count_to(3, lambda y: [y * x], x)
    (gradient,) = gs.gradients(y, x)
    with pytest.raises(TypeError, match="Second-order gradient for while loops not supported."):
        gs.gradients(gradient, x)
    _, called = count_to(3, lambda y: [gs.py_func(np.sin, [y], gs.float32)], x)
    with pytest.raises(LookupError, match="No gradient defined"):
        gs.gradients(called, x)


def test_a_gradient_may_be_taken_within(session):
    """Newton's method for the root of x**2 = a."""
    a = gs.placeholder(gs.float32, [])

    def body(x):
        y = x * x - a
        return [x - y / gs.gradients(y, x)[0]]

    _, root = count_to(8, body, 1.0)
    assert session.run(root, {a: 2.0}) == pytest.approx(2**0.5, rel=1e-6)


def test_a_captured_node_that_depends_on_a_variable_is_evaluated_once(session):
    calls = []
    x = gs.placeholder(gs.float32, [])
    before = gs.py_func(lambda v: (calls.append(1), v)[1], [x], gs.float32)
    _, y = count_to(4, lambda y: [y + before], 0.0)
    assert session.run(y, {x: 2.0}) == 8.0
    assert calls == [1]


def test_a_loop_trains_over_a_ps(session):
    """The gradient of a loop is pushed like any other."""
    w = gs.Variable(0.5)
    _, y = count_to(3, lambda y: [y * w], 1.0)
    train = gs.train.GradientDescentOptimizer(0.1).minimize(gs.square(y - 1.0))
    session.run(gs.global_variables_initializer())
    for _ in range(200):
        session.run(train)
    assert session.run(w) == pytest.approx(1.0, abs=1e-3)


def test_rows_that_a_loop_looks_up_have_a_gradient_in_rows(session):
    """As in TensorFlow: a row for each time that one was looked up, the last first."""
    table, ids = gs.Variable(np.ones([6, 2], np.float32)), gs.placeholder(gs.int32, [None])
    _, h = gs.while_loop(
        lambda i, h: i < gs.size(ids), lambda i, h: (i + 1, h * 0.5 + gs.gather(table, ids[i])), [0, gs.zeros([2])]
    )
    (gradient,) = gs.gradients(gs.reduce_sum(h), table)
    train = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, table)])
    session.run(gs.global_variables_initializer())
    found = session.run(gradient, {ids: [3, 5, 3]})
    assert (found.indices.tolist(), found.values[:, 0].tolist()) == ([3, 5, 3], [1.0, 0.5, 0.25])
    assert session.run(gradient, {ids: []}).values.shape == (0, 2)
    session.run(train, {ids: [3, 5, 3]})
    assert session.run(table)[:, 0].tolist() == [1, 1, 1, -0.25, 1, 0.5]


def test_two_losses_of_one_loop_have_their_own_gradients(session):
    """What is kept for one of them is not what is kept for the other."""
    x, w = gs.placeholder(gs.float32, []), gs.placeholder(gs.float32, [])
    _, a, b = gs.while_loop(lambda i, *_: i < 2, lambda i, a, b: (i + 1, a * w, b * b + a), [0, x, w])
    of_a, of_b = gs.gradients(a, [x, w]), gs.gradients(b, [x, w])
    # a = x w w; b = (w w + x)**2 + x w
    assert session.run([*of_a, *of_b], {x: 3.0, w: 2.0}) == [4, 12, 2 * 7 + 2, 2 * 7 * 4 + 3]
    assert gs.gradients(gs.stop_gradient(a), x) == [None]


def test_a_loop_within_a_choice_within_a_loop(session):
    x, w = gs.placeholder(gs.float32, []), gs.placeholder(gs.float32, [])

    def body(i, h):
        power = gs.while_loop(lambda j, p: j < 2, lambda j, p: (j + 1, p * w), [0, h])[1]
        return i + 1, gs.cond(gs.equal(i, 1), lambda: power * power, lambda: h + w)

    _, y = gs.while_loop(lambda i, _: i < 3, body, [0, x])
    # ((x + w) w w)**2 + w
    gradients = session.run(gs.gradients(y, [x, w]), {x: 1.0, w: 2.0})
    assert gradients == [2 * 12 * 4, 2 * 12 * (4 + 3 * 4) + 1]

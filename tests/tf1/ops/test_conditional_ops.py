import numpy as np
import pytest

import globalstep as gs
from globalstep.python.ops import control_flow_ops


def test_lists_and_old_names_of_arguments(session):
    flag = gs.placeholder(gs.bool, [])
    a, b = gs.cond(flag, fn1=lambda: [gs.constant(1), gs.constant(2.0)], fn2=lambda: [gs.constant(3), gs.constant(4.0)])
    assert session.run([a, b], {flag: True}) == [1, 2.0]
    assert session.run([a, b], {flag: False}) == [3, 4.0]
    (one,) = gs.cond(flag, lambda: [a], lambda: [a], strict=True)
    assert session.run(one, {flag: True}) == 1
    assert gs.cond(flag, lambda: [a], lambda: [a]).dtype == gs.int32


def test_shapes():
    flag = gs.placeholder(gs.bool, [])
    same = gs.cond(flag, lambda: gs.zeros([2]), lambda: gs.ones([2]))
    rows = gs.cond(flag, lambda: gs.zeros([2, 4]), lambda: gs.ones([3, 4]))
    other = gs.cond(flag, lambda: gs.zeros([2]), lambda: gs.ones([]))
    assert same.shape.as_list() == [2]
    assert rows.shape.as_list() == [None, 4]
    assert other.shape.ndims is None
    assert same.op.name == "cond/Merge"


def _run_both(session, node, flag):
    return [session.run(node, {flag: True}), session.run(node, {flag: False})]


def test_only_the_branch_that_is_taken_is_evaluated(session):
    flag, x, called = gs.placeholder(gs.bool, []), gs.constant(2.0), []

    def ask(value):
        called.append(float(value))
        return value

    y = gs.cond(flag, lambda: gs.py_func(ask, [x * 10], gs.float32) + 1, lambda: gs.py_func(ask, [x], gs.float32))
    assert _run_both(session, y, flag) == [21, 2]
    assert called == [20, 2]
    ids = gs.placeholder(gs.int32, [None])
    z = gs.cond(flag, lambda: gs.gather([1.0, 2.0], ids), lambda: gs.check_numerics(gs.log(-x), "bad") * [1.0])
    assert session.run(z, {flag: True, ids: [1]}).tolist() == [2]
    with pytest.raises(gs.errors.InvalidArgumentError, match=r"is not in \[0, 2\)"):
        session.run(z, {flag: True, ids: [5]})
    with pytest.raises(gs.errors.InvalidArgumentError, match="bad"):
        session.run(z, {flag: False, ids: [5]})


def test_an_error_names_the_node_in_the_branch(session):
    flag, x = gs.placeholder(gs.bool, []), gs.placeholder(gs.float32, [None])
    y = gs.cond(flag, lambda: gs.matmul(gs.reshape(x, [2, -1]), [[1.0]], name="product"), lambda: gs.zeros([2, 1]))
    with pytest.raises(gs.errors.InvalidArgumentError, match=r"'cond/true_fn/product' \(MatMul\) in a branch"):
        session.run(y, {flag: True, x: [1, 2, 3, 4]})


def test_a_queue_is_taken_from_only_in_the_branch_that_is_taken(session):
    flag, queue = gs.placeholder(gs.bool, []), gs.FIFOQueue(3, [gs.float32], shapes=[[]])
    session.run(queue.enqueue_many([[1.0, 2.0]]))
    y = gs.cond(flag, queue.dequeue, lambda: gs.constant(0.0))
    assert [session.run(y, {flag: choice}) for choice in (False, True, False, True)] == [0, 1, 0, 2]
    assert session.run(queue.size()) == 0


def test_variables_change_only_in_the_branch_that_is_taken(session):
    flag, w = gs.placeholder(gs.bool, []), gs.Variable(2.0)
    session.run(gs.global_variables_initializer())
    y = gs.cond(flag, lambda: w.assign_add(1.0) * 10, lambda: gs.identity(w))
    assert session.run(y, {flag: False}) == 2
    assert session.run(y, {flag: True}) == 30
    assert session.run([y, w], {flag: False}) == [3, 3]
    both = gs.cond(flag, lambda: w.assign_add(1.0), lambda: w.assign_sub(1.0))
    assert [float(session.run(both, {flag: choice})) for choice in (True, True, False)] == [4, 5, 4]
    under = gs.placeholder(gs.float32, [])

    def moved():
        with gs.control_dependencies([w.assign(under + 1)]):
            return gs.identity(w)

    z = gs.cond(flag, moved, lambda: -w)
    assert session.run(z, {flag: True, under: 6.0}) == 7
    assert session.run(z, {flag: False, under: 1.0}) == -7


def test_an_operation_in_a_branch(session):
    flag, a, b = gs.placeholder(gs.bool, []), gs.Variable(0), gs.Variable(0)
    session.run(gs.global_variables_initializer())
    node = gs.cond(flag, lambda: gs.group(a.assign_add(1), b.assign_add(2)), gs.no_op)
    assert _run_both(session, node, flag) == [True, False]
    assert session.run([a, b]) == [1, 2]


def test_local_variables_change_only_where_taken(session):
    flag = gs.placeholder(gs.bool, [])
    w = gs.Variable(1.0, trainable=False, collections=[gs.GraphKeys.LOCAL_VARIABLES])
    session.run(gs.local_variables_initializer())
    y = gs.cond(flag, lambda: w.assign_add(1.0), lambda: gs.identity(w))
    assert [float(session.run(y, {flag: choice})) for choice in (True, False, True)] == [2, 2, 3]


def test_one_change_follows_another_within_a_branch(session):
    flag, a, b = gs.placeholder(gs.bool, []), gs.Variable(1.0), gs.Variable(1.0)
    session.run(gs.global_variables_initializer())

    def branch():
        new = a.assign(a * 3 + 1)
        with gs.control_dependencies([b.assign(new * 2)]):
            return [gs.identity(a), gs.identity(b), new + 0.5]

    nodes = gs.cond(flag, branch, lambda: [gs.identity(a), gs.identity(b), gs.constant(0.0)])
    assert session.run(nodes, {flag: True}) == [4, 8, 4.5]
    assert session.run(nodes, {flag: False}) == [4, 8, 0]


def test_training_in_a_branch(session):
    """Discriminator or generator: each has an optimizer, and one step moves at a time."""
    flag, x = gs.placeholder(gs.bool, []), gs.constant([[1.0, 2.0]])
    first, second = gs.Variable([[1.0], [1.0]], name="first"), gs.Variable([[1.0]], name="second")
    step = gs.train.get_or_create_global_step()
    loss = gs.reduce_sum(gs.square(gs.matmul(gs.matmul(x, first), second)))
    one = gs.train.GradientDescentOptimizer(0.01)
    other = gs.train.AdamOptimizer(0.1)
    train = gs.cond(
        flag, lambda: one.minimize(loss, step, var_list=[first]), lambda: other.minimize(loss, var_list=[second])
    )
    session.run(gs.global_variables_initializer())
    session.run(train, {flag: True})
    assert session.run([first, second, step])[0].reshape(-1).round(4).tolist() == pytest.approx([0.94, 0.88])
    assert session.run([second, step]) == [[[1.0]], 1]
    value, _ = session.run([loss, train], {flag: False})
    assert value == pytest.approx(2.7**2, rel=1e-4)
    assert session.run(step) == 1
    assert session.run(second)[0, 0] == pytest.approx(0.9, rel=1e-4)


def test_the_gradient_of_a_branch_sees_what_was_drawn(session):
    """What is drawn outside is drawn once, for the loss and for the gradient that a branch computes."""
    flag, w = gs.placeholder(gs.bool, []), gs.Variable(np.ones(100, np.float32))
    kept = gs.nn.dropout(w, 0.5)
    loss = gs.reduce_sum(kept)
    gradient = gs.cond(flag, lambda: gs.gradients(loss, w)[0], lambda: gs.zeros([100]))
    session.run(gs.global_variables_initializer())
    values, found = session.run([kept, gradient], {flag: True})
    np.testing.assert_array_equal(values, found)
    inside = gs.cond(flag, lambda: gs.nn.dropout(w, 0.5), lambda: gs.identity(w))
    values, found = session.run([inside, gs.gradients(inside, w)[0]], {flag: True})
    np.testing.assert_array_equal(values, found)
    assert 20 < np.count_nonzero(values) < 80


def test_gradients_of_gradients_and_stopped_ones(session):
    flag, x = gs.placeholder(gs.bool, []), gs.placeholder(gs.float32, [])
    y = gs.cond(flag, lambda: x**3, lambda: x * gs.stop_gradient(x))
    (first,) = gs.gradients(y, x)
    (second,) = gs.gradients(first, x)
    assert session.run([first, second], {flag: True, x: 2.0}) == [12, 12]
    assert session.run(first, {flag: False, x: 2.0}) == 2


def test_no_gradient_through_what_has_none():
    flag, x = gs.placeholder(gs.bool, []), gs.placeholder(gs.float32, [])
    y = gs.cond(flag, lambda: gs.py_func(lambda v: v, [x], gs.float32), lambda: x)
    with pytest.raises(LookupError, match="No gradient defined"):
        gs.gradients(y, x)


def test_choices_within_choices(session):
    outer, inner = gs.placeholder(gs.bool, []), gs.placeholder(gs.bool, [])
    w, x = gs.Variable(1.0), gs.constant(5.0)
    session.run(gs.global_variables_initializer())

    def branch():
        chosen = inner & (x > 0)
        return gs.cond(chosen, lambda: w.assign_add(x * 2), lambda: gs.identity(w)) + 100

    y = gs.cond(outer, branch, lambda: -w)
    results = [float(session.run(y, {outer: o, inner: i})) for o, i in ((1, 0), (1, 1), (0, 1), (0, 0), (1, 1))]
    assert results == [101, 111, -11, -11, 121]


def test_rows_of_a_table_that_a_branch_looks_up(session):
    """They are pulled, and their gradient is IndexedSlices, as outside of branches."""
    flag, table = gs.placeholder(gs.bool, []), gs.Variable(np.arange(12, dtype=np.float32).reshape(6, 2))
    ids = gs.placeholder(gs.int32, [None])
    other = gs.constant([5, 5])
    y = gs.cond(flag, lambda: gs.reduce_sum(gs.gather(table, ids * 2)), lambda: gs.reduce_sum(gs.gather(table, other)))
    (gradient,) = gs.gradients(y, table)
    assert isinstance(gradient, gs.IndexedSlices)
    train = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, table)])
    session.run(gs.global_variables_initializer())
    assert session.run(y, {flag: True, ids: [1, 2]}) == 4 + 5 + 8 + 9
    assert session.run(y, {flag: False, ids: [1000]}) == 42
    assert session.run(gradient, {flag: True, ids: [1, 2]}).indices.tolist() == [2, 4]
    assert session.run(gradient, {flag: False, ids: [1000]}).indices.tolist() == [5, 5]
    session.run(train, {flag: False, ids: [1000]})
    session.run(train, {flag: True, ids: [0]})
    assert session.run(table)[[0, 1, 5]].tolist() == [[-1, 0], [2, 3], [8, 9]]


def test_averages_that_move_in_training_only(session):
    """Batch normalization as many programs write it."""
    training, x = gs.placeholder(gs.bool, []), gs.placeholder(gs.float32, [None, 2])
    mean, variance = gs.nn.moments(x, [0])
    average = gs.train.ExponentialMovingAverage(0.5)

    def moving():
        with gs.control_dependencies([average.apply([mean, variance])]):
            return gs.identity(mean), gs.identity(variance)

    found = gs.cond(training, moving, lambda: (average.average(mean), average.average(variance)))
    session.run(gs.global_variables_initializer())
    batch = np.array([[1, 2], [3, 6]], np.float32)
    assert [value.tolist() for value in session.run(found, {training: True, x: batch})] == [[2, 4], [1, 4]]
    held = [value.tolist() for value in session.run(found, {training: False, x: batch * 9})]
    assert held == [[1, 2], [0.5, 2]]
    assert [value.tolist() for value in session.run(found, {training: False, x: batch})] == held


def test_case(session):
    x, w = gs.placeholder(gs.int32, []), gs.Variable(0)
    pairs = [(x < 0, lambda: w.assign_add(1)), (x < 10, lambda: w.assign_add(100))]
    y = gs.case(pairs, default=lambda: gs.constant(-1))
    session.run(gs.global_variables_initializer())
    assert [int(session.run(y, {x: value})) for value in (-5, 5, 50, 5)] == [1, 101, -1, 201]
    strict = gs.case([(x < 5, lambda: gs.constant(1)), (x < 10, lambda: gs.constant(2))], exclusive=True)
    assert session.run(strict, {x: 7}) == 2
    with pytest.raises(gs.errors.InvalidArgumentError, match="More than one condition evaluated as True"):
        session.run(strict, {x: 3})
    with pytest.raises(gs.errors.InvalidArgumentError, match="None of the conditions evaluated as True"):
        session.run(strict, {x: 30})
    with pytest.raises(TypeError, match="must be a list, tuple, or dict"):
        gs.case(3)
    with pytest.raises(ValueError, match="at least one pred/fn pair"):
        gs.case([])


def test_an_effect_outside_of_the_branch_is_as_in_tensorflow(session):
    flag, w = gs.placeholder(gs.bool, []), gs.Variable(2.0)
    session.run(gs.global_variables_initializer())
    added = w.assign_add(1.0)
    y = gs.cond(flag, lambda: added * 10, lambda: gs.constant(0.0))
    assert session.run(y, {flag: False}) == 0
    assert session.run(w) == 3


def test_errors():
    flag, x = gs.placeholder(gs.bool, []), gs.constant(1.0)
    with pytest.raises(TypeError, match="false_fn must be callable"):
        gs.cond(flag, lambda: x, x)
    with pytest.raises(TypeError, match="pred must not be a Python bool"):
        gs.cond(True, lambda: x, lambda: x)
    with pytest.raises(ValueError, match="true_fn must have a return value"):
        gs.cond(flag, lambda: None, lambda: x)
    with pytest.raises(ValueError, match="must return the same structure"):
        gs.cond(flag, lambda: [x], lambda: x, strict=True)
    with pytest.raises(ValueError, match="must have the same type: float32, int32"):
        gs.cond(flag, lambda: x, lambda: gs.constant(1))


@pytest.mark.parametrize(("chosen", "scale"), [(0, 1.0), (1, 2.0), (2, 3.0)])
def test_the_side_of_a_switch_that_its_condition_chose_is_merged(session, chosen, scale):
    which, x = gs.placeholder(gs.int32, []), gs.constant([1.0, 2.0])
    for _ in range(2):  # One after the other, as programs distort images.
        sides = [control_flow_ops.switch(x, gs.equal(which, at))[1] * (at + 1.0) for at in range(3)]
        x, index = control_flow_ops.merge(sides)
    feed = {which: chosen}
    assert session.run([x, index], feed)[0].tolist() == [scale**2, 2 * scale**2]
    assert session.run(index, feed) == chosen
    assert session.run(gs.gradients(x, sides)[chosen], feed).tolist() == [1, 1]

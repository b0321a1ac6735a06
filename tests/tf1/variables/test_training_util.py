import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.graph.graph import GraphKeys, as_node


def test_create():
    with gs.name_scope("anywhere"):
        step = gs.train.create_global_step()
    assert (step.name, step.dtype, step.shape.as_list()) == ("global_step:0", gs.int64, [])
    assert gs.get_collection(GraphKeys.GLOBAL_STEP) == gs.global_variables() == [step]
    assert gs.trainable_variables() == []
    assert step.is_step
    with pytest.raises(ValueError, match='^"global_step" already exists.$'):
        gs.train.create_global_step()


def test_create_in_a_graph():
    graph = gs.Graph()
    step = gs.train.create_global_step(graph)
    assert step.graph is graph
    assert gs.train.get_global_step() is None
    assert gs.train.get_global_step(graph) is step


def test_get():
    assert gs.train.get_global_step() is None
    made = gs.train.get_or_create_global_step()
    assert gs.train.get_or_create_global_step() is made


def test_get_by_name():
    by_name = gs.Variable(0, trainable=False, name="global_step")
    assert gs.train.get_global_step() is by_name


def test_several(caplog):
    for value in (0, 1):
        gs.add_to_collection(GraphKeys.GLOBAL_STEP, gs.Variable(value))
    with caplog.at_level(logging.ERROR):
        assert gs.train.get_global_step() is None
    assert "Multiple tensors in global_step collection." in caplog.text


def test_assert():
    with pytest.raises(TypeError, match='Existing "global_step" must be a Variable or Tensor: 7'):
        gs.train.assert_global_step(7)
    with pytest.raises(TypeError, match='Existing "global_step" does not have integer type: float32'):
        gs.train.assert_global_step(gs.Variable(1.0))
    with pytest.raises(TypeError, match=r'Existing "global_step" is not scalar: \(2,\)'):
        gs.train.assert_global_step(gs.Variable([1, 2]))
    gs.train.assert_global_step(as_node(np.int32(3)))


def test_global_step():
    step = gs.Variable(10, trainable=False, name="global_step")
    with gs.Session() as sess:
        sess.run(step.initializer)
        assert gs.train.global_step(sess, step) == 10
        assert gs.train.global_step(sess, "global_step:0") == 10


def test_a_step_takes_an_addition_of_nothing():
    step = gs.train.create_global_step()
    nothing, one = gs.assign_add(step, 0), step.assign_add(1)
    with gs.train.MonitoredSession(hooks=[gs.train.StopAtStepHook(last_step=2)]) as session:
        assert session.run(nothing) == 0
        assert session.run([one, nothing]) in ([1, 0], [1, 1])
        assert session.run(nothing) == 1
        assert not session.should_stop()


def test_a_step_goes_on_by_a_nodes_value():
    """As A3C counts frames: assign_add(global_step, tf.shape(x)[0])."""
    step, x = gs.train.create_global_step(), gs.placeholder(gs.float32, [None, 2])
    w = gs.Variable(1.0)
    train = gs.train.GradientDescentOptimizer(0.1).minimize(w * gs.reduce_sum(x))
    counted = step.assign_add(gs.shape(x, out_type=gs.int64)[0])
    with gs.train.MonitoredSession(hooks=[gs.train.StopAtStepHook(last_step=12)]) as session:
        assert [session.run(counted, {x: np.zeros((rows, 2))}) for rows in (3, 0, 5)] == [3, 3, 8]
        assert session.run([train, counted], {x: np.ones((4, 2))}) == [None, 12]
        assert session.should_stop()


def test_a_step_goes_back_by_what_is_subtracted():
    step, by = gs.train.create_global_step(), gs.placeholder(gs.int64, [])
    add, less = gs.assign_add(step, by), gs.assign_sub(step, by)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert session.run(gs.assign_add(step, 10)) == 10
        assert session.run(gs.assign_add(step, -2)) == 8
        assert session.run(gs.assign_sub(step, 3)) == 5
        assert [session.run(add, {by: -4}), session.run(less, {by: -7}), session.run(less, {by: 3})] == [1, 8, 5]


def test_what_is_added_to_a_step_is_one_number():
    step, by = gs.train.create_global_step(), gs.placeholder(gs.int64)
    moved = gs.assign_add(step, by)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        with pytest.raises(gs.errors.InvalidArgumentError, match=r"added to step 'global_step' .* of shape \[2\]"):
            session.run(moved, {by: [1, 2]})
        assert session.run(step) == 0


def test_what_is_added_before_an_optimizer_makes_it_a_step_moves_the_step():
    step, w = gs.Variable(0, name="mine", trainable=False), gs.Variable(1.0)
    moved = gs.assign_add(step, 2)
    train = gs.train.GradientDescentOptimizer(0.1).minimize(gs.square(w), global_step=step)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        session.run(train)
        assert session.run(moved) == 3


def steps_under_a_scope():
    with gs.variable_scope("bar"):
        names = [gs.GraphKeys.GLOBAL_STEP, gs.GraphKeys.GLOBAL_VARIABLES]
        return gs.get_variable("foo", initializer=0, trainable=False, collections=names)


def steps_of_a_train_op():
    step = gs.Variable(0, name="mine", trainable=False)
    gs.train.GradientDescentOptimizer(0.1).minimize(gs.square(gs.Variable(1.0)), global_step=step)
    return step


@pytest.mark.parametrize("make", [steps_under_a_scope, steps_of_a_train_op])
def test_any_variable_that_counts_as_a_step_can_be_added_to(make):
    step = make()
    moved = gs.assign_add(step, 2)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert [session.run(moved), session.run(moved)] == [2, 4]


def test_hooks_count_a_step_under_a_scope():
    step = steps_under_a_scope()
    moved = gs.assign_add(step, 1)
    with gs.train.MonitoredSession(hooks=[gs.train.StopAtStepHook(last_step=3)]) as session:
        while not session.should_stop():
            last = session.run(moved)
    assert last == 3

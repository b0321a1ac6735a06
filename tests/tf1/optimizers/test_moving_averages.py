"""Moving averages: names, errors, and that shadows follow on the PS, in the push that they belong to."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.variables.training_util import create_global_step


def pushes(sess):
    return sum(status.applied for status in sess.cluster.refresh())


def test_names_and_collections_are_tensorflows():
    w, b = gs.Variable(0.0, name="w"), gs.Variable(0.0, name="b")
    ema = gs.train.ExponentialMovingAverage(0.9)
    assert ema.name == "ExponentialMovingAverage"
    assert ema.average(w) is None
    assert ema.average_name(w) == "w/ExponentialMovingAverage"
    follow = ema.apply([w])
    assert follow.name == "ExponentialMovingAverage"
    assert ema.average(w).name == "w/ExponentialMovingAverage:0"
    assert ema.average_name(w) == "w/ExponentialMovingAverage"
    assert ema.average_name(b) == "b/ExponentialMovingAverage"
    assert gs.moving_average_variables() == [w]
    assert gs.trainable_variables() == [w, b]
    assert ema.average(w) in gs.global_variables()
    assert ema.average(w).primary is w


def test_default_is_the_trainable_variables():
    w, _ = gs.Variable(0.0), gs.Variable(0.0, trainable=False)
    ema = gs.train.ExponentialMovingAverage(0.9)
    ema.apply()
    assert gs.moving_average_variables() == [w]


def test_variables_to_restore_maps_shadows_to_variables():
    w, b = gs.Variable(0.0, name="w"), gs.Variable(0.0, name="b", trainable=False)
    step = create_global_step()
    ema = gs.train.ExponentialMovingAverage(0.9)
    assert ema.variables_to_restore() == {"w/ExponentialMovingAverage": w, "b": b, "global_step": step}
    assert ema.variables_to_restore([b]) == {"b/ExponentialMovingAverage": b, "w": w, "global_step": step}


def test_behind_a_train_op_it_is_part_of_the_same_push(session):
    w = gs.Variable([4.0, 8.0], name="w")
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(w), global_step=step)
    ema = gs.train.ExponentialMovingAverage(0.5)
    with gs.control_dependencies([train_op]):
        follow = ema.apply([w])
    assert follow.after_increment
    assert [(part.source, part.operand) for part in follow.parts] == [(w, None)]
    sess = session()
    before = pushes(sess)
    sess.run(follow)
    assert pushes(sess) - before == 1
    assert sess.run(w).tolist() == [3.0, 7.0]
    assert sess.run(ema.average(w)).tolist() == [3.5, 7.5]
    assert sess.run(step) == 1


@pytest.mark.parametrize("shards", [1, 3])
def test_num_updates_counts_the_step_after_the_push(session, shards):
    w = gs.Variable(4.0, name="w")
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(4.0).minimize(w * 1.0, global_step=step)
    ema = gs.train.ExponentialMovingAverage(0.999, num_updates=step)
    with gs.control_dependencies([train_op]):
        follow = ema.apply([w])
    sess = session(shards)
    sess.run(follow)
    decay = 2.0 / 11.0
    assert sess.run(ema.average(w)) == pytest.approx(4.0 * decay, rel=1e-6)


def test_zero_debias_leaves_variables_alone(session):
    w = gs.Variable(4.0, name="w")
    ema = gs.train.ExponentialMovingAverage(0.75, zero_debias=True)
    follow = ema.apply([w])
    sess = session()
    sess.run(gs.assign(w, 0.0))
    sess.run(follow)
    assert sess.run(ema.average(w)) == 3.0


def test_an_average_of_a_half_and_of_a_double(session):
    half, double = gs.Variable(np.float16(4.0)), gs.Variable(np.float64(4.0))
    ema = gs.train.ExponentialMovingAverage(0.75)
    follow = ema.apply([half, double])
    sess = session()
    sess.run([gs.assign(half, np.float16(0)), gs.assign(double, np.float64(0))])
    sess.run(follow)
    assert sess.run([ema.average(half), ema.average(double)]) == [3.0, 3.0]


def test_an_integer_has_no_average():
    w, count = gs.Variable(0.0, name="w"), gs.Variable(0, name="count")
    ema = gs.train.ExponentialMovingAverage(0.9)
    with pytest.raises(TypeError, match="The variables must be half, float, or double: count:0"):
        ema.apply([w, count])
    assert ema.average(w) is None
    assert gs.moving_average_variables() == []


def test_an_average_is_made_once():
    w, b = gs.Variable(0.0, name="w"), gs.Variable(0.0, name="b")
    ema = gs.train.ExponentialMovingAverage(0.9)
    ema.apply([w])
    with pytest.raises(ValueError, match="Moving average already computed for: w:0"):
        ema.apply([b, w])
    with pytest.raises(ValueError, match="Moving average already computed for: b:0"):
        ema.apply([b, b])
    assert ema.average(b) is None


def test_two_averages_of_a_variable_have_names_of_their_own():
    w = gs.Variable(0.0, name="w")
    first, second = gs.train.ExponentialMovingAverage(0.9), gs.train.ExponentialMovingAverage(0.99)
    ops = [first.apply([w]), second.apply([w])]
    assert second.average_name(w) == "w/ExponentialMovingAverage_1"
    assert ops[0].uses[0].name != ops[1].uses[0].name


@pytest.mark.parametrize(
    ("decay", "error", "text"),
    [
        (float("nan"), ValueError, "decay of 'ExponentialMovingAverage' is NaN"),
        ("slow", TypeError, "must be a number"),
        (lambda: 0.9, TypeError, "must be a number or a scalar node"),
    ],
)
def test_a_decay_must_be_one(decay, error, text):
    with pytest.raises(error, match=text):
        gs.train.ExponentialMovingAverage(decay)

"""Gradients that a framework gives with its loss, from one evaluation of it."""

import numpy as np
import pytest

import globalstep as gs

W = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)
IDS = np.array([4, 1, 4])


def squares(w, rows, x):
    """The sum of squared products, and its gradients by w and the rows."""
    error = (rows * x[:, None]) @ w
    return np.sum(error**2), [2 * (rows * x[:, None]).T @ error, 2 * (error @ w.T) * x[:, None]]


class Model:
    """A loss over a Variable and the rows of a table; `calls` counts its evaluations."""

    def __init__(self):
        self.calls = 0
        self.w, self.table = gs.Variable(W, name="w"), gs.Variable(TABLE, name="table")
        self.x, ids = gs.placeholder(gs.float32, [None]), gs.placeholder(gs.int64, [None])
        self.rows = gs.gather(self.table, ids)

        def counted(*values):
            self.calls += 1
            return squares(*values)

        self.loss = gs.py_loss(counted, [self.w, self.rows], [self.x])
        self.feed = {self.x: np.array([1, 2, 3], np.float32), ids: IDS}


def found_by(model, loss, feed=None):
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        return session.run([model.loss, gs.gradients(loss, [model.w, model.table])], {**model.feed, **(feed or {})})


@pytest.fixture
def model():
    return Model()


def test_the_loss_is_evaluated_once_and_has_them_however_it_is_used(model):
    loss, (by_w, by_table) = found_by(model, model.loss)
    assert model.calls == 1
    same, (scaled, scaled_rows) = found_by(model, 2.0 * model.loss + gs.reduce_sum(gs.zeros([2])))
    assert model.calls == 2
    assert loss == same
    np.testing.assert_allclose(by_w, squares(W, TABLE[IDS], np.array([1, 2, 3], np.float32))[1][0])
    np.testing.assert_array_equal(scaled, 2 * by_w)
    np.testing.assert_array_equal(scaled_rows.values, 2 * by_table.values)
    assert by_table.indices.tolist() == scaled_rows.indices.tolist() == IDS.tolist()


def test_a_seed_of_its_own_scales_them(model):
    by_w = gs.gradients(model.loss, [model.w], grad_ys=[gs.constant(3.0)])[0]
    plain = gs.gradients(model.loss, [model.w])[0]
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        three, one = session.run([by_w, plain], model.feed)
    np.testing.assert_allclose(three, 3 * one)


def test_of_several_losses_each_has_its_own(model):
    other = gs.py_loss(lambda w: (w.sum(), [np.ones_like(w)]), [model.w])
    _, (by_w, _) = found_by(model, model.loss)
    both = gs.gradients([model.loss, other], [model.w])[0]
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        np.testing.assert_allclose(session.run(both, model.feed), by_w + 1)
        assert (session.run(gs.gradients(other, [model.w])[0]) == 1).all()


def test_a_loss_that_is_fed_has_them_all_the_same(model):
    _, (by_w, _) = found_by(model, model.loss, {model.loss: 7.0})
    _, (plain, _) = found_by(model, model.loss)
    np.testing.assert_allclose(by_w, plain)

"""A loss whose Python function gives its gradients."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

W = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.0, 1.0]], np.float32)
Y = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]], np.float32)


def squares(w, b, x, y):
    """Half the sum of squared errors, and its gradients by w and b."""
    error = x @ w + b - y
    return 0.5 * np.sum(error**2), [x.T @ error, error.sum(axis=0)]


class Model:
    """The loss as a foreign node and as one of the graph's own, over the same Variables."""

    def __init__(self, fn=squares):
        self.w, self.b = gs.Variable(W, name="w"), gs.Variable(np.zeros(2, np.float32), name="b")
        self.x, self.y = gs.placeholder(gs.float32, [None, 2]), gs.placeholder(gs.float32, [None, 2])
        self.calls = 0

        def counted(*values):
            self.calls += 1
            return fn(*values)

        self.loss = gs.py_loss(counted, [self.w, self.b], [self.x, self.y])
        self.same = 0.5 * gs.reduce_sum(gs.square(gs.matmul(self.x, self.w) + self.b - self.y))
        self.feed = {self.x: X, self.y: Y}


@pytest.fixture
def model():
    return Model()


def initialized(session):
    session.run(gs.global_variables_initializer())
    return session


def test_loss_and_gradients_are_those_of_the_graph(session, model):
    initialized(session)
    ours = [model.loss, *gs.gradients(model.loss, [model.w, model.b])]
    graphs = [model.same, *gs.gradients(model.same, [model.w, model.b])]
    for found, expected in zip(session.run(ours, model.feed), session.run(graphs, model.feed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert found.dtype == np.float32
    assert model.loss.dtype == gs.float32
    assert model.loss.shape == ()


@pytest.mark.parametrize(
    "combine",
    [
        lambda loss, m: 3.0 * loss,
        lambda loss, m: loss + 0.1 * gs.reduce_sum(gs.square(m.w)),
        lambda loss, m: gs.square(loss) + gs.reduce_sum(m.b),
        lambda loss, m: gs.log(loss) * gs.reduce_mean(m.w),
    ],
    ids=["scaled", "weight decay", "squared", "product"],
)
def test_the_chain_rule_goes_on(session, model, combine):
    initialized(session)
    pairs = [gs.gradients(combine(loss, model), [model.w, model.b]) for loss in (model.loss, model.same)]
    found, expected = session.run(pairs, model.feed)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_one_evaluation_gives_loss_and_gradients(session, model):
    initialized(session)
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    session.run([train_op, model.loss, 2.0 * model.loss], model.feed)
    assert model.calls == 1
    session.run(model.loss, model.feed)
    assert model.calls == 2


def test_gradients_are_pushed_from_the_functions_own_memory(session, cluster):
    given = []

    def remembered(*values):
        loss, gradients = squares(*values)
        given.extend(gradients)
        return loss, gradients

    model = Model(remembered)
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    initialized(session)
    cluster.forget()
    session.run(train_op, model.feed)
    (push,) = cluster.pushes
    assert [np.shares_memory(op.value, gradient) for op, gradient in zip(push.ops, given, strict=True)] == [True] * 2
    given[0][:] = 7  # only the view that was pushed is read-only


def test_gradients_can_be_clipped_before_they_are_applied(session, model):
    optimizer = gs.train.GradientDescentOptimizer(1.0)
    pairs = optimizer.compute_gradients(model.loss, [model.b])
    train_op = optimizer.apply_gradients([(gs.clip_by_norm(grad, 0.5), var) for grad, var in pairs])
    initialized(session).run(train_op, model.feed)
    assert np.linalg.norm(session.run(model.b)) == pytest.approx(0.5)
    assert session.run(model.w).tolist() == W.tolist()


def test_inputs_are_constants(model):
    assert gs.gradients(model.loss, [model.x, model.w])[0] is None


def test_rows_of_an_embedding_get_a_sparse_gradient(session, cluster):
    table = gs.Variable(np.ones((4, 2), np.float32), name="table")
    rows = gs.nn.embedding_lookup(table, gs.constant([1, 3, 1]))
    loss = gs.py_loss(lambda r: (r.sum(), [np.full_like(r, 2.0)]), [rows])
    (gradient,) = gs.gradients(loss, table)
    assert isinstance(gradient, gs.IndexedSlices)
    train_op = gs.train.GradientDescentOptimizer(0.25).minimize(loss)
    initialized(session)
    cluster.forget()
    session.run(train_op)
    assert cluster.pulls == [["table[...]"]]
    assert session.run(table).tolist() == [[1, 1], [0, 0], [1, 1], [0.5, 0.5]]


def test_none_is_a_gradient_of_zeros(session, model):
    loss = gs.py_loss(lambda w, b: (w.sum(), (np.ones_like(w), None)), [model.w, model.b])
    found = initialized(session).run(gs.gradients(loss, [model.w, model.b]))
    assert [value.tolist() for value in found] == [[[1, 1], [1, 1]], [0, 0]]


def test_a_float64_gradient_becomes_the_variables_dtype(session, model):
    loss = gs.py_loss(lambda b: (1.0, [np.array([1.0, 2.0])]), model.b)
    (gradient,) = initialized(session).run(gs.gradients(loss, [model.b]))
    assert gradient.dtype == np.float32
    assert gradient.tolist() == [1.0, 2.0]


def test_values_of_variables_cannot_be_written(session, model):
    def writing(w):
        w += 1
        return 0.0, [w]

    loss = gs.py_loss(writing, [model.w])
    with pytest.raises(ValueError, match="read-only"):
        initialized(session).run(loss)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda w: 1.0, r"returning\(\) must return the loss and a sequence of gradients; it returned 1\.0"),
        (lambda w: (1.0, []), r"gave 0 gradients for 1 Variables: 'w'"),
        (lambda w: (1.0, None), r"gave 0 gradients for 1 Variables: 'w'"),
        (
            lambda w: (1.0, [w[0]]),
            r"gave a gradient of shape \(2,\) and dtype float32 for 'w', which has shape \(2, 2\) and dtype float32",
        ),
        (lambda w: (1.0, [w.astype(int)]), r"a gradient of shape \(2, 2\) and dtype int64 for 'w'"),
        (lambda w: (w, [w]), r"The loss 'py_loss_1/loss' must be a scalar; .* shape \(2, 2\)"),
    ],
)
def test_what_does_not_fit_changes_nothing(session, model, returned, text):
    def returning(w):
        return returned(w)

    loss = gs.py_loss(returning, [model.w])
    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(loss)
    initialized(session)
    with pytest.raises(InvalidArgumentError, match=text):
        session.run(train_op)
    assert session.run(model.w).tolist() == W.tolist()


def test_an_exception_of_the_function_passes_through(session, model):
    def failing(w):
        raise ZeroDivisionError("mine")

    loss = gs.py_loss(failing, [model.w])
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        initialized(session).run(loss)
    assert "py_loss_1/evaluate" in caught.value.__notes__[0]


def test_an_exception_passes_through_where_gradients_are_asked_for(session, model):
    """A ValueError, which that of numpy in a node of the graph is not."""

    def failing(w):
        raise ValueError("mine")

    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(gs.py_loss(failing, [model.w]))
    with pytest.raises(ValueError, match="mine"):
        initialized(session).run(train_op)


def test_what_cannot_be_built(model):
    with pytest.raises(ValueError, match="at least one Variable"):
        gs.py_loss(squares, [])
    with pytest.raises(TypeError, match=r"a gradient for 'count:0' of dtype int32"):
        gs.py_loss(squares, [gs.Variable(1, name="count")])


def test_it_has_no_second_derivative(model):
    (gradient,) = gs.gradients(model.loss, [model.w])
    with pytest.raises(LookupError, match=r"No gradient defined for operation 'gradients/evaluate_grad/LossGrad'"):
        gs.gradients(gradient, [model.w])
    # As a constant it may be part of another loss.
    penalty = gs.reduce_sum(gs.stop_gradient(gradient) * model.w)
    assert gs.gradients(penalty, [model.w])[0] is not None


def test_a_gradient_in_a_loss_is_a_value_like_others(session, model):
    (gradient,) = gs.gradients(model.loss, [model.w])
    penalty = gs.reduce_sum(gs.stop_gradient(gradient) * model.w)
    slope, value = initialized(session).run([gs.gradients(penalty, [model.w])[0], gradient], model.feed)
    np.testing.assert_allclose(slope, value)


def test_its_variables_are_those_given(model):
    assert model.loss.variables == [model.w, model.b]

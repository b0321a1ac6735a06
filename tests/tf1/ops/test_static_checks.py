"""Checks of ranks and dtypes, before a run where they can be made there."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("check", "right", "wrong", "text"),
    [
        (gs.assert_rank, 1, 2, r"must have rank 2\.  Received rank 1, shape \(2,\)"),
        (gs.assert_rank_at_least, 0, 2, r"must have rank at least 2\.  Received rank 1"),
        (gs.assert_rank_in, [0, 1], [0, 2], r"must have rank in \(0, 2\)\.  Received rank 1"),
    ],
)
def test_ranks(check, right, wrong, text):
    known, unknown = gs.constant([1.0, 2.0], name="known"), gs.placeholder("float32", name="unknown")
    with gs.Session() as session:
        session.run(check(known, right))
        with pytest.raises(ValueError, match=f"^fail.  Tensor known:0 {text}"):
            check(known, wrong, message="fail")
        session.run(check(unknown, right), {unknown: [1.0, 2.0]})
        with pytest.raises(InvalidArgumentError, match=r"fail.*Tensor unknown:0 must have rank"):
            session.run(check(unknown, wrong, message="fail"), {unknown: [1.0, 2.0]})


def test_a_rank_may_be_a_node():
    rank = gs.placeholder("int32", [])
    with gs.Session() as session:
        check = gs.assert_rank(gs.constant([1.0]), rank)
        session.run(check, {rank: 1})
        with pytest.raises(InvalidArgumentError, match="must have rank"):
            session.run(check, {rank: 0})
    with pytest.raises(TypeError, match="Rank must be an integer"):
        gs.assert_rank([1.0], 1.0)
    with pytest.raises(ValueError, match="Rank must be a scalar"):
        gs.assert_rank([1.0], np.array([1], np.int32))


def test_dtypes():
    with gs.Session() as session:
        session.run([gs.assert_type(gs.constant(1), gs.int32), gs.assert_integer(gs.constant(1))])
    with pytest.raises(TypeError, match="fail  x must be of type"):
        gs.assert_type(gs.constant(1.0, name="x"), gs.int32, message="fail")
    with pytest.raises(TypeError, match='Expected "x" to be integer type'):
        gs.assert_integer(gs.constant(1.0))


def test_a_shape_is_made_sure_of_in_the_run():
    x = gs.placeholder(gs.float32, [None, 2], name="x")
    sure = gs.ensure_shape(x, [3, None])
    assert sure.shape.as_list() == [3, 2]
    with gs.Session() as session:
        np.testing.assert_array_equal(session.run(sure, {x: np.ones((3, 2))}), np.ones((3, 2)))
        text = r"Shape of tensor x \[4,2\] is not compatible with expected shape \[3,\?\]\."
        with pytest.raises(InvalidArgumentError, match=text):
            session.run(sure, {x: np.ones((4, 2))})
    with pytest.raises(ValueError, match="are incompatible"):
        gs.ensure_shape(x, [3, 4])


def test_values_that_are_near():
    with gs.Session() as session:
        session.run(gs.assert_near([1.0, 2.0], [1.0, 2.0 + 1e-6]))
        session.run(gs.assert_near([1.0], [1.5], rtol=0.0, atol=0.6))
        for how in ({}, {"rtol": 0.1, "atol": 0.0}):
            with pytest.raises(InvalidArgumentError, match="fail.*x and y not equal to tolerance rtol = "):
                session.run(gs.debugging.assert_near([1.0, 2.0], [1.0, 2.5], message="fail", **how))


@pytest.mark.parametrize("side", ["left", "right"])
def test_places_in_rows_that_are_in_order(side):
    rows, values = np.array([[0.0, 3, 9, 9], [1, 2, 3, 4]]), np.array([[9.0, 2, -1], [5, 2, 0]])
    with gs.Session() as session:
        found = gs.searchsorted(rows, values, side, gs.int64)
        expected = [np.searchsorted(*pair, side) for pair in zip(rows, values, strict=True)]
        np.testing.assert_array_equal(session.run(found), expected)
        assert (found.dtype, found.shape.as_list()) == (gs.int64, [2, 3])
        with pytest.raises(InvalidArgumentError, match="Leading dim_size of both tensors must match"):
            session.run(gs.searchsorted(rows, values[:1]))
    with pytest.raises(ValueError, match="side must be either 'right' or 'left'.  Saw: up"):
        gs.searchsorted(rows, values, "up")


def test_what_is_a_tensor():
    # As TensorFlow 2.21's tf.is_tensor.
    sparse = gs.SparseTensor([[0]], [1.0], [2])
    for tensor in (gs.constant(1), gs.Variable(1.0), sparse, gs.IndexedSlices(gs.constant([1.0]), gs.constant([0]))):
        assert gs.contrib.framework.is_tensor(tensor)
    for other in (1, [1.0], np.ones(2), "text", gs.no_op()):
        assert not gs.is_tensor(other)

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


def test_what_is_a_tensor():
    # As TensorFlow 2.21's tf.is_tensor.
    sparse = gs.SparseTensor([[0]], [1.0], [2])
    for tensor in (gs.constant(1), gs.Variable(1.0), sparse, gs.IndexedSlices(gs.constant([1.0]), gs.constant([0]))):
        assert gs.contrib.framework.is_tensor(tensor)
    for other in (1, [1.0], np.ones(2), "text", gs.no_op()):
        assert not gs.is_tensor(other)

"""Feeding and fetching of sparse tensors, and what is refused; tests/golden/values has what functions give."""

import numpy as np
import pytest

import globalstep as gs

VALUE = gs.SparseTensorValue([[0, 1], [1, 2]], [2.0, 3.0], [2, 3])


def test_sparse_tensors_are_fed_and_fetched(session):
    x = gs.sparse_placeholder(gs.float32, [None, 3], name="x")
    assert (x.shape.as_list(), x.dtype, x.op.name) == ([None, 3], gs.float32, "x/values")
    found = session.run({"x": x, "turned": gs.sparse_transpose(x)}, {x: VALUE})
    assert isinstance(found["x"], gs.SparseTensorValue)
    assert found["turned"].indices.tolist() == [[1, 0], [2, 1]]
    assert found["turned"].dense_shape.tolist() == [3, 2]
    again = session.run(x, {x: found["x"]})
    np.testing.assert_array_equal(again.values, [2, 3])
    with session.as_default():
        assert x.eval({x: tuple(VALUE)}).dense_shape.tolist() == [2, 3]
    empty = session.run(gs.sparse_reduce_sum(x, 1), {x: (np.zeros((0, 2)), [], [4, 3])})
    assert empty.tolist() == [0, 0, 0, 0]


def test_what_does_not_fit_is_refused(session):
    x, invalid = gs.sparse_placeholder(gs.float32, [2, 3]), gs.errors.InvalidArgumentError
    with pytest.raises(ValueError, match="Cannot feed a value of dense_shape"):
        session.run(x, {x: VALUE._replace(dense_shape=[4, 3])})
    with pytest.raises(TypeError, match="is fed with a SparseTensorValue"):
        session.run(x, {x: np.zeros((2, 3))})
    with pytest.raises(TypeError, match="Neither a SparseTensor nor SparseTensorValue"):
        gs.SparseTensor.from_value([1, 2, 3])
    with pytest.raises(invalid, match="inner dimension does not match: 3 vs. 2"):
        session.run(gs.sparse_tensor_dense_matmul(VALUE, gs.ones([2, 2])))
    with pytest.raises(ValueError, match=r"Cannot reshape a tensor with 6 elements to shape \[2, 4\]"):
        gs.sparse_reshape(VALUE, [2, 4])
    with pytest.raises(invalid, match="Invalid reduction dimension -3"):
        session.run(gs.sparse_reduce_sum(VALUE, -3))
    with pytest.raises(invalid, match=r"indices\[1\] = \[2\] is out of order"):
        session.run(gs.sparse_to_dense([4, 2], [5], 1))
    with pytest.raises(invalid, match=r"indices\[1\] = \[2\] is repeated"):
        session.run(gs.sparse_to_dense([2, 2], [5], 1))
    with pytest.raises(invalid, match=r"\[7\] is out of bounds: need 0 <= index < \[5\]"):
        session.run(gs.sparse_to_dense([2, 7], [5], 1, 0, False))
    with pytest.raises(invalid, match="sparse_values has incorrect shape"):
        session.run(gs.sparse_to_dense([2, 3], [5], [1, 2, 3]))
    with pytest.raises(invalid, match="output_shape has 1 elements; indices have 2"):
        session.run(gs.sparse_to_dense([[2, 3]], [5], 1))
    with pytest.raises(TypeError, match="At least one input should be SparseTensor"):
        gs.sparse_add([1.0], [2.0])
    with pytest.raises(invalid, match="out of bound"):
        session.run(gs.confusion_matrix([0, 5], [0, 1], 3))


def test_a_dense_value_becomes_sparse_and_shapes_stay_known(session):
    made = [gs.sparse_transpose(VALUE), gs.sparse_reshape(VALUE, [-1, 6]), gs.sparse_reorder(VALUE)]
    assert [each.shape for each in made] == [[3, 2], [1, 6], [2, 3]]
    found = session.run(gs.sparse.from_dense([[0, 2], [3, 0]]))
    assert found.indices.tolist() == [[0, 1], [1, 0]]
    assert found.values.tolist() == [2, 3]


def test_colocation_and_server_defs():
    with gs.Graph().as_default():
        with gs.device("/job:ps/task:1"):
            w = gs.Variable(1.0)
        with gs.device("/job:worker"), gs.colocate_with(w):
            assert gs.constant(1.0).device == "/job:ps/task:1"
        with gs.device("/job:worker"), gs.colocate_with(gs.constant(1.0)):
            assert gs.constant(1.0).device == "/job:worker"
    cluster = gs.train.ClusterSpec({"worker": ["127.0.0.1:0"]})
    server = gs.train.Server(gs.train.ServerDef(cluster.as_cluster_def(), "worker", 0), start=False)
    made = server.server_def
    assert (made.job_name, made.task_index, gs.train.ClusterSpec(made.cluster).jobs) == ("worker", 0, ["worker"])

"""Static shapes as programs write them."""

import numpy as np
import pytest

import globalstep as gs


def test_a_dimension_of_numpys_is_a_number():
    assert [type(int(size)) for size in gs.TensorShape(np.array([2, 3]))] == [int, int]


def test_a_size_that_a_program_has_divided_is_a_whole_number_or_refused():
    assert gs.TensorShape([10 / 2, None]).as_list() == [5, None]
    assert gs.Dimension(np.float64(3)) == 3
    assert gs.TensorShape(gs.Dimension(3)).as_list() == gs.TensorShape(np.int64(3)).as_list() == [3]
    assert gs.get_variable("halves", [8 / 2], initializer=gs.zeros_initializer()).get_shape().as_list() == [4]
    with pytest.raises(ValueError, match=r"Ambiguous dimension: 2\.5"):
        gs.TensorShape([5 / 2])


def test_shapes_put_together():
    shape = gs.TensorShape([None, 3])
    assert shape.concatenate([2]).as_list() == [None, 3, 2]
    assert shape.concatenate(None).dims is None
    assert shape.merge_with([4, None]).as_list() == [4, 3]
    assert gs.TensorShape(None).merge_with(shape) == shape == shape.merge_with(None)
    with pytest.raises(ValueError, match=r"Shapes \(\?, 3\) and \(2, 2\) are incompatible"):
        shape.merge_with([2, 2])


def test_ranks_that_a_program_asks_for():
    shape = gs.TensorShape([None, 3])
    assert shape.with_rank(2) is shape.with_rank_at_least(1) is shape
    assert gs.TensorShape(None).with_rank(2).as_list() == [None, None]
    with pytest.raises(ValueError, match="must have rank 3"):
        shape.with_rank(3)
    with pytest.raises(ValueError, match="must have rank at least 3"):
        shape.with_rank_at_least(3)


def test_what_shapes_broadcast_to():
    assert gs.broadcast_static_shape([None, 1], [3]).as_list() == [None, 3]
    assert gs.broadcast_static_shape(None, [3]).dims is None
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        gs.broadcast_static_shape([2], [3])
    x, y = gs.placeholder("int32", [2]), gs.placeholder("int32", [3])
    both = gs.broadcast_dynamic_shape(x, y)
    assert both.shape.as_list() == [3]
    with gs.Session() as session:
        assert session.run(both, {x: [1, 4], y: [2, 3, 1]}).tolist() == [2, 3, 4]
        with pytest.raises(gs.errors.InvalidArgumentError, match=r"Incompatible shapes: \[2, 4\] vs. \[2, 3, 1\]"):
            session.run(both, {x: [2, 4], y: [2, 3, 1]})


def test_sizes_of_a_shape_in_arguments_beside_nodes():
    x = gs.placeholder(gs.float32, [None, 2, 3])
    rows = gs.shape(x)[0]
    with gs.Session() as session:
        for node, expected in (
            (gs.reshape(x, [rows, x.shape[1] * x.shape[2]]), np.ones((4, 6))),
            (gs.zeros([rows, x.shape[-1]]), np.zeros((4, 3))),
            (gs.concat([[x.shape[1]], gs.shape(x)[:1]], 0), [2, 4]),
            (gs.maximum(x.shape[1], 3), 3),
            (x.shape[2] * rows + (rows - x.shape[1]), 14),
            (gs.constant(x.shape[1:]), [2, 3]),
        ):
            assert node.dtype in (gs.int32, gs.float32)
            np.testing.assert_array_equal(session.run(node, {x: np.ones((4, 2, 3))}), expected)
    with pytest.raises(ValueError, match=r"Cannot convert an unknown Dimension to a Tensor: \?"):
        gs.zeros([rows, x.shape[0]])


def test_what_is_computed_of_sizes():
    three, unknown = gs.Dimension(3), gs.Dimension(None)
    computed = (three * 2, 2 + three, three - 1, 7 - three, three // 2, 7 // three, three % 2, 7 % three, three * three)
    assert [size.value for size in computed] == [6, 5, 2, 4, 1, 2, 1, 1, 9]
    assert [size.value for size in (unknown * 2, 1 + unknown, three - unknown, unknown // 2)] == [None] * 4
    assert [three < 4, three <= 2, three > 2, three >= np.int64(4), unknown < 4] == [True, False, True, False, None]
    assert np.prod(gs.TensorShape([2, 3])).value == 6
    with pytest.raises(TypeError):
        _ = three * 2.5


def test_what_a_program_states_of_a_shape_is_added_to_what_is_known():
    x = gs.placeholder(gs.float32, [32, None])
    x.set_shape([None, 784])
    assert x.shape.as_list() == [32, 784]
    x.set_shape(None)
    with pytest.raises(ValueError, match=r"Shapes \(32, 784\) and \(1, 784\) are incompatible"):
        x.set_shape([1, 784])
    assert x.shape.as_list() == [32, 784]

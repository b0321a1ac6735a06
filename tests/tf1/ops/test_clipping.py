import numpy as np
import pytest
from evaluate import evaluate

from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops.clipping import (
    clip_by_average_norm,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    global_norm,
)

X = np.array([[-3.0, 0.0], [4.0, 0.0]], np.float32)


def slices():
    return IndexedSlices(c.constant(X), c.constant([2, 2]), (5, 2))


@pytest.mark.parametrize("make", [c.constant, lambda v: v, lambda v: IndexedSlices(v, np.array([0, 1]), (3, 2))])
@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (lambda t: clip_by_value(t, -2, 3.5), np.clip(X, -2, 3.5)),
        (lambda t: clip_by_norm(t, 1.0), X / 5),
        (lambda t: clip_by_norm(t, 7.0), X),
        (lambda t: clip_by_norm(t, 2.0, axes=[1]), [[-2, 0], [2, 0]]),
        (lambda t: clip_by_average_norm(t, 0.25), X * 0.25 * 4 / 5),
        (lambda t: clip_by_average_norm(t, 2.0), X),
    ],
)
def test_nodes_arrays_and_slices(make, clip, expected):
    given = make(X)
    found = clip(given)
    assert isinstance(found, IndexedSlices) == isinstance(given, IndexedSlices)
    node = found.values if isinstance(found, IndexedSlices) else found
    value = evaluate(node)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert value.dtype == np.float32
    if isinstance(found, IndexedSlices):
        assert found.indices is given.indices
        assert found.dense_shape == (3, 2)


def test_a_value_of_zero_stays_zero():
    zero = c.zeros([3])
    for found in (clip_by_norm(zero, 1.0), clip_by_average_norm(zero, 1.0), clip_by_global_norm([zero], 1.0)[0][0]):
        np.testing.assert_array_equal(evaluate(found), [0, 0, 0])
    x = c.placeholder("float32", [2])
    np.testing.assert_array_equal(evaluate(gradients(clip_by_norm(x, 1.0), x)[0], {x: [0, 0]}), [1, 1])


def test_bounds_may_be_nodes():
    low = c.placeholder("float32", [])
    np.testing.assert_array_equal(evaluate(clip_by_value(X, low, 1.0), {low: -1}), np.clip(X, -1, 1))
    with pytest.raises(ValueError, match="incompatible"):
        clip_by_value(c.zeros([2]), c.zeros([3, 2]), 1.0)


def test_integers_can_be_clipped_by_value_only():
    assert evaluate(clip_by_value(c.constant([1, 9]), 2, 5)).tolist() == [2, 5]
    with pytest.raises(TypeError, match="'t' of 'ClipByNorm' has DataType int32"):
        clip_by_norm(c.constant([1, 9]), 2)


def test_the_global_norm():
    assert evaluate(global_norm([c.constant([3.0]), None, c.constant([[4.0]])])) == 5
    # The rows of slices count as they are, although they belong to one row.
    assert evaluate(global_norm([slices()])) == 5
    for wrong in (c.constant(1.0), 3, {1: 2}, "text"):
        with pytest.raises(TypeError, match="t_list should be a sequence"):
            global_norm(wrong)
    with pytest.raises(ValueError, match="no value"):
        global_norm([None])


def test_clipping_by_the_global_norm():
    found, norm = clip_by_global_norm([c.constant(X), None, slices(), np.zeros(2, np.float32)], 5.0)
    assert found[1] is None
    assert isinstance(found[2], IndexedSlices)
    scale = 1 / np.sqrt(2)
    np.testing.assert_allclose(evaluate(norm), np.sqrt(50), rtol=1e-6)
    np.testing.assert_allclose(evaluate(found[0]), X * scale, rtol=1e-6)
    np.testing.assert_allclose(evaluate(found[2].values), X * scale, rtol=1e-6)
    np.testing.assert_array_equal(evaluate(found[3]), [0, 0])
    with pytest.raises(TypeError, match="t_list should be a sequence"):
        clip_by_global_norm(c.constant(X), 5.0)


def test_a_known_norm_is_used():
    found, norm = clip_by_global_norm([c.constant(X)], 5.0, use_norm=c.constant(50.0))
    assert evaluate(norm) == 50
    np.testing.assert_allclose(evaluate(found[0]), X / 10, rtol=1e-6)

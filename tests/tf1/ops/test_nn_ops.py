import numpy as np
import pytest
from evaluate import evaluate

from globalstep import nn
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.ops import constant_ops as c


def test_cross_entropies_take_named_arguments_only():
    x = c.zeros([2, 3])
    for function in (
        nn.softmax_cross_entropy_with_logits,
        nn.sparse_softmax_cross_entropy_with_logits,
        nn.sigmoid_cross_entropy_with_logits,
    ):
        with pytest.raises(ValueError, match="Only call `.*` with named arguments"):
            function(x, x)
        with pytest.raises(ValueError, match="Both labels and logits must be provided"):
            function(labels=x)


def test_cross_entropies_check_shapes():
    x = c.zeros([2, 3])
    with pytest.raises(ValueError, match="same shape"):
        nn.softmax_cross_entropy_with_logits(labels=c.zeros([2, 4]), logits=x)
    with pytest.raises(ValueError, match="same shape"):
        nn.sigmoid_cross_entropy_with_logits(labels=c.zeros([2, 4]), logits=x)
    with pytest.raises(ValueError, match="Rank mismatch: Rank of labels \\(received 2\\)"):
        nn.sparse_softmax_cross_entropy_with_logits(labels=c.zeros([2, 3], "int32"), logits=x)


def test_labels_out_of_range_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"label value of 3 which is outside the valid range of \[0, 3\)"):
        evaluate(nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 3], logits=c.zeros([2, 3])))


def test_extreme_scores_give_finite_losses_and_gradients():
    x = c.constant([[1e4, -1e4, 0.0]])
    for loss in (
        nn.softmax_cross_entropy_with_logits_v2(labels=c.constant([[0.0, 1.0, 0.0]]), logits=x),
        nn.sparse_softmax_cross_entropy_with_logits(labels=[1], logits=x),
        nn.sigmoid_cross_entropy_with_logits(labels=c.constant([[0.0, 1.0, 0.0]]), logits=x),
        nn.weighted_cross_entropy_with_logits(c.constant([[0.0, 1.0, 0.0]]), x, 2.0),
    ):
        value, slope = evaluate([loss, gradients(loss, x)[0]])
        assert np.all(np.isfinite(value))
        assert np.all(np.isfinite(slope))
        assert slope[0, 0] > 0 > slope[0, 1]


def test_gradients_at_zero_are_those_of_tensorflow():
    x = c.placeholder("float32", [])
    found = evaluate(
        [
            gradients(nn.relu(x), x)[0],
            gradients(nn.sigmoid_cross_entropy_with_logits(labels=c.constant(1.0), logits=x), x)[0],
        ],
        {x: 0},
    )
    assert found == [0, -0.5]


def test_labels_of_the_first_version_are_constants():
    x, y = c.placeholder("float32", [1, 2]), c.placeholder("float32", [1, 2])
    assert gradients(nn.softmax_cross_entropy_with_logits(labels=y, logits=x), y) == [None]
    (slope,) = gradients(nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x), y)
    np.testing.assert_allclose(evaluate(slope, {x: [[0, 0]], y: [[0.5, 0.5]]}), np.log([[2, 2]]), rtol=1e-6)


def test_labels_that_do_not_add_up_are_taken_as_they_are():
    x = c.placeholder("float32", [1, 2])
    loss = nn.softmax_cross_entropy_with_logits(labels=c.constant([[2.0, 2.0]]), logits=x)
    np.testing.assert_allclose(evaluate(gradients(loss, x)[0], {x: [[0, 0]]}), [[-1.5, -1.5]])


def test_top_k_and_in_top_k():
    x = c.constant([[1.0, 5.0, 5.0, 2.0], [4.0, 3.0, 2.0, 1.0]])
    values, indices = evaluate(nn.top_k(x, 3))
    np.testing.assert_array_equal(values, [[5, 5, 2], [4, 3, 2]])
    np.testing.assert_array_equal(indices, [[1, 2, 3], [0, 1, 2]])
    assert indices.dtype == np.int32
    with pytest.raises(ValueError, match="last dimension >= k = 5"):
        nn.top_k(x, 5)
    assert evaluate(nn.in_top_k(x, [2, 3], 1)).tolist() == [True, False]
    assert evaluate(nn.in_top_k(x, [9, 0], 1)).tolist() == [False, True]


def test_zero_fraction_of_nothing_is_nan():
    assert np.isnan(evaluate(nn.zero_fraction(c.zeros([0]))))
    assert evaluate(nn.zero_fraction(c.constant([0, 1, 0, 2]))) == np.float32(0.5)


def test_bias_add_checks_its_bias():
    with pytest.raises(ValueError, match="must be equal, but are 3 and 2"):
        nn.bias_add(c.zeros([4, 3]), c.zeros([2]))
    with pytest.raises(ValueError, match="rank 1 but is rank 2"):
        nn.bias_add(c.zeros([4, 3]), c.zeros([3, 1]))
    images = nn.bias_add(c.zeros([1, 2, 3, 3]), c.constant([1.0, 2.0]), "NCHW")
    np.testing.assert_array_equal(evaluate(images)[0, :, 0, 0], [1, 2])


def test_softmax_has_one_axis():
    with pytest.raises(ValueError, match="Cannot specify both 'dim' and 'axis'"):
        nn.softmax(c.zeros([2, 3]), axis=0, dim=1)


def test_inference_normalizes_with_given_moments():
    x = c.constant([[1.0, 2.0], [3.0, 4.0]])
    found = nn.fused_batch_norm(x, [1.0, 2.0], [0.0, 1.0], [1.0, 1.0], [4.0, 4.0], 0.0, is_training=False)[0]
    np.testing.assert_allclose(evaluate(found), [[0, 2], [1, 4]])
    variance = nn.fused_batch_norm(x, [1.0, 1.0], [0.0, 0.0])[2]
    np.testing.assert_allclose(evaluate(variance), [2, 2])


def test_convolutions_check_their_arguments():
    x, w = c.zeros([1, 4, 4, 2]), c.zeros([2, 2, 3, 1])
    with pytest.raises(ValueError, match="images have 2 channels, the filters 3"):
        nn.conv2d(x, w, [1, 1, 1, 1], "SAME")
    with pytest.raises(ValueError, match="Unknown padding scheme"):
        nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "HALF")
    with pytest.raises(ValueError, match="use 'NHWC' or 'NCHW'"):
        nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME", "NCHW_VECT_C")
    with pytest.raises(ValueError, match="batch or channels"):
        nn.max_pool(x, [2, 2, 2, 1], [1, 2, 2, 1], "SAME")


def test_same_padding_puts_the_odd_element_behind():
    x = c.constant(np.arange(1.0, 6.0).reshape(1, 1, 5, 1))
    pooled = nn.max_pool(x, [1, 1, 2, 1], [1, 1, 2, 1], "SAME")
    np.testing.assert_array_equal(evaluate(pooled).reshape(-1), [2, 4, 5])
    averaged = nn.avg_pool(x, [1, 1, 2, 1], [1, 1, 2, 1], "SAME")
    np.testing.assert_array_equal(evaluate(averaged).reshape(-1), [1.5, 3.5, 5])
    assert pooled.shape.as_list() == [1, 1, 3, 1]


def test_labels_of_another_dtype_are_cast_to_that_of_the_scores():
    scores = np.array([[1.0, 2.0, 0.5]], np.float32)
    whole = nn.softmax_cross_entropy_with_logits(labels=c.constant([[0, 1, 0]]), logits=c.constant(scores))
    floating = nn.softmax_cross_entropy_with_logits(labels=[[0.0, 1.0, 0.0]], logits=c.constant(scores))
    np.testing.assert_allclose(evaluate(whole), evaluate(floating))

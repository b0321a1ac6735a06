import numpy as np
import pytest
from evaluate import evaluate

from globalstep.tf1 import losses
from globalstep.tf1.graph.graph import GraphKeys, add_to_collection, get_collection
from globalstep.tf1.ops import constant_ops as c

Y = np.array([[0.0, 1.0], [1.0, 1.0]], np.float32)
P = np.array([[0.2, 0.7], [0.9, 0.4]], np.float32)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: losses.mean_squared_error(Y, P), ((P - Y) ** 2).mean()),
        (lambda: losses.absolute_difference(Y, P), np.abs(P - Y).mean()),
        (lambda: losses.log_loss(Y, P), -np.mean(Y * np.log(P + 1e-7) + (1 - Y) * np.log(1 - P + 1e-7))),
        (lambda: losses.hinge_loss(Y, P), np.maximum(0, 1 - (2 * Y - 1) * P).mean()),
        (
            lambda: losses.huber_loss(Y, 4 * P),
            np.where(abs(4 * P - Y) < 1, (4 * P - Y) ** 2 / 2, abs(4 * P - Y) - 0.5).mean(),
        ),
        (lambda: losses.cosine_distance(Y, P, axis=1), (1 - (Y * P).sum(1)).mean()),
        (
            lambda: losses.sigmoid_cross_entropy(Y, P, label_smoothing=0.2),
            (np.log1p(np.exp(P)) - P * (Y * 0.8 + 0.1)).mean(),
        ),
        (
            lambda: losses.softmax_cross_entropy(Y[:1], P[:1], label_smoothing=0.2),
            -np.sum([0.1, 0.9] * (P[0] - np.log(np.exp(P[0]).sum()))),
        ),
        (
            lambda: losses.sparse_softmax_cross_entropy([[1], [0]], P),
            -np.mean(P[[0, 1], [1, 0]] - np.log(np.exp(P).sum(1))),
        ),
    ],
)
def test_values(build, expected):
    node = build()
    assert evaluate(node) == pytest.approx(expected, rel=1e-5)
    assert node.dtype.name == "float32"
    assert get_collection(GraphKeys.LOSSES) == [node]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (losses.Reduction.SUM, 2 + 6),
        (losses.Reduction.MEAN, 8 / 3),
        (losses.Reduction.SUM_OVER_BATCH_SIZE, 8 / 3),
        (losses.Reduction.SUM_BY_NONZERO_WEIGHTS, 8 / 2),
        (losses.Reduction.NONE, [2, 0, 6]),
    ],
)
def test_weights_and_reductions(reduction, expected):
    node = losses.compute_weighted_loss([2.0, 5.0, 3.0], [1.0, 0.0, 2.0], reduction=reduction)
    np.testing.assert_allclose(evaluate(node), expected, rtol=1e-6)


def test_weights_of_zero_give_zero():
    assert evaluate(losses.mean_squared_error(Y, P, weights=0.0)) == 0


def test_arguments_are_checked():
    for text, call in (
        ("labels must not be None", lambda: losses.mean_squared_error(None, P)),
        ("None values not supported", lambda: losses.mean_squared_error(Y, P, weights=None)),
        ("are incompatible", lambda: losses.mean_squared_error(Y, c.zeros([3, 2]))),
        ("weights can not be broadcast", lambda: losses.compute_weighted_loss(P, [1.0, 2.0, 3.0])),
        ("Invalid ReductionKey most", lambda: losses.compute_weighted_loss(P, reduction="most")),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_the_total_is_the_sum_of_the_collections():
    losses.mean_squared_error(Y, P)
    losses.absolute_difference(Y, P, loss_collection=None)
    losses.add_loss(c.constant(2.0))
    add_to_collection(GraphKeys.REGULARIZATION_LOSSES, c.constant(0.5))
    mean = ((P - Y) ** 2).mean()
    assert evaluate(losses.get_total_loss()) == pytest.approx(mean + 2.5)
    assert evaluate(losses.get_total_loss(add_regularization_losses=False)) == pytest.approx(mean + 2)
    assert evaluate(losses.get_regularization_loss()) == 0.5


def test_a_total_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        losses.get_total_loss()
    assert evaluate(losses.get_regularization_loss()) == 0

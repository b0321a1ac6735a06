"""Regularizers: their numbers, where they go, and what is refused."""

import pytest

import globalstep as gs

L = gs.contrib.layers


def regularized(session, regularizer):
    w = gs.get_variable("w", initializer=[3.0, -4.0], regularizer=regularizer)
    session.run(gs.global_variables_initializer())
    assert gs.trainable_variables() == [w]
    return session.run(gs.get_collection(gs.GraphKeys.REGULARIZATION_LOSSES))


@pytest.mark.parametrize(
    ("regularizer", "wanted"),
    [
        (L.l1_regularizer(0.5), [3.5]),
        (L.l2_regularizer(0.5), [6.25]),
        (L.l1_l2_regularizer(0.5, 0.5), [9.75]),
        (L.l1_l2_regularizer(0.0, 0.5), [6.25]),
        (L.l1_l2_regularizer(0.5, 0.0), [3.5]),
        (L.l2_regularizer(0.0), []),
        (L.sum_regularizer([None, L.l2_regularizer(0.0)]), []),
    ],
    ids=["l1", "l2", "both", "l1 of nothing", "l2 of nothing", "none", "a sum of none"],
)
def test_the_loss_of_a_variable(session, regularizer, wanted):
    assert regularized(session, regularizer) == wanted


def test_a_scope_regularizes_what_is_made_in_it_once(session):
    with gs.variable_scope("net", regularizer=L.l2_regularizer(2.0)):
        gs.get_variable("a", initializer=[1.0])
        gs.get_variable("b", initializer=[1.0], regularizer=gs.no_regularizer)
    with gs.variable_scope("net", reuse=True):
        gs.get_variable("a", [1])
    losses = gs.losses.get_regularization_losses()
    assert [loss.op_name for loss in losses] == ["net/a/Regularizer/l2_regularizer"]
    session.run(gs.global_variables_initializer())
    assert session.run(losses) == [1.0]


def test_several_variables_at_once(session):
    weights = [gs.Variable([1.0]), gs.Variable([2.0])]
    total = L.apply_regularization(L.l1_regularizer(0.5), weights)
    assert gs.losses.get_regularization_losses() == [total]
    session.run(gs.global_variables_initializer())
    assert session.run(total) == 1.5
    with pytest.raises(ValueError, match="No weights to regularize"):
        L.apply_regularization(L.l1_regularizer(0.5))
    with pytest.raises(ValueError, match="must return a scalar Tensor instead of a Tensor with rank 1"):
        L.apply_regularization(gs.square, weights)


def test_scales_that_mean_nothing_are_refused():
    for regularizer in (L.l1_regularizer, L.l2_regularizer):
        with pytest.raises(ValueError, match="scale cannot be an integer: 1"):
            regularizer(1)
        with pytest.raises(ValueError, match=r"Setting a scale less than 0 on a regularizer: -0\.5"):
            regularizer(-0.5)
    with pytest.raises(ValueError, match="scale_l1 cannot be an integer: 0"):
        L.l1_l2_regularizer(0, 0.5)
    assert L.sum_regularizer([None]) is None

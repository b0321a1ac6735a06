"""What layers are as objects: names, Variables, losses and updates."""

import numpy as np
import pytest

import globalstep as gs


def test_a_layer_makes_its_variables_at_the_first_call_and_shares_them_later(session):
    layer = gs.layers.Dense(2, kernel_initializer=gs.ones_initializer())
    assert (layer.built, layer.weights, layer.dtype) == (False, [], None)
    with pytest.raises(ValueError, match="has not been used"):
        _ = layer.scope_name
    one, other = layer(gs.ones([1, 3])), layer.apply(gs.zeros([4, 3]))
    assert (layer.built, layer.scope_name, layer.dtype) == (True, "dense", gs.float32)
    assert layer.weights == gs.global_variables() == [layer.kernel, layer.bias]
    assert layer.count_params() == 8
    session.run(gs.global_variables_initializer())
    assert [value.tolist() for value in session.run([one, other])] == [[[3, 3]], [[0, 0]] * 4]


def test_layers_of_one_name_have_scopes_of_their_own():
    layers = [gs.layers.Dense(2, name="mine") for _ in range(2)]
    for layer in layers:
        layer(gs.ones([1, 3]))
    assert [layer.name for layer in layers] == ["mine", "mine"]
    assert [layer.scope_name for layer in layers] == ["mine", "mine_1"]
    assert [gs.layers.Dense(2).name, gs.layers.Dense(2).name] == ["dense_1", "dense_2"]
    assert gs.layers.BatchNormalization().name == "batch_normalization_1"


def test_a_layer_that_is_not_trained():
    layer = gs.layers.Dense(2, trainable=False)
    layer(gs.ones([1, 3]))
    assert layer.trainable_weights == gs.trainable_variables() == []
    assert layer.non_trainable_variables == layer.variables == gs.global_variables()


def test_losses_and_updates_are_the_layers_own(session):
    regularizer = gs.contrib.layers.l2_regularizer(1.0)
    layer = gs.layers.Dense(1, kernel_initializer=gs.ones_initializer(), kernel_regularizer=regularizer)
    result = layer(gs.ones([1, 4]))
    layer(gs.ones([1, 4]))
    assert layer.losses == gs.losses.get_regularization_losses()
    norm = gs.layers.BatchNormalization()
    norm(result, training=True)
    assert norm.updates == gs.get_collection(gs.GraphKeys.UPDATE_OPS)
    assert len(norm.updates) == 2
    session.run(gs.global_variables_initializer())
    assert session.run(layer.losses) == [2.0]


def test_a_layer_of_ones_own(session):
    class Scale(gs.layers.Layer):
        """Multiplies by a number, twice."""

        def build(self, input_shape):
            """Make the factor."""
            self.factor = self.add_variable("factor", [], initializer=gs.constant_initializer(2.0))

        def call(self, inputs, again=False):
            """Multiply."""
            self.add_loss(gs.reduce_sum(inputs))
            return inputs * self.factor * (self.factor if again else 1.0)

    layer = Scale(name="mine")
    once, twice = layer(gs.ones([2])), layer(gs.ones([3]), again=True)
    assert [variable.op_name for variable in gs.trainable_variables()] == ["mine/factor"]
    session.run(gs.global_variables_initializer())
    assert [value.tolist() for value in session.run([once, twice])] == [[2, 2], [4, 4, 4]]
    assert session.run(layer.losses) == [2, 3]


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"expected ndim=4, found ndim=2\. Full shape received: \[1, 3\]"):
        gs.layers.conv2d(gs.ones([1, 3]), 2, 3)
    layer = gs.layers.Dense(2)
    layer(gs.ones([1, 3]))
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 3"):
        layer(gs.ones([1, 4]))
    with pytest.raises(TypeError, match="Keyword argument not understood"):
        gs.layers.Dense(2, units_of_measure=1)
    with pytest.raises(ValueError, match="knows no renorm"):
        gs.layers.batch_normalization(gs.ones([2, 2]), renorm=True)


def test_dropout_as_a_layer(session):
    training = gs.placeholder(gs.bool, [])
    y = gs.layers.Dropout(0.25, seed=1)(gs.ones([100]), training=training)
    assert session.run(y, {training: False}).tolist() == [1.0] * 100
    assert set(session.run(y, {training: True}).tolist()) == {0.0, np.float32(4 / 3)}


def test_a_partitioner_cuts_weights_and_leaves_moving_averages_whole(session):
    with gs.variable_scope("net", partitioner=gs.fixed_size_partitioner(2)):
        layer, norm = gs.layers.Dense(4), gs.layers.BatchNormalization()
        y = norm(layer(gs.ones([3, 2])), training=True)
    parts = [f"net/dense/{name}/part_{i}" for name in ("kernel", "bias") for i in range(2)]
    assert [variable.op_name for variable in layer.weights] == parts
    assert layer.count_params() == 12
    averages = ["net/batch_normalization/moving_mean", "net/batch_normalization/moving_variance"]
    assert [variable.op_name for variable in norm.non_trainable_weights] == averages
    session.run(gs.global_variables_initializer())
    np.testing.assert_allclose(session.run([y, norm.updates])[0], np.zeros([3, 4]), atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: gs.layers.Dense(2), [None, 3]),
        (lambda: gs.layers.Conv2D(2, 1), gs.TensorShape([None, 4, 4, 3])),
        (lambda: gs.layers.SeparableConv2D(2, 1), gs.TensorShape([None, 4, 4, 3])),
        (lambda: gs.layers.BatchNormalization(), gs.TensorShape([None, 3])),
    ],
)
def test_a_layer_that_was_built_by_hand_is_not_built_again(layer, shape):
    made = layer()
    made.build(shape)
    variables = gs.global_variables()
    made(gs.placeholder(gs.float32, shape))
    assert made.built
    assert gs.global_variables() == variables

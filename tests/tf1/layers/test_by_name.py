"""Activations and initializers that layers and cells take by name."""

import numpy as np
import pytest

import globalstep as gs


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", gs.nn.relu),
        ("sigmoid", gs.sigmoid),
        ("softmax", gs.nn.softmax),
        ("exponential", gs.exp),
        ("linear", gs.identity),
        ("hard_sigmoid", lambda x: gs.clip_by_value(0.2 * x + 0.5, 0.0, 1.0)),
    ],
)
def test_a_layer_s_activation_by_name_is_the_function_s(session, name, function):
    x = gs.constant([[-4.0, 0.5, 1.0]])
    options = {"kernel_initializer": gs.ones_initializer()}
    images = gs.reshape(x, [1, 1, 3, 1])
    pairs = [
        (gs.layers.dense(x, 2, activation=name, **options), gs.layers.dense(x, 2, activation=function, **options)),
        *(
            (layer(images, 2, 1, activation=name, **more), layer(images, 2, 1, activation=function, **more))
            for layer, more in (
                (gs.layers.conv2d, options),
                (gs.layers.conv2d_transpose, options),
                (
                    gs.layers.separable_conv2d,
                    {"depthwise_initializer": "ones", "pointwise_initializer": gs.ones_initializer()},
                ),
            )
        ),
    ]
    session.run(gs.global_variables_initializer())
    for named, given in session.run(pairs):
        np.testing.assert_array_equal(named, given)


@pytest.mark.parametrize("cell", [gs.nn.rnn_cell.BasicRNNCell, gs.nn.rnn_cell.GRUCell, gs.nn.rnn_cell.BasicLSTMCell])
def test_a_cell_takes_its_activation_by_name(session, cell):
    x = gs.constant([[1.0, -2.0]])
    outputs = []
    for number, activation in enumerate(["relu", gs.nn.relu, "linear", gs.identity]):
        with gs.variable_scope(f"cell{number}", initializer=gs.constant_initializer(0.5)):
            made = cell(3, activation=activation)
            outputs.append(made(x, made.zero_state(1, gs.float32))[0])
    session.run(gs.global_variables_initializer())
    relu, same, linear, identity = session.run(outputs)
    np.testing.assert_array_equal(relu, same)
    np.testing.assert_array_equal(linear, identity)


def test_initializers_by_name(session):
    x = gs.zeros([1, 64])
    layers = {
        name: gs.layers.Dense(64, kernel_initializer=name, bias_initializer="ones", name=name)
        for name in ("glorot_uniform", "uniform", "identity", "Zeros")
    }
    for layer in layers.values():
        layer(x)
    cell = gs.nn.rnn_cell.GRUCell(2, kernel_initializer="zeros", bias_initializer="ones")
    cell(gs.zeros([1, 3]), gs.zeros([1, 2]))
    session.run(gs.global_variables_initializer())
    kernels = session.run({name: layer.kernel for name, layer in layers.items()})
    # sqrt(6 / (64 + 64)) is 0.217, and Keras' "uniform" is between -0.05 and 0.05: 4,096 draws come near their limits.
    assert 0.2 < np.abs(kernels["glorot_uniform"]).max() <= 0.217
    assert 0.045 < np.abs(kernels["uniform"]).max() <= 0.05
    assert kernels["identity"].tolist() == np.eye(64).tolist()
    assert not kernels["Zeros"].any()
    assert session.run(layers["uniform"].bias).tolist() == [1.0] * 64
    weights = session.run(cell.weights)
    assert [value.max() for value in weights] == [0, 1, 0, 1]


def test_names_that_nothing_has_are_refused_with_those_that_are_there(session):
    with pytest.raises(ValueError, match=r"Unknown activation function: abcd.*one of elu, .*relu"):
        gs.layers.dense(gs.zeros([1, 2]), 1, activation="abcd")
    with pytest.raises(ValueError, match=r"Unknown initializer: abcd.*glorot_uniform"):
        gs.layers.dense(gs.zeros([1, 2]), 1, kernel_initializer="abcd")

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.layers import functional_layers


def ready(session):
    session.run(gs.global_variables_initializer())
    return session


def names():
    return [variable.name for variable in gs.global_variables()]


def test_dense_is_a_product_with_a_bias(session):
    x = gs.placeholder(gs.float32, [None, 3])
    y = gs.layers.dense(x, 2, activation=gs.nn.relu, kernel_initializer=gs.ones_initializer())
    assert names() == ["dense/kernel:0", "dense/bias:0"]
    assert y.shape.as_list() == [None, 2]
    given = ready(session).run(y, {x: [[1, 2, 3], [-1, -2, -3]]})
    assert given.tolist() == [[6, 6], [0, 0]]


def test_dense_takes_more_dimensions(session):
    y = gs.layers.dense(gs.ones([2, 4, 3]), 5, use_bias=False, kernel_initializer=gs.ones_initializer())
    assert ready(session).run(y).tolist() == np.full([2, 4, 5], 3.0).tolist()


def test_layers_are_numbered_and_shared_by_name():
    x = gs.ones([1, 3])
    gs.layers.dense(x, 2)
    gs.layers.dense(x, 2)
    gs.layers.dense(x, 2, name="mine")
    gs.layers.dense(x, 2, name="mine", reuse=True)
    assert names() == [f"{scope}/{part}:0" for scope in ("dense", "dense_1", "mine") for part in ("kernel", "bias")]
    with pytest.raises(ValueError, match="already exists"):
        gs.layers.dense(x, 2, name="mine")


def test_regularizers_go_to_their_collection(session):
    gs.layers.dense(
        gs.ones([1, 3]), 2, kernel_initializer=gs.ones_initializer(),
        kernel_regularizer=lambda w: gs.reduce_sum(w) * 0.5,
        activity_regularizer=gs.reduce_sum,
    )  # fmt: skip
    losses = gs.get_collection(gs.GraphKeys.REGULARIZATION_LOSSES)
    assert ready(session).run(losses) == [3.0, 6.0]


def test_dense_needs_to_know_its_inputs():
    with pytest.raises(ValueError, match="last dimension of the inputs to `Dense` should be defined"):
        gs.layers.dense(gs.placeholder(gs.float32, [3, None]), 2)
    with pytest.raises(TypeError, match="Dense takes floating inputs"):
        gs.layers.dense(gs.constant([[1]]), 2)


def test_flatten(session):
    assert gs.layers.flatten(gs.ones([2, 3, 4])).shape.as_list() == [2, 12]
    x = gs.placeholder(gs.float32, [None, None, 4])
    assert session.run(gs.layers.flatten(x), {x: np.ones([5, 2, 4])}).shape == (5, 8)


def test_dropout_acts_in_training_only(session):
    x, training = gs.ones([100]), gs.placeholder(gs.bool, [])
    y = gs.layers.dropout(x, 0.25, seed=1, training=training)
    assert session.run(y, {training: False}).tolist() == [1.0] * 100
    assert set(session.run(y, {training: True}).tolist()) == {0.0, np.float32(4 / 3)}
    assert gs.layers.dropout(x, 0.25) is x


def test_convolution_and_pooling(session):
    images = gs.reshape(gs.range(16, dtype=gs.float32), [1, 4, 4, 1])
    sums = gs.layers.conv2d(images, 1, 2, strides=2, kernel_initializer=gs.ones_initializer())
    assert names() == ["conv2d/kernel:0", "conv2d/bias:0"]
    largest = gs.layers.max_pooling2d(images, 2, 2)
    mean = gs.layers.average_pooling2d(images, [2, 2], [2, 2], padding="same")
    found = ready(session).run([sums, largest, mean])
    assert [value.reshape(-1).tolist() for value in found] == [[10, 18, 42, 50], [5, 7, 13, 15], [2.5, 4.5, 10.5, 12.5]]
    with pytest.raises(ValueError, match='must be one of "channels_first", "channels_last". Received: NCHW'):
        gs.layers.conv2d(images, 1, 2, data_format="NCHW")
    with pytest.raises(ValueError, match="not supported in conjunction with"):
        gs.layers.conv2d(images, 1, 2, strides=2, dilation_rate=2)


@pytest.mark.parametrize("fed", [False, True], ids=["a bool", "a node"])
def test_batch_normalization_moves_its_averages_in_training(session, fed):
    x = gs.placeholder(gs.float32, [None, 1])
    training = gs.placeholder(gs.bool, []) if fed else True
    y = gs.layers.batch_normalization(x, momentum=0.9, training=training)
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    assert names() == [f"batch_normalization/{part}:0" for part in parts]
    assert [v.name for v in gs.trainable_variables()] == names()[:2]
    feeds = {x: [[1.0], [3.0]], **({training: True} if fed else {})}
    found, _ = ready(session).run([y, gs.get_collection(gs.GraphKeys.UPDATE_OPS)], feeds)
    np.testing.assert_allclose(found, [[-1], [1]], atol=1e-3)
    moving = gs.global_variables()[2:]
    np.testing.assert_allclose(np.ravel(session.run(moving)), [0.2, 1.0], rtol=1e-6)
    if fed:
        found, _ = session.run([y, gs.get_collection(gs.GraphKeys.UPDATE_OPS)], {x: [[1.0], [3.0]], training: False})
        np.testing.assert_allclose(found, [[0.8], [2.8]], rtol=1e-3)
        np.testing.assert_allclose(np.ravel(session.run(moving)), [0.2, 1.0], rtol=1e-6)


def test_batch_normalization_outside_training_updates_nothing(session):
    y = functional_layers.batch_normalization(gs.constant([[2.0]]), center=False, scale=False)
    assert gs.get_collection(gs.GraphKeys.UPDATE_OPS) == []
    np.testing.assert_allclose(ready(session).run(y), [[2.0]], rtol=1e-3)
    with pytest.raises(ValueError, match="normalizes the last axis"):
        gs.layers.batch_normalization(gs.ones([2, 2]), axis=0)


def test_layers_train(session):
    random = np.random.default_rng(0)
    x, y = gs.placeholder(gs.float32, [None, 2]), gs.placeholder(gs.float32, [None, 1])
    hidden = gs.layers.batch_normalization(gs.layers.dense(x, 8, gs.nn.tanh), training=True)
    loss = gs.losses.mean_squared_error(y, gs.layers.dense(hidden, 1))
    with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
        train = gs.train.AdamOptimizer(0.05).minimize(loss)
    inputs = random.normal(size=[64, 2])
    feeds = {x: inputs, y: inputs[:, :1] * inputs[:, 1:]}
    ready(session)
    first = session.run(loss, feeds)
    for _ in range(60):
        session.run(train, feeds)
    assert session.run(loss, feeds) < first / 4


IN_EITHER_ORDER = {
    "conv1d": ((2, 7, 3), lambda x, order: gs.layers.conv1d(x, 4, 3, 2, data_format=order)),
    "conv2d": ((2, 7, 6, 3), lambda x, order: gs.layers.conv2d(x, 4, 3, 2, "same", order, activation=gs.nn.relu)),
    "conv3d": ((2, 4, 5, 6, 3), lambda x, order: gs.layers.conv3d(x, 4, 2, data_format=order)),
    "conv2d_transpose": ((2, 3, 4, 3), lambda x, order: gs.layers.conv2d_transpose(x, 4, 3, 2, "same", order)),
    "conv3d_transpose": ((2, 3, 2, 2, 3), lambda x, order: gs.layers.conv3d_transpose(x, 4, 3, 2, "same", order)),
    "separable_conv1d": ((2, 7, 3), lambda x, order: gs.layers.separable_conv1d(x, 4, 3, data_format=order)),
    "separable_conv2d": ((2, 7, 6, 3), lambda x, order: gs.layers.separable_conv2d(x, 4, 3, data_format=order)),
    "max_pooling1d": ((2, 7, 3), lambda x, order: gs.layers.max_pooling1d(x, 2, 2, data_format=order)),
    "max_pooling2d": ((2, 7, 6, 3), lambda x, order: gs.layers.max_pooling2d(x, 3, 2, "same", order)),
    "average_pooling3d": ((2, 4, 5, 6, 3), lambda x, order: gs.layers.average_pooling3d(x, 2, 2, "same", order)),
    "batch_normalization": (
        (2, 7, 6, 3),
        lambda x, order: gs.layers.batch_normalization(x, axis=1 if order == "channels_first" else -1, training=True),
    ),
    "contrib.convolution": (
        (2, 7, 6, 3),
        lambda x, order: gs.contrib.layers.convolution(x, 4, 3, 2, data_format=SHORT[order, 4]),
    ),
    "contrib.separable_conv2d": (
        (2, 7, 6, 3),
        lambda x, order: gs.contrib.layers.separable_conv2d(x, None, 3, 2, data_format=SHORT[order, 4]),
    ),
    "contrib.conv2d_transpose": (
        (2, 3, 4, 3),
        lambda x, order: gs.contrib.layers.conv2d_transpose(x, 4, 3, 2, data_format=SHORT[order, 4]),
    ),
    "contrib.max_pool2d": (
        (2, 7, 6, 3),
        lambda x, order: gs.contrib.layers.max_pool2d(x, 3, data_format=SHORT[order, 4]),
    ),
    "contrib.avg_pool3d": (
        (2, 4, 5, 6, 3),
        lambda x, order: gs.contrib.layers.avg_pool3d(x, 2, data_format=SHORT[order, 5]),
    ),
    "contrib.batch_norm": ((2, 7, 6, 3), lambda x, order: gs.contrib.layers.batch_norm(x, data_format=SHORT[order, 4])),
}
SHORT = {
    ("channels_last", 4): "NHWC",
    ("channels_first", 4): "NCHW",
    ("channels_last", 5): "NDHWC",
    ("channels_first", 5): "NCDHW",
}


@pytest.mark.parametrize("name", IN_EITHER_ORDER)
def test_the_channels_may_come_first(session, name):
    shape, build = IN_EITHER_ORDER[name]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with gs.variable_scope("model", reuse=gs.AUTO_REUSE):
        last = build(gs.constant(values), "channels_last")
    with gs.variable_scope("model", reuse=True):
        first = build(gs.constant(np.moveaxis(values, -1, 1)), "channels_first")
    assert first.shape.as_list() == [last.shape.as_list()[0], last.shape.as_list()[-1], *last.shape.as_list()[1:-1]]
    found, expected = ready(session).run([first, last])
    np.testing.assert_allclose(np.moveaxis(found, 1, -1), expected, rtol=1e-5, atol=1e-6)


def test_flatten_moves_channels_that_come_first_to_the_end(session):
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    made = gs.layers.flatten(gs.constant(values), data_format="channels_first")
    assert session.run(made).tolist() == np.moveaxis(values, 1, -1).reshape(1, -1).tolist()

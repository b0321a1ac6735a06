"""The small models of the golden data: what scripts/make_golden_models.py runs in TensorFlow, and the tests here.

Imports neither. A model is a function of the library (`tf`), of its contrib layers (`contrib`) and of the input.
"""

import zlib
from dataclasses import dataclass

import numpy as np

STEPS = 3
RATE = 0.1


@dataclass(frozen=True)
class LayerCase:
    """A model, and the shape of its input."""

    name: str
    build: object
    shape: tuple = (6, 5)
    dtype: str = "float32"


def _shared(tf, contrib, x):
    layer = tf.layers.Dense(5, activation=tf.nn.tanh, name="shared")
    return layer(layer(x))


def _numbered(tf, contrib, x):
    first = tf.layers.Dense(4, name="mine")(x)
    return tf.layers.dense(tf.layers.Dense(4, name="mine")(first), 3)


def _regularized(tf, contrib, x):
    with tf.variable_scope("net", regularizer=contrib.l1_l2_regularizer(0.02, 0.3)):
        y = tf.layers.dense(x, 4, tf.nn.tanh)
    return tf.layers.dense(y, 2, kernel_regularizer=contrib.l2_regularizer(0.5), activity_regularizer=None)


def _reused(tf, contrib, x):
    y = contrib.fully_connected(x, 5, scope="one")
    return contrib.fully_connected(y, 5, activation_fn=None, reuse=True, scope="one")


def _normalized(tf, contrib, x):
    params = {"decay": 0.8, "scale": True}
    y = contrib.fully_connected(x, 4, normalizer_fn=contrib.batch_norm, normalizer_params=params)
    return contrib.fully_connected(y, 2, activation_fn=None)


def _cnn(tf, contrib, x):
    y = tf.layers.conv2d(x, 3, 3, padding="same", activation=tf.nn.relu)
    y = tf.layers.max_pooling2d(y, 2, 2)
    y = tf.layers.batch_normalization(y, momentum=0.7, training=True)
    return tf.layers.dense(tf.layers.flatten(y), 3)


def _cnn_of_classes(tf, contrib, x):
    y = tf.layers.Conv2D(3, (3, 2), strides=(2, 1))(x)
    y = tf.layers.AveragePooling2D(2, 1, padding="same")(y)
    y = tf.layers.BatchNormalization(momentum=0.7, fused=False)(y, training=True)
    return tf.layers.Dense(2)(tf.layers.Flatten()(y))


def _sequences(tf, contrib, x):
    y = tf.layers.conv1d(x, 4, 3, strides=2, padding="same", activation=tf.nn.tanh)
    y = tf.layers.max_pooling1d(y, 2, 1)
    return tf.layers.average_pooling1d(tf.layers.conv1d(y, 3, 2, dilation_rate=2, padding="same"), 2, 1)


def _contrib_cnn(tf, contrib, x):
    with contrib.arg_scope([contrib.conv2d], weights_regularizer=contrib.l2_regularizer(0.1), padding="SAME"):
        with contrib.arg_scope([contrib.conv2d, contrib.fully_connected], normalizer_fn=contrib.batch_norm):
            y = contrib.repeat(x, 2, contrib.conv2d, 3, [3, 3], scope="conv")
            y = contrib.max_pool2d(y, [2, 2], scope="pool")
        y = contrib.conv2d(y, 2, 3, rate=2)
    return contrib.fully_connected(contrib.flatten(contrib.avg_pool2d(y, 2)), 2, activation_fn=None)


def _stack(tf, contrib, x):
    y = contrib.stack(x, contrib.fully_connected, [4, 6], activation_fn=tf.nn.tanh, scope="fc")
    return contrib.linear(contrib.layer_norm(y), 3)


def _forced(tf, contrib, x):
    return contrib.batch_norm(x, decay=0.6, updates_collections=None, activation_fn=tf.nn.tanh)


def _autoencoder(tf, contrib, x):
    y = tf.layers.conv2d(x, 3, 3, strides=2, padding="same", activation=tf.nn.tanh)
    y = tf.layers.conv2d_transpose(y, 4, 3, strides=2, padding="same", activation=tf.nn.tanh)
    return tf.layers.Conv2DTranspose(2, (3, 1), strides=(1, 2), use_bias=False)(y)


def _separable(tf, contrib, x):
    y = tf.layers.separable_conv2d(x, 4, 3, strides=2, padding="same", depth_multiplier=2, activation=tf.nn.tanh)
    return tf.layers.SeparableConv2D(3, (2, 3), depthwise_regularizer=contrib.l2_regularizer(0.1))(y)


def _volumes(tf, contrib, x):
    y = tf.layers.conv3d(x, 3, (2, 3, 3), strides=(1, 2, 1), padding="same", activation=tf.nn.tanh)
    y = tf.layers.max_pooling3d(y, 2, 1)
    y = tf.layers.conv3d_transpose(y, 2, 2, strides=(1, 2, 1))
    return tf.layers.average_pooling3d(y, (1, 2, 2), 2, padding="same")


def _contrib_separable(tf, contrib, x):
    with contrib.arg_scope([contrib.separable_conv2d], weights_regularizer=contrib.l2_regularizer(0.1)):
        y = contrib.separable_conv2d(x, None, [3, 3], depth_multiplier=2, stride=2)
        y = contrib.separable_conv2d(y, 3, [3, 2], depth_multiplier=1, normalizer_fn=contrib.batch_norm, scope="mixed")
        return contrib.separable_conv2d(y, 2, 3, padding="VALID", activation_fn=None)


def _contrib_transposed(tf, contrib, x):
    y = contrib.conv2d_transpose(x, 3, [3, 3], stride=2, normalizer_fn=contrib.batch_norm)
    return contrib.conv2d_transpose(y, 2, 2, padding="VALID", activation_fn=tf.nn.tanh, scope="out")


def _contrib_volumes(tf, contrib, x):
    y = contrib.conv3d(x, 3, 2, stride=[1, 2, 1])
    y = contrib.max_pool3d(y, [2, 2, 2], stride=1)
    return contrib.avg_pool3d(contrib.conv3d_transpose(y, 2, 2, stride=2), 2)


def layer_cases():
    """Every model."""
    images, volumes = (4, 6, 6, 2), (2, 3, 4, 5, 2)
    return [
        LayerCase("dense", lambda tf, contrib, x: tf.layers.dense(x, 3, tf.nn.relu)),
        LayerCase("dense without bias", lambda tf, contrib, x: tf.layers.dense(x, 3, use_bias=False)),
        LayerCase("dense of three dimensions", lambda tf, contrib, x: tf.layers.Dense(3)(x), (2, 3, 4)),
        LayerCase("shared", _shared),
        LayerCase("numbered", _numbered),
        LayerCase("regularized", _regularized),
        LayerCase("normalization of a matrix", lambda tf, c, x: tf.layers.batch_normalization(x, training=True)),
        LayerCase("normalization outside training", lambda tf, c, x: tf.layers.BatchNormalization()(x)),
        LayerCase("cnn", _cnn, images),
        LayerCase("cnn of classes", _cnn_of_classes, images),
        LayerCase("sequences", _sequences, (3, 9, 2)),
        LayerCase("dilated", lambda tf, c, x: tf.layers.conv2d(x, 2, 3, padding="same", dilation_rate=2), images),
        LayerCase("autoencoder", _autoencoder, images),
        LayerCase("separable", _separable, images),
        LayerCase(
            "separable of sequences",
            lambda tf, c, x: tf.layers.separable_conv1d(x, 4, 3, depth_multiplier=2, padding="same"),
            (3, 9, 2),
        ),
        LayerCase("volumes", _volumes, volumes),
        LayerCase("contrib separable", _contrib_separable, images),
        LayerCase("contrib transposed", _contrib_transposed, images),
        LayerCase("contrib volumes", _contrib_volumes, volumes),
        LayerCase("fully_connected", lambda tf, contrib, x: contrib.fully_connected(x, 3)),
        LayerCase("fully_connected again", _reused),
        LayerCase("fully_connected normalized", _normalized),
        LayerCase("batch_norm that moves by itself", _forced),
        LayerCase("batch_norm of images", lambda tf, contrib, x: contrib.batch_norm(x, decay=0.5), images),
        LayerCase("batch_norm not fused", lambda tf, contrib, x: contrib.batch_norm(x, fused=False, decay=0.5)),
        LayerCase(
            "batch_norm with weights",
            lambda tf, contrib, x: contrib.batch_norm(x, decay=0.5, batch_weights=np.arange(1, 7, dtype=np.float32)),
        ),
        LayerCase("contrib cnn", _contrib_cnn, images),
        LayerCase("stack", _stack),
        LayerCase("convolution of sequences", lambda tf, c, x: c.convolution(x, 3, 3, stride=2), (2, 7, 3)),
        LayerCase("unit_norm", lambda tf, contrib, x: contrib.unit_norm(contrib.bias_add(x), 1)),
        LayerCase("maxout", lambda tf, contrib, x: contrib.maxout(contrib.linear(x, 6), 3)),
        LayerCase("softmax", lambda tf, contrib, x: contrib.softmax(contrib.relu6(x, 4))),
    ]


def value_of(name, shape):
    """Give the value that a Variable of this name starts with."""
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    return np.abs(random.normal(size=shape) * 0.4 + 0.1).astype(np.float32) * (
        1 if "variance" in name else _signs(shape)
    )


def _signs(shape):
    return np.where(np.indices(shape).sum(axis=0) % 3 == 0, -1, 1).astype(np.float32) if shape else np.float32(1)


def run(case, tf, contrib, session):
    """Run a model with either library: names, what it starts with, the result, gradients, and after some steps."""
    x = tf.placeholder(case.dtype, [None, *case.shape[1:]])
    fed = {x: np.random.RandomState(3).normal(size=case.shape).astype(case.dtype)}
    y = case.build(tf, contrib, x)
    variables = tf.global_variables()
    names = [variable.op.name for variable in variables]
    loss = tf.reduce_mean(tf.square(y - 0.5)) + tf.losses.get_regularization_loss()
    trained = tf.trainable_variables()
    gradients = tf.gradients(loss, [x, *trained])
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
    session.run(tf.global_variables_initializer())
    found = {
        "names": np.array(names),
        "trained": np.array([variable.op.name for variable in trained]),
        "model": np.array([variable.op.name for variable in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)]),
        "losses": np.array(len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))),
        "updates": np.array(len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))),
        "shape": np.array([-1 if size is None else size for size in y.shape.as_list()]),
    }
    for variable, name in zip(variables, names, strict=True):
        variable.load(value_of(name, tuple(variable.shape.as_list())), session)
    found["result"] = session.run(y, fed)
    for number, gradient in enumerate(session.run(gradients, fed)):
        found[f"gradient-{number}"] = gradient
    for _ in range(STEPS):
        session.run(train, fed)
    for name, value in zip(names, session.run(variables), strict=True):
        found[f"after-{name}"] = value
    return found

"""Small programs of TensorFlow 1.x, run in TensorFlow for golden data and in globalstep by the tests.

Imports neither. A case is a function of `tf`, the module, and `cells`, its recurrent cells; it builds a graph and gives
a Program. What is recorded: names and shapes of the Variables, outputs, gradients of the loss by Variables and by
what is fed, and the Variables after each of three steps of gradient descent.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np

STEPS = 3
RATE = 0.2


@dataclass
class Program:
    """What a case built: fed placeholders with their values, outputs, and the loss."""

    fed: list
    outputs: list
    loss: object
    #: Fed placeholders that the loss is differentiated by.
    wanted: list = field(default_factory=list)


def array(name, *shape, scale=1.0):
    """Give the values that belong to a name and a shape."""
    seed = zlib.crc32(f"{name}{shape}".encode())
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def run(tf, cells, case):
    """Give everything recorded of a case: name -> array."""
    found = {}
    with tf.Graph().as_default(), tf.Session() as sess:
        program = case(tf, cells)
        variables = tf.trainable_variables()
        feeds = dict(program.fed)
        given = [*variables, *program.wanted]
        gradients = tf.gradients(program.loss, given) if given else []
        train = tf.train.GradientDescentOptimizer(RATE).minimize(program.loss) if variables else tf.no_op()
        setters = []
        for variable in variables:
            shape = variable.get_shape().as_list()
            setters.append(variable.assign(array(variable.name, *shape, scale=0.5)))
        sess.run(tf.global_variables_initializer())
        sess.run(setters)
        found["names"] = np.array([f"{v.name} {v.get_shape().as_list()}" for v in variables], dtype=str)
        for number, value in enumerate(sess.run([*program.outputs, program.loss], feeds)):
            found[f"output-{number}"] = value
        for number, (of, gradient) in enumerate(zip(given, gradients, strict=True)):
            assert gradient is not None, of
            found[f"gradient-{number}"] = sess.run(tf.convert_to_tensor(gradient), feeds)
        for step in range(STEPS if variables else 0):
            sess.run(train, feeds)
            for number, value in enumerate(sess.run(variables)):
                found[f"step-{step}-{number}"] = value
    return found

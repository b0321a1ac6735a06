"""Reads a TensorFlow checkpoint with TensorFlow; run with a Python that has tensorflow (2.21 was used).

    python tests/golden/tf_checkpoints/read_back.py PREFIX OUT.npz

Restores every tensor with tf.train.Saver into Variables of its name, shape and dtype, and writes their values. A tensor
named `in_parts` is restored into a Variable in two parts.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
prefix, out = sys.argv[1:]
reader = tf.train.NewCheckpointReader(prefix)
shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
variables = {}
for name, shape in shapes.items():
    partitioner = tf.fixed_size_partitioner(2) if name == "in_parts" else None
    variables[name] = tf.get_variable(
        name, shape, dtypes[name], tf.zeros_initializer(), partitioner=partitioner, trainable=False
    )
with tf.Session() as session:
    tf.train.Saver(variables).restore(session, prefix)
    values = {name: session.run(tf.convert_to_tensor(variable)) for name, variable in variables.items()}
for name, value in values.items():
    np.testing.assert_array_equal(value, reader.get_tensor(name))
assert tf.train.latest_checkpoint(prefix.rpartition("/")[0]) == prefix
np.savez(out, **{name.replace("/", "|"): value for name, value in values.items()})

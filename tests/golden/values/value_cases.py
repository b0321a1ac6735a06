"""How one case of the golden values is run, in TensorFlow by scripts/make_golden_values.py and here by the tests.

A case is a function of the library (`tf`, names of TensorFlow 1.x) that gives `Values`.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Values:
    """Nodes to run, what they are fed, and the nodes among those by which the floating ones are differentiated."""

    outputs: dict
    feeds: list = field(default_factory=list)
    by: list = field(default_factory=list)
    #: Operations to run before.
    first: list = field(default_factory=list)


def array(name, *shape, dtype=np.float32):
    """Give an array of its own for each name."""
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if np.dtype(dtype).kind in "iu":
        return random.randint(0, 256, size=shape).astype(dtype)
    return random.uniform(size=shape).astype(dtype)


def fed(tf, name, *shape, dtype=np.float32, known=True):
    """Give a placeholder and what it is fed."""
    value = array(name, *shape, dtype=dtype)
    return tf.placeholder(tf.as_dtype(np.dtype(dtype).name), shape if known else [None] * len(shape)), value


def run(tf, case, session):
    """Give the arrays of a case: outputs, static shapes, gradients."""
    made = case(tf)
    if isinstance(made, dict):
        made = Values(made)
    feeds = dict(made.feeds)
    if made.first:
        session.run(made.first, feeds)
    found = {}
    for name, node in made.outputs.items():
        value = np.asarray(session.run(node, feeds))
        if value.dtype == object:
            value = np.array([item if isinstance(item, bytes) else str(item).encode() for item in value.reshape(-1)] or
                             np.zeros(0, "S1")).reshape(value.shape)  # fmt: skip
        found[name] = value
        shape = getattr(node, "shape", None)
        if shape is not None and shape.dims is not None:
            found[f"{name}-shape"] = np.array([-1 if size is None else size for size in shape.as_list()], np.int64)
    if made.by:
        ys = [node for node in made.outputs.values() if node.dtype.is_floating]
        loss = tf.add_n([tf.reduce_sum(tf.sin(y) + 0.5 * y * y) for y in ys])
        for number, gradient in enumerate(tf.gradients(loss, made.by)):
            if gradient is not None:
                if hasattr(gradient, "indices"):
                    gradient = tf.convert_to_tensor(gradient)
                found[f"gradient-{number}"] = np.asarray(session.run(gradient, feeds))
    return found

"""Makes the TensorFlow checkpoints of this folder; run with a Python that has tensorflow (2.21 was used).

    python tests/golden/tf_checkpoints/make.py

`expected.npz` holds what each checkpoint holds, as "<checkpoint>/<tensor>".
"""

import pathlib

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl as cells

tf.disable_v2_behavior()
HERE = pathlib.Path(__file__).parent
EXPECTED = {}


def save(name, saver, session):
    """Save, and note what TensorFlow's own reader finds."""
    saver.save(session, str(HERE / name), write_meta_graph=False, write_state=False)
    reader = tf.train.NewCheckpointReader(str(HERE / name))
    for key in reader.get_variable_to_shape_map():
        value = np.asarray(reader.get_tensor(key))
        if value.dtype.kind in "biuf":
            EXPECTED[f"{name}/{key}"] = value


def plain():
    """One data file: every dtype, Adam's slots and beta powers, a step, and what has no place here."""
    rng = np.random.default_rng(1)
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool"):
        tf.Variable((rng.normal(size=(3, 2)) * 5).astype(dtype), trainable=False, name=f"types/{dtype}")
    tf.Variable(np.zeros((0, 4), np.float32), trainable=False, name="empty")
    tf.Variable("text", trainable=False, name="text")
    tf.Variable(np.complex64(1 + 2j), trainable=False, name="complex")
    w = tf.Variable(rng.normal(size=(4, 5)).astype(np.float32), name="layer/weights")
    b = tf.Variable(rng.normal(size=5).astype(np.float32), name="layer/biases")
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.square(w)) + tf.reduce_sum(tf.square(b))
    train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        save("plain-3", tf.train.Saver(), session)
        for _ in range(4):
            session.run(train)
        # What training goes on to from there; not in the checkpoint.
        for variable in (w, b, step):
            EXPECTED[f"plain-3, four steps on/{variable.op.name}"] = session.run(variable)


def sharded():
    """Two data files, and many Variables, whose keys in the index share prefixes."""
    with tf.device("/cpu:0"):
        tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="on_0")
        for i in range(120):
            tf.Variable(np.float32(i), name=f"many/variable_with_a_long_name_{i:03d}")
    with tf.device("/cpu:1"):
        tf.Variable(np.arange(4, dtype=np.int64), name="on_1")
        tf.train.get_or_create_global_step()
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(tf.global_variables_initializer())
        save("sharded-0", tf.train.Saver(sharded=True), session)


def partitioned():
    """Variables in parts, over rows and over columns, with Adagrad's slots."""
    rows = tf.get_variable(
        "rows",
        shape=(200, 3),
        initializer=tf.random_uniform_initializer(seed=2),
        partitioner=tf.fixed_size_partitioner(3),
    )
    columns = tf.get_variable(
        "columns", shape=(2, 5), initializer=tf.ones_initializer(), partitioner=tf.fixed_size_partitioner(2, axis=1)
    )
    parts = list(rows) + list(columns)
    loss = tf.add_n([tf.reduce_sum(tf.square(part) * (i + 1)) for i, part in enumerate(parts)])
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        save("partitioned-1", tf.train.Saver(), session)


def recurrent():
    """LSTM cells in a row, and a bidirectional GRU on top; with what they give for one batch."""
    inputs = np.linspace(-1, 1, 2 * 4 * 3).reshape(2, 4, 3).astype(np.float32)
    layers = [cells.LSTMCell(4, use_peepholes=True, num_proj=3), cells.BasicLSTMCell(2)]
    hidden, _ = tf.nn.dynamic_rnn(cells.MultiRNNCell(layers), inputs, sequence_length=[4, 2], dtype=tf.float32)
    outputs, _ = tf.nn.bidirectional_dynamic_rnn(cells.GRUCell(2), cells.GRUCell(3), hidden, dtype=tf.float32)
    tf.train.get_or_create_global_step()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        save("recurrent-0", tf.train.Saver(), session)
        EXPECTED["recurrent-0, outputs/inputs"] = inputs
        EXPECTED["recurrent-0, outputs/outputs"] = session.run(tf.concat(outputs, 2))


for make in (plain, sharded, partitioned, recurrent):
    with tf.Graph().as_default():
        make()
np.savez_compressed(HERE / "expected.npz", **EXPECTED)

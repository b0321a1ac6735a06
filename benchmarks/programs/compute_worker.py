"""`python -m benchmarks.programs.compute_worker LIBRARY`: steps of four models, in globalstep or in TensorFlow.

A model is one text for globalstep and for TensorFlow's compat.v1. The program obeys lines of JSON: {"do": "join",
"model": ..., "form": ...} builds a model and warms it up, {"do": "run", "secs": ..., "least_steps": ...} does steps and
says how many in how many seconds. Of the forms, "compute" is the forward and the backward pass alone, with Variables
that live in the session and do not change; "step" trains: gradient descent on Variables of the session's own PS, which
with globalstep is in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["FORMS", "MODELS"]

FORMS = ("compute", "step")
#: So small that values stay where they began, whatever is measured for however long.
_RATE = 1e-4

#: Steps before anything is measured.
_WARM_UP = 3

#: Placeholders, with what is fed to them.
Feeds = dict[Any, Any]
#: From the library and its recurrent cells: the loss and the feeds.
Model = Callable[[Any, Any], tuple[Any, Feeds]]


def _dense(tf: Any, name: str, x: Any, inputs: int, outputs: int) -> Any:
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs, outputs], initializer=tf.truncated_normal_initializer(stddev=0.1))
        return tf.matmul(x, weights) + tf.get_variable("biases", [outputs], initializer=tf.zeros_initializer())


def _digits(tf: Any, batch: int) -> tuple[Any, Any, Feeds]:
    random = np.random.default_rng(1)
    images, labels = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
    return images, labels, {images: random.random((batch, 784), np.float32), labels: random.integers(0, 10, batch)}


def _cnn(tf: Any, cells: Any) -> tuple[Any, Feeds]:
    """TensorFlow 1's tutorial "Deep MNIST for experts"."""
    images, labels, feeds = _digits(tf, 50)
    x, channels = tf.reshape(images, [-1, 28, 28, 1]), 1
    for name, outputs in (("first", 32), ("second", 64)):
        with tf.variable_scope(name):
            kernel = tf.get_variable(
                "kernel", [5, 5, channels, outputs], initializer=tf.truncated_normal_initializer(stddev=0.1)
            )
            bias = tf.get_variable("bias", [outputs], initializer=tf.zeros_initializer())
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME") + bias)
        x, channels = tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), outputs
    hidden = tf.nn.relu(_dense(tf, "third", tf.reshape(x, [-1, 7 * 7 * 64]), 7 * 7 * 64, 1024))
    scores = _dense(tf, "fourth", hidden, 1024, 10)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    return tf.reduce_mean(losses), feeds


def _mlp(tf: Any, cells: Any) -> tuple[Any, Feeds]:
    images, labels, feeds = _digits(tf, 100)
    x = tf.nn.relu(_dense(tf, "first", images, 784, 512))
    x = tf.nn.relu(_dense(tf, "second", x, 512, 512))
    scores = _dense(tf, "third", x, 512, 10)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    return tf.reduce_mean(losses), feeds


def _lstm(tf: Any, cells: Any) -> tuple[Any, Feeds]:
    """The small language model of TensorFlow 1's tutorial on recurrent networks, of one layer."""
    words, size, batch, steps = 10_000, 200, 20, 20
    random = np.random.default_rng(1)
    inputs, targets = tf.placeholder(tf.int32, [batch, steps]), tf.placeholder(tf.int32, [batch, steps])
    feeds = {node: random.integers(0, words, (batch, steps), np.int32) for node in (inputs, targets)}
    table = tf.get_variable("embedding", [words, size], initializer=tf.random_uniform_initializer(-0.1, 0.1))
    cell = cells.BasicLSTMCell(size, forget_bias=1.0, state_is_tuple=True)
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(table, inputs), dtype=tf.float32)
    scores = _dense(tf, "softmax", tf.reshape(outputs, [-1, size]), size, words)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(targets, [-1]), logits=scores)
    return tf.reduce_sum(losses) / batch, feeds


def _deepfm(tf: Any, cells: Any) -> tuple[Any, Feeds]:
    """A factorization machine and a network over the embeddings of ten categorical fields (Guo et al. 2017)."""
    ids, fields, size, batch = 10_000, 10, 16, 256
    random = np.random.default_rng(1)
    features, labels = tf.placeholder(tf.int64, [None, fields]), tf.placeholder(tf.float32, [None])
    feeds = {
        features: random.integers(0, ids, (batch, fields)),
        labels: random.integers(0, 2, batch).astype(np.float32),
    }
    small = tf.random_uniform_initializer(-0.05, 0.05)
    linear = tf.get_variable("linear", [ids, 1], initializer=small)
    factors = tf.get_variable("factors", [ids, size], initializer=small)
    first = tf.reduce_sum(tf.nn.embedding_lookup(linear, features), [1, 2])
    rows = tf.nn.embedding_lookup(factors, features)
    pairs = 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(rows, 1)) - tf.reduce_sum(tf.square(rows), 1), 1)
    x = tf.reshape(rows, [-1, fields * size])
    x = tf.nn.relu(_dense(tf, "deep_1", x, fields * size, 128))
    x = tf.nn.relu(_dense(tf, "deep_2", x, 128, 64))
    scores = first + pairs + tf.reshape(_dense(tf, "deep_3", x, 64, 1), [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=scores)), feeds


MODELS: dict[str, Model] = {"cnn": _cnn, "mlp": _mlp, "lstm": _lstm, "deepfm": _deepfm}


def _tensorflow(threads: int) -> tuple[Any, Any, Callable[[], Any]]:
    """Give TensorFlow's compat.v1, its cells (which Keras 3 hides), and what makes a session."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tensorflow_v2
    from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl

    tf = tensorflow_v2.compat.v1
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    return tf, rnn_cell_impl, lambda: tf.Session(config=config)


def _globalstep(threads: int) -> tuple[Any, Any, Callable[[], Any]]:
    """Give the same of globalstep; the session is as MonitoredTrainingSession makes it."""
    import globalstep as gs

    return gs, gs.nn.rnn_cell, lambda: gs.Session(reuse_values=True)


def _in_session(tf: Any) -> Callable[..., Any]:
    """Give what lets get_variable make Variables that live in the session."""

    def local(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kwargs["collections"] = [tf.GraphKeys.LOCAL_VARIABLES]
        return getter(*args, **kwargs)

    return local


class _Joined:
    """A model in a session of its own."""

    def __init__(self, library: tuple[Any, Any, Callable[[], Any]], model: str, form: str) -> None:
        tf, cells, open_session = library
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            with tf.variable_scope("model", custom_getter=_in_session(tf) if form == "compute" else None):
                loss, self._feeds = MODELS[model](tf, cells)
            if form == "compute":
                variables = tf.local_variables()
                found = [getattr(gradient, "values", gradient) for gradient in tf.gradients(loss, variables)]
                # Fetched, which copies nothing: TensorFlow leaves out what is only waited for.
                self._fetches = [loss, found]
            else:
                train = tf.train.GradientDescentOptimizer(_RATE).minimize(
                    loss, global_step=tf.train.get_or_create_global_step()
                )
                self._fetches = [loss, train]
            self.session = open_session()
            self.session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

    def step(self) -> float:
        loss, _ = self.session.run(self._fetches, self._feeds)
        return float(loss)


def main() -> None:
    """Obey until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.compute_worker")
    parser.add_argument("library", choices=("globalstep", "tensorflow"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    library = {"globalstep": _globalstep, "tensorflow": _tensorflow}[args.library](args.threads)
    joined: dict[tuple[str, str], _Joined] = {}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        key = command["model"], command["form"]
        if command["do"] == "join":
            joined[key] = _Joined(library, *key)
            first, *_ = (joined[key].step() for _ in range(_WARM_UP))
            print(json.dumps({"loss": first}), flush=True)
            continue
        steps = 0
        cpu = time.process_time()
        began = now = time.perf_counter()
        while now - began < command["secs"] or steps < command["least_steps"]:
            joined[key].step()
            steps += 1
            now = time.perf_counter()
        cpu = time.process_time() - cpu
        print(json.dumps({"steps": steps, "secs": now - began, "cpu_secs": cpu}), flush=True)
    for one in joined.values():
        one.session.close()


if __name__ == "__main__":
    main()

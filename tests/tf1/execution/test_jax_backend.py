"""Runs whose pure part jax compiles."""

import functools
import importlib
import logging
import subprocess
import sys

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

jax = pytest.importorskip("jax", reason="jax is not installed; `pip install jax` runs these tests")


def dense(x, size, name):
    return gs.layers.dense(x, size, name=name)


def classified(scores, labels):
    return gs.reduce_mean(gs.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))


def mlp():
    x, y = gs.placeholder(gs.float32, [None, 6]), gs.placeholder(gs.int64, [None])
    hidden = gs.nn.dropout(gs.nn.relu(dense(x, 16, "first")), 0.8)
    loss = classified(dense(hidden, 3, "second"), y)
    grads, variables = zip(*gs.train.AdamOptimizer(0.01).compute_gradients(loss), strict=True)
    clipped, _ = gs.clip_by_global_norm(grads, 1.0)
    train = gs.train.AdamOptimizer(0.01).apply_gradients(zip(clipped, variables, strict=True))
    return loss, train, lambda r, n: {x: r.random((n, 6)), y: r.integers(0, 3, n)}


def cnn():
    x, y = gs.placeholder(gs.float32, [None, 8, 8, 1]), gs.placeholder(gs.float32, [None, 3])
    hidden = gs.layers.conv2d(x, 4, 3, padding="same")
    hidden = gs.nn.relu(gs.layers.batch_normalization(hidden, training=True))
    hidden = gs.layers.max_pooling2d(hidden, 2, 2)
    hidden = gs.layers.average_pooling2d(gs.layers.conv2d(hidden, 4, 2, strides=2, padding="valid"), 2, 1)
    loss = gs.losses.softmax_cross_entropy(y, dense(gs.layers.flatten(hidden), 3, "scores"))
    with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
        train = gs.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return loss, train, lambda r, n: {x: r.random((n, 8, 8, 1)), y: np.eye(3)[r.integers(0, 3, n)]}


def lstm():
    x, y = gs.placeholder(gs.int32, [None, 5]), gs.placeholder(gs.int32, [None, 5])
    table = gs.get_variable("table", [11, 4])
    rows = gs.nn.embedding_lookup(table, x)
    outputs, _ = gs.nn.dynamic_rnn(gs.nn.rnn_cell.BasicLSTMCell(8), rows, dtype=gs.float32)
    lengths = 1 + x[:, 0] % 5
    outputs, _ = gs.nn.dynamic_rnn(gs.nn.rnn_cell.LSTMCell(8), outputs, lengths, dtype=gs.float32, scope="second")
    unrolled, _ = gs.nn.static_rnn(gs.nn.rnn_cell.GRUCell(6), gs.unstack(outputs, axis=1), dtype=gs.float32)
    loss = classified(dense(gs.reshape(gs.stack(unrolled, 1), [-1, 6]), 11, "scores"), gs.reshape(y, [-1]))
    train = gs.train.GradientDescentOptimizer(0.5).minimize(loss)
    return loss, train, lambda r, n: {x: r.integers(0, 11, (n, 5)), y: r.integers(0, 11, (n, 5))}


def deepfm():
    x, y = gs.placeholder(gs.int64, [None, 3]), gs.placeholder(gs.float64, [None])
    linear, factors = (gs.get_variable(name, [20, size], gs.float64) for name, size in (("linear", 1), ("factors", 4)))
    first = gs.reduce_sum(gs.nn.embedding_lookup(linear, x), [1, 2])
    rows = gs.nn.embedding_lookup(factors, x)
    rows += gs.nn.embedding_lookup(factors, x[:, :1])
    pairs = 0.5 * gs.reduce_sum(gs.square(gs.reduce_sum(rows, 1)) - gs.reduce_sum(gs.square(rows), 1), 1)
    deep = dense(gs.concat([gs.reshape(rows, [-1, 12]), rows[:, 0, :2]], 1), 1, "deep")
    scores = first + pairs + gs.squeeze(deep, 1)
    loss = gs.reduce_mean(gs.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=scores))
    train = gs.train.AdagradOptimizer(0.1).minimize(loss)
    return loss, train, lambda r, n: {x: r.integers(0, 20, (n, 3)), y: r.integers(0, 2, n)}


def doubled(value):
    return value * np.float32(2)


def with_python_inside():
    x = gs.placeholder(gs.float32, [None, 4])
    first = gs.tanh(dense(x, 4, "first")) + 1.0
    made = gs.py_func(doubled, [first], gs.float32)
    made.set_shape([None, 4])
    hidden = gs.stop_gradient(made) * first
    # A random number of rows: nothing of their shape is known before a run.
    some = gs.boolean_mask(hidden, gs.greater(hidden[:, 0], 2.0))
    loss = gs.reduce_mean(gs.square(dense(hidden, 2, "second"))) + 0.01 * gs.reduce_sum(gs.square(some))
    train = gs.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss, train, lambda r, n: {x: r.normal(size=(n, 4))}


def penalized():
    x = gs.placeholder(gs.float32, [None, 3])
    score = gs.reduce_sum(dense(gs.tanh(dense(x, 8, "first")), 1, "second"))
    (slope,) = gs.gradients(score, [x])
    loss = gs.reduce_mean(gs.square(gs.norm(slope, axis=1) - 1.0)) + gs.reduce_sum(gs.square(score))
    train = gs.train.RMSPropOptimizer(0.01).minimize(loss)
    return loss, train, lambda r, n: {x: r.random((n, 3))}


ONE_BY_ONE = """abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor is_finite is_inf is_nan log log1p
    negative reciprocal rint round rsqrt sigmoid sign sin sinh sqrt square tan tanh log_sigmoid identity stop_gradient
    ones_like zeros_like rank shape size transpose matrix_transpose reduce_all reduce_any nn.elu nn.relu nn.relu6
    nn.leaky_relu nn.softplus nn.softsign nn.softmax nn.log_softmax nn.l2_loss cumsum cumprod argmax argmin reduce_sum
    reduce_mean reduce_max reduce_min reduce_prod reduce_logsumexp math.reduce_std
    math.reduce_variance math.reduce_euclidean_norm"""
TWO_BY_TWO = """add subtract multiply divide div div_no_nan floordiv floormod pow maximum minimum squared_difference
    equal not_equal less less_equal greater greater_equal atan2 math.xlogy math.xdivy"""


def named(name):
    return functools.reduce(getattr, name.split("."), gs)


def many_functions():
    """Give nodes of every kind that jax compiles, and what they are made from."""
    x, y = gs.placeholder(gs.float32, [4, None]), gs.placeholder(gs.float32, [4, 6])
    ids = gs.placeholder(gs.int32, [4])
    images, kernel = gs.placeholder(gs.float32, [2, 6, None, 4]), gs.constant(np.full((2, 2, 4, 3), 0.5, np.float32))
    truths, above = gs.greater(x, 0.5), x + 1.0
    made = []
    for name in ONE_BY_ONE.split():
        of = truths if name in ("reduce_all", "reduce_any") else above if name == "acosh" else x
        made += [named(name)(of, **how) for how in ([{}, {"axis": 1}] if "reduce_" in name else [{}])]
    made += [named(name)(x, y) for name in TWO_BY_TWO.split()]
    made += [named("logical_" + name)(truths, y > 0.5) for name in ("and", "or", "xor")] + [gs.logical_not(truths)]
    made += [gs.matmul(x, y, transpose_b=True), gs.matmul(images, images, transpose_b=True), gs.add_n([x, y, x])]
    made += [
        gs.tensordot(x, y, [[0], [0]]),
        gs.einsum("ij,kj->ik", x, y),
        gs.nn.bias_add(x, y[0]),
        gs.where(truths, x, y),
    ]
    made += [gs.cast(x * 9, gs.int32) // 2, gs.div(ids, 2), gs.clip_by_value(x, 0.2, 0.6), gs.clip_by_norm(x, 0.3)]
    made += [
        gs.clip_by_average_norm(x, 0.01),
        *gs.clip_by_global_norm([x, y], 0.4)[0],
        gs.one_hot(ids, 4),
        gs.range(6) * ids[0],
    ]
    made += [gs.concat([x, y], 1), gs.stack([x, y]), *gs.unstack(x)[1:], *gs.split(y, 3, 1)[1:], gs.tile(x, [2, 1])]
    made += [
        gs.pad(x, [[1, 0], [0, 2]]),
        gs.reverse(x, [1]),
        gs.slice(y, [1, 2], [2, 3]),
        x[1:, ::2],
        gs.expand_dims(x, 0),
    ]
    made += [
        gs.squeeze(gs.reshape(x, [1, -1])),
        gs.fill([2, 2], x[0, 0]),
        gs.broadcast_to(y[0], [4, 6]),
        gs.gather(x, ids),
    ]
    made += [gs.gather(x, ids, axis=1), gs.nn.top_k(y, 2)[0], gs.ensure_shape(x, [4, 6])]
    made += [gs.nn.softmax_cross_entropy_with_logits_v2(labels=gs.nn.softmax(y), logits=x)]
    made += [gs.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=x)]
    made += [gs.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x), gs.placeholder_with_default(y, [4, 6])]
    made += [gs.nn.conv2d(images, kernel, [1, 2, 2, 1], "SAME")]
    # jaxlib 0.10 gives this a wrong value where an option has it fuse products.
    made += [gs.nn.depthwise_conv2d(images, kernel, [1, 1, 1, 1], "SAME")]
    made += [pool(images, [1, 3, 3, 1], [1, 2, 2, 1], "SAME") for pool in (gs.nn.max_pool, gs.nn.avg_pool)]
    made += [gs.depth_to_space(images, 2), gs.space_to_depth(images, 2)]
    made += [gs.convert_to_tensor(gs.IndexedSlices(x, ids, gs.constant([4, 6])))]
    total = gs.add_n([gs.reduce_sum(gs.square(one)) for one in made if one.dtype == gs.float32])
    slopes = gs.gradients(total, [x, y, images, kernel])
    bends = gs.gradients(gs.add_n([gs.reduce_sum(gs.square(one)) for one in slopes[:2]]), [x, y])
    random = np.random.default_rng(3)
    feeds = {x: random.random((4, 6)) * 0.8 + 0.1, y: random.random((4, 6)) * 0.8 + 0.1, ids: [0, 3, 1, 2]}
    return [*made, *slopes, *bends], {**feeds, images: random.random((2, 6, 6, 4))}


@pytest.fixture
def jax_session(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_BACKEND", "jax")
    with gs.Session() as session:
        yield session


def trained(build, backend, monkeypatch):
    """Train 20 steps, two of them on smaller batches; return the losses, and the Variables after them."""
    monkeypatch.setenv("GLOBALSTEP_BACKEND", backend)
    random = np.random.default_rng(1)
    with gs.Graph().as_default(), gs.Session() as session:
        gs.set_random_seed(1)
        loss, train, feeds = build()
        session.run(gs.global_variables_initializer())
        sizes = [8] * 12 + [5] * 2 + [8] * 6
        losses = [session.run([loss, train], feeds(random, size))[0] for size in sizes]
        return losses, session.run(gs.global_variables())


@pytest.mark.parametrize(
    ("build", "functions"),
    [(mlp, 1), (cnn, 1), (lstm, 1), (deepfm, 1), (with_python_inside, 4), (penalized, 1)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_model_learns_the_same_as_by_numpy(build, functions, monkeypatch, caplog):
    expected_losses, expected = trained(build, "numpy", monkeypatch)
    with caplog.at_level(logging.INFO, "globalstep.tf1.execution.jax_backend"):
        losses, values = trained(build, "jax", monkeypatch)
    told = [record.getMessage() for record in caplog.records]
    assert any(f"(functions: {functions})" in text for text in told), told
    assert not any("could not" in text for text in told), told
    exact = losses[0].dtype == np.float64
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-9 if exact else 1e-4)
    for value, other in zip(values, expected, strict=True):
        assert value.dtype == other.dtype
        np.testing.assert_allclose(value, other, rtol=1e-8 if exact else 1e-3, atol=1e-9 if exact else 1e-4)


def test_every_kind_gives_what_numpy_gives(jax_session, caplog):
    compiled = importlib.import_module("globalstep.tf1.execution.jax_kernels").COMPILED
    nodes, feeds = many_functions()
    # The first run is numpy's.
    expected, values = (jax_session.run(nodes, feeds) for _ in range(2))
    for node, one, other in zip(nodes, expected, values, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype, node
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=1e-4, err_msg=str(node))
    assert not any("could not" in record.getMessage() for record in caplog.records)
    for build in (mlp, cnn, lstm, deepfm):
        with gs.variable_scope(build.__name__):
            build()
    assert compiled <= {node.op_type for node in jax_session.graph.nodes}


def test_what_is_not_compiled_is_told_once_with_the_reason(monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "globalstep.tf1.execution.jax_backend"):
        trained(with_python_inside, "jax", monkeypatch)
    (told,) = (record.getMessage() for record in caplog.records if "functions: 4" in record.getMessage())
    assert "PyFunc stays outside: it has effects or draws random numbers." in told
    assert "BooleanMask stays outside: jax has no kernel for it." in told


def test_an_error_names_the_node_and_the_next_run_is_right(jax_session):
    x, y = gs.placeholder(gs.float32, [None, None]), gs.placeholder(gs.float32, [None, None])
    labels = gs.placeholder(gs.int64, [None])
    product = gs.matmul(gs.exp(x), y, name="product")
    loss = gs.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=product, name="scored")
    square = {x: np.zeros((2, 2)), y: np.eye(2), labels: [0, 1]}
    first, again = (jax_session.run(loss, square) for _ in range(2))
    np.testing.assert_allclose(again, first, rtol=1e-6)
    with pytest.raises(
        InvalidArgumentError, match="node 'product' \\(MatMul\\), inputs of shapes \\(2, 2\\), \\(3, 2\\)"
    ):
        jax_session.run(loss, {**square, y: np.zeros((3, 2))})
    with pytest.raises(InvalidArgumentError, match="label value of 7 which is outside") as raised:
        jax_session.run(loss, {**square, labels: [0, 7]})
    assert [note for note in raised.value.__notes__ if "'scored'" in note]
    np.testing.assert_allclose(jax_session.run(loss, square), first, rtol=1e-6)


def test_fetched_arrays_are_the_callers_and_64_bits_stay(jax_session):
    x = gs.placeholder(gs.int64, [None])
    wide, _ = gs.split(gs.cast(x * 3 + 1, gs.float64) * 0.5 + 0.0, 2)
    for _ in range(3):
        value, shape = jax_session.run([wide, gs.shape(wide)], {x: [2**53 // 3 - 1, 0]})
        assert value.dtype == np.float64
        assert value[0] == ((2**53 // 3 - 1) * 3 + 1) / 2
        value[:], shape[:] = 0, 0
    assert jax.numpy.ones(2, "float32").dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_shapes_are_known_of_what_is_not_computed(jax_session):
    x, lengths = gs.placeholder(gs.float32, [None, None, 4]), gs.constant([2, 9])
    hidden = gs.tanh(gs.exp(x) + 1.0)
    steps = gs.minimum(gs.shape(hidden)[1], gs.reduce_max(lengths))
    noise = gs.random_uniform(gs.stack([steps, 3]))
    for size in (5, 5, 12):
        assert jax_session.run(noise, {x: np.zeros((2, size, 4))}).shape == (min(size, 9), 3)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_BACKEND", "tpu")
    with pytest.raises(InvalidArgumentError, match="GLOBALSTEP_BACKEND is 'numpy' or 'jax', not 'tpu'"):
        gs.Session()


@pytest.mark.parametrize("backend", ["", "jax"])
def test_jax_is_imported_only_where_it_is_asked_for(backend):
    program = (
        "import os, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *others):\n"
        "        if name == 'jax': raise ModuleNotFoundError(\"No module named 'jax'\", name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import globalstep as gs\n"
        "try:\n"
        "    with gs.Session() as session: print(session.run(gs.constant(1.0) + 2.0))\n"
        "except ImportError as error: print(error)\n"
    )
    variables = {"GLOBALSTEP_BACKEND": backend} if backend else {}
    told = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert ("Run `pip install 'globalstep[jax]'`" in told) is (backend == "jax")
    assert ("3.0" in told) is (backend != "jax")

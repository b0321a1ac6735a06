"""Graphs as ONNX models: onnxruntime gives what `Session.run` gives, for batches of two sizes."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.exporting.onnx_messages import Model
from globalstep.tf1.exporting.onnx_models import onnx_model, variables_between

RNG = np.random.default_rng(0)


def exported(sess, inputs, outputs):
    needed = variables_between(list(inputs.values()), list(outputs.values()))
    values = dict(zip([variable.op_name for variable in needed], sess.run(needed), strict=True))
    return onnx_model(inputs, outputs, values)


def check(build, *feeds):
    """Build a graph, and compare what a session and onnxruntime compute for each of `feeds`."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; .ci/run installs it")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; .ci/run installs it")
    with gs.Graph().as_default(), gs.Session() as sess:
        inputs, outputs = build()
        sess.run(gs.global_variables_initializer())
        data = exported(sess, inputs, outputs)
        onnx.checker.check_model(data, full_check=True)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        served = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for given in feeds:
            expected = sess.run(outputs, {inputs[name]: value for name, value in given.items()})
            for output, found in zip(served.get_outputs(), served.run(None, given), strict=True):
                wanted = np.asarray(expected[output.name])
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), output.name
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=output.name)


def test_a_convolutional_classifier():
    def build():
        x = gs.placeholder(gs.float32, [None, 28, 28, 1], name="x")
        net = gs.layers.max_pooling2d(gs.layers.conv2d(x, 8, 5, padding="same", activation=gs.nn.relu), 2, 2)
        net = gs.layers.conv2d(net, 8, 3, strides=2, padding="same", activation=gs.nn.relu)
        net = gs.layers.batch_normalization(gs.nn.avg_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"), training=False)
        net = gs.nn.dropout(gs.layers.flatten(net), 0.999999)
        logits = gs.layers.dense(net, 10)
        return {"images": x}, {"probabilities": gs.nn.softmax(logits), "classes": gs.argmax(logits, 1)}

    images = RNG.normal(size=(5, 28, 28, 1)).astype(np.float32)
    check(build, {"images": images}, {"images": images[:2]})


def test_functions_of_numbers():
    positive = ("log", "sqrt", "rsqrt", "log1p", "reciprocal")
    names = "abs acos asin atan ceil cos cosh exp expm1 floor negative rint round sigmoid sign sin sinh square tan tanh"
    pairs = "add subtract multiply divide maximum minimum equal not_equal less less_equal greater greater_equal"

    def build():
        x, i = gs.placeholder(gs.float32, [None, 4]), gs.placeholder(gs.int32, [None])
        y = gs.constant([1.0, -2.0, 0.5, 0.7])
        outputs = {name: getattr(gs, name)(gs.tanh(x) if name in ("acos", "asin") else x) for name in names.split()}
        outputs |= {name: getattr(gs, name)(gs.abs(x) + 0.5) for name in positive}
        outputs |= {name: getattr(gs, name)(x) for name in ("log_sigmoid", "is_nan", "is_inf", "is_finite")}
        activations = "relu relu6 elu selu leaky_relu softplus softsign softmax log_softmax swish crelu l2_loss"
        outputs |= {name: getattr(gs.nn, name)(x) for name in activations.split()}
        more = "squared_difference floordiv floormod div_no_nan"
        outputs |= {f"{name} of two": getattr(gs, name)(x, y) for name in (pairs + " " + more).split()}
        outputs |= {"pow": gs.pow(gs.abs(x) + 0.5, y), "i // 3": (i - 5) // 3, "i % 3": gs.mod(i - 5, 3)}
        outputs |= {"cast": gs.cast(x * 3, gs.int32), "truth": gs.cast(i, gs.bool), "add_n": gs.add_n([x, x, x])}
        outputs |= {"xor": gs.logical_xor(x > 0, x > 0.5), "clip": gs.clip_by_value(x, -0.5, 0.5)}
        outputs |= {"cond": gs.cond(gs.reduce_sum(x) > 0, lambda: x, lambda: -x), "not": gs.logical_not(x > 0)}
        return {"x": x, "i": i}, outputs

    check(build, *({"x": RNG.normal(size=(n, 4)).astype("f"), "i": np.arange(n, dtype="i") * 3} for n in (4, 3)))


def test_reductions_products_and_normalization():
    def build():
        x, i = gs.placeholder(gs.float32, [None, 4]), gs.placeholder(gs.int32, [None])
        outputs = {}
        for name in ("sum", "mean", "max", "min", "prod", "logsumexp"):
            reduce = getattr(gs, f"reduce_{name}")
            outputs |= {name: reduce(x, 1), f"{name} kept": reduce(x, [0], keepdims=True), f"{name} of all": reduce(x)}
        outputs |= {"all": gs.reduce_all(x > -1, 1), "any": gs.reduce_any(x > 1, 1), "norm": gs.norm(x, axis=1)}
        outputs |= {
            "norm 1": gs.norm(x, 1),
            "largest": gs.norm(x, np.inf),
            "argmin": gs.argmin(x, 1, output_type="int32"),
        }
        outputs |= {"count": gs.count_nonzero(i), "cumsum": gs.cumsum(x, 1, exclusive=True, reverse=True)}
        values, places = gs.nn.top_k(x, 2)
        outputs |= {"values": values, "places": places, "einsum": gs.einsum("ij,kj->ik", x, x)}
        outputs |= {"dot": gs.tensordot(x, x, [[1], [1]]), "dot 1": gs.tensordot(x, gs.ones([4, 3]), 1)}
        outputs |= {"matmul": gs.matmul(x, x, transpose_b=True), "layer norm": gs.contrib.layers.layer_norm(x)}
        outputs |= {
            "l2": gs.nn.l2_normalize(x, 1),
            "xw": gs.nn.xw_plus_b(x, gs.get_variable("w", [4, 3]), [1.0, 2.0, 3.0]),
        }
        return {"x": x, "i": i}, outputs

    check(build, *({"x": RNG.normal(size=(n, 4)).astype("f"), "i": np.arange(n, dtype="i")} for n in (4, 3)))


def test_forms_and_parts_of_arrays():
    def build():
        x, i = gs.placeholder(gs.float32, [None, 4]), gs.placeholder(gs.int32, [None])
        outputs = {"shape": gs.shape(x), "size": gs.size(x), "rank": gs.rank(x), "transpose": gs.transpose(x)}
        outputs |= {"matrix": gs.matrix_transpose(x), "expand": gs.expand_dims(x, -1), "stack": gs.stack([x, x], -1)}
        outputs |= {"squeeze": gs.squeeze(gs.expand_dims(x, 1), [1]), "concat": gs.concat([x, x], 1)}
        outputs |= {
            "unstack": gs.unstack(x, axis=1)[2],
            "split": gs.split(x, [1, 3], 1)[1],
            "halves": gs.split(x, 2, 1)[0],
        }
        indices = {"1": x[:, 1], "2": x[..., ::-1], "3": x[-1], "4": x[:, None, 1:3], "5": x[1:-1, ::2], "6": x[0, 1]}
        outputs |= {f"index {name}": part for name, part in indices.items()}
        outputs |= {"slice": gs.slice(x, [1, 1], [-1, 2]), "strided": gs.strided_slice(x, [0, 1], [2, 4])}
        outputs |= {"gather": gs.gather(x, i), "columns": gs.gather(x, [0, 2], axis=1), "nd": gs.gather_nd(x, [[0, 1]])}
        outputs |= {"one_hot": gs.one_hot(i - 1, 2), "hot": gs.one_hot(i, 3, on_value=5.0, off_value=-1.0, axis=0)}
        outputs |= {"where": gs.where(x > 0, x, -x), "rows": gs.where(x[:, 0] > 0, x, -x), "places": gs.where(x > 0)}
        outputs |= {"tile": gs.tile(x, [2, 1]), "pad": gs.pad(x, [[0, 0], [1, 2]], constant_values=3)}
        outputs |= {"reflect": gs.pad(x, [[0, 0], [1, 2]], "REFLECT"), "reverse": gs.reverse(x, [0, 1])}
        outputs |= {
            "fill": gs.fill([2, 2], 3.0),
            "filled": gs.fill(gs.shape(x), x[0, 0]),
            "range": gs.range(gs.shape(x)[0]),
        }
        outputs |= {"zeros": gs.zeros_like(x), "ones": gs.ones_like(x), "broadcast": gs.broadcast_to(x[0], gs.shape(x))}
        outputs |= {"reshape": gs.reshape(x, [-1, 2, 2]), "by node": gs.reshape(x, [gs.shape(x)[0] * 2, 2])}
        return {"x": x, "i": i}, outputs

    check(build, *({"x": RNG.normal(size=(n, 4)).astype("f"), "i": np.arange(n, dtype="i")} for n in (4, 3)))


def test_lookups_in_tables_that_are_whole_or_in_parts():
    def build():
        i, places = gs.placeholder(gs.int64, [None]), gs.placeholder(gs.int64, [None, 2])
        weights = gs.placeholder(gs.float32, [None])
        whole = gs.get_variable("whole", [7, 4])
        parts = gs.get_variable("parts", [7, 4], partitioner=gs.fixed_size_partitioner(3))
        outputs = {"whole": gs.nn.embedding_lookup(whole, i), "product": gs.matmul(whole, parts, transpose_b=True)}
        for strategy in ("mod", "div"):
            outputs[strategy] = gs.nn.embedding_lookup(parts, i, partition_strategy=strategy)
        ids, weighted = gs.SparseTensor(places, i, [3, 2]), gs.SparseTensor(places, weights, [3, 2])
        for combiner in ("sum", "mean", "sqrtn"):
            outputs[combiner] = gs.nn.embedding_lookup_sparse(whole, ids, None, combiner=combiner)
            outputs[f"{combiner} weighted"] = gs.nn.embedding_lookup_sparse(whole, ids, weighted, combiner=combiner)
        return {"i": i, "places": places, "weights": weights}, outputs

    places = np.array([[0, 0], [0, 1], [1, 0], [2, 0]])
    given = {"i": np.array([1, 6, 0, 3]), "places": places, "weights": np.array([0.5, 2, 1, 3], np.float32)}
    check(build, given, {name: value[:3] for name, value in given.items()})


CELLS = {
    "lstm": lambda: gs.nn.rnn_cell.LSTMCell(6, forget_bias=0.3),
    "basic lstm": lambda: gs.nn.rnn_cell.BasicLSTMCell(6),
    "peepholes": lambda: gs.nn.rnn_cell.LSTMCell(
        6, use_peepholes=True, initializer=gs.random_uniform_initializer(-1, 1, seed=1)
    ),
    "gru": lambda: gs.nn.rnn_cell.GRUCell(6),
    "rnn": lambda: gs.nn.rnn_cell.BasicRNNCell(6),
}


@pytest.mark.parametrize("cell", CELLS)
def test_sequences_of_recurrent_cells(cell):
    def build():
        x, lengths = gs.placeholder(gs.float32, [None, 5, 4]), gs.placeholder(gs.int32, [None])
        outputs, state = gs.nn.dynamic_rnn(CELLS[cell](), x, dtype=gs.float32, sequence_length=lengths)
        steps, _ = gs.nn.static_rnn(CELLS[cell](), gs.unstack(x, axis=1), dtype=gs.float32, scope="steps")
        found = {"outputs": outputs, "last": gs.layers.dense(outputs[:, -1, :], 3), "steps": steps[-1]}
        states = [state] if isinstance(state, gs.Node) else list(state)
        return {"x": x, "lengths": lengths}, found | {f"state {at}": part for at, part in enumerate(states)}

    x = RNG.normal(size=(3, 5, 4)).astype(np.float32)
    check(build, {"x": x, "lengths": np.array([5, 2, 3], "i")}, {"x": x[:2], "lengths": np.array([1, 4], "i")})


def test_what_onnx_has_nothing_for_is_named_with_what_to_do():
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [None, 2], name="x")
        rate = gs.placeholder(gs.float32, [], name="rate")
        own = gs.py_func(lambda value: value, [x], gs.float32, name="own")
        y = x * rate + gs.random_normal([2], name="noise") + own
        with pytest.raises(InvalidArgumentError) as refused:
            exported(sess, {"x": x}, {"y": y})
    for words in ("'own' (PyFunc, defined at", "calls a Python function", "'noise", "draws random numbers",
                  "the placeholder 'rate': it is not among the inputs", "onnx=False"):  # fmt: skip
        assert words in str(refused.value)


def test_dropout_and_what_it_alone_needs_are_left_out():
    with gs.Graph().as_default(), gs.Session() as sess:
        x, keep = gs.placeholder(gs.float32, [None, 2], name="x"), gs.placeholder(gs.float32, [], name="keep")
        model = Model.FromString(exported(sess, {"x": x}, {"y": gs.nn.dropout(x, keep) * 2.0}))
    assert [node.op_type for node in model.graph.node] == ["Mul", "Identity"]
    assert [value.name for value in model.graph.input] == ["x"]
    assert [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", 2]
    assert (model.ir_version, model.opset_import[0].version) == (8, 18)

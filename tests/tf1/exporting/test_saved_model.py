"""Saved models: written, loaded into another program, and served by onnxruntime from their directory."""

import json

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.exporting.onnx_messages import Model
from globalstep.tf1.exporting.saved_model_files import read_models, write_models

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
SERVE = [gs.saved_model.tag_constants.SERVING]


def model(sess):
    """A classifier with values, in the session's graph: its input, and its probabilities."""
    x = gs.placeholder(gs.float32, [None, 4], name="x")
    table = gs.get_variable("table", [4, 8], partitioner=gs.fixed_size_partitioner(2))
    y = gs.nn.softmax(gs.layers.dense(gs.nn.relu(gs.matmul(x, table)), 3), name="y")
    gs.train.get_or_create_global_step()
    sess.run(gs.global_variables_initializer())
    return x, y


def test_a_simple_model_comes_back_in_another_program(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = model(sess)
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": y})
        expected = sess.run(y, {x: X})
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "saved_model.pb", "serving_default.onnx", "variables",
    ]  # fmt: skip
    assert gs.saved_model.contains_saved_model(tmp_path / "model")
    assert gs.saved_model.loader.maybe_saved_model_directory(str(tmp_path / "model"))
    assert not gs.saved_model.contains_saved_model(tmp_path)
    with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
        meta = gs.saved_model.loader.load(sess, SERVE, str(tmp_path / "model"))
        signature = meta.signature_def["serving_default"]
        assert signature.method_name == gs.saved_model.signature_constants.PREDICT_METHOD_NAME
        names = signature.inputs["x"].name, signature.outputs["y"].name
        np.testing.assert_array_equal(sess.run(names[1], {names[0]: X}), expected)
        assert gs.saved_model.utils.get_tensor_from_tensor_info(signature.outputs["y"]) is graph.get_tensor_by_name(
            "y:0"
        )
        gs.saved_model.load(sess, SERVE, str(tmp_path / "model"), import_scope="copy")
        np.testing.assert_array_equal(sess.run("copy/y:0", {"copy/x:0": X}), expected)


def served(directory, name="serving_default"):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; .ci/run installs it")
    return runtime.InferenceSession(str(directory / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def test_onnxruntime_serves_it_from_the_directory_with_batches_of_any_size(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = model(sess)
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"images": x}, {"scores": y})
        expected = sess.run(y, {x: X})
    session = served(tmp_path / "model")
    assert [(item.name, item.shape) for item in session.get_inputs()] == [("images", ["batch", 4])]
    assert [(item.name, item.shape) for item in session.get_outputs()] == [("scores", ["batch", 3])]
    for rows in (6, 1):
        np.testing.assert_allclose(
            session.run(["scores"], {"images": X[:rows]})[0], expected[:rows], rtol=1e-5, atol=1e-6
        )
    assert session.get_modelmeta().custom_metadata_map["global_step"] == "0"


def test_the_values_of_a_model_are_those_of_its_files(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = model(sess)
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": y})
        expected = {variable.op_name: sess.run(variable) for variable in gs.trainable_variables()}
    found = Model.FromString((tmp_path / "model" / "serving_default.onnx").read_bytes()).graph.initializer
    outside = {tensor.name: tensor for tensor in found if tensor.data_location == 1}
    assert sorted(outside) == sorted(f"{name}:0" for name in expected)
    for name, value in expected.items():
        entries = {entry.key: entry.value for entry in outside[f"{name}:0"].external_data}
        data = (tmp_path / "model" / entries["location"]).read_bytes()
        begin, size = int(entries["offset"]), int(entries["length"])
        np.testing.assert_array_equal(np.frombuffer(data[begin : begin + size], "<f4").reshape(value.shape), value)


def test_a_builder_with_two_signatures_two_graphs_and_an_operation_at_loading(tmp_path):
    utils = gs.saved_model.utils
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = model(sess)
        counter = gs.Variable(0, collections=[gs.GraphKeys.LOCAL_VARIABLES], name="counter")
        info = {"x": utils.build_tensor_info(x)}
        signatures = {
            "serving_default": gs.saved_model.build_signature_def(
                info, {"y": utils.build_tensor_info(y)}, "tensorflow/serving/predict"
            ),
            "hidden": gs.saved_model.build_signature_def(
                info, {"log": utils.build_tensor_info(gs.log(y))}, "of my own"
            ),
        }
        builder = gs.saved_model.builder.SavedModelBuilder(str(tmp_path / "model"))
        with pytest.raises(AssertionError, match="has not been saved yet. Please invoke `add_meta_graph_and_variables"):
            builder.add_meta_graph(["train"])
        main_op = gs.variables_initializer([counter])
        builder.add_meta_graph_and_variables(sess, SERVE, signature_def_map=signatures, main_op=main_op)
        with pytest.raises(AssertionError, match="has already been saved. Please invoke `add_meta_graph"):
            builder.add_meta_graph_and_variables(sess, SERVE)
        builder.add_meta_graph(["train", "gpu"], signature_def_map={"serving_default": signatures["serving_default"]})
        assert not gs.saved_model.contains_saved_model(tmp_path / "model")
        assert builder.save(as_text=True) == str(tmp_path / "model" / "saved_model.pbtxt").encode()
        expected = sess.run(y, {x: X})
    assert sorted(path.name for path in (tmp_path / "model").glob("*.onnx")) == [
        "gpu-train.serving_default.onnx", "hidden.onnx", "serving_default.onnx",
    ]  # fmt: skip
    for tags in (SERVE, ["gpu", "train"]):
        with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
            meta = gs.saved_model.loader.load(sess, tags, str(tmp_path / "model"))
            np.testing.assert_array_equal(sess.run("y:0", {"x:0": X}), expected)
            assert gs.saved_model.is_valid_signature(meta.signature_def["serving_default"])
            assert not gs.saved_model.is_valid_signature(meta.signature_def["hidden"])
            if tags == SERVE:
                assert sess.run("counter:0") == 0
    with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
        with pytest.raises(RuntimeError, match=r"tags \['no'\] could not be found in SavedModel .*\['gpu', 'train'\]"):
            gs.saved_model.loader.load(sess, ["no"], str(tmp_path / "model"))
        assert graph.nodes == []
    np.testing.assert_allclose(served(tmp_path / "model", "hidden").run(None, {"x": X})[0], np.log(expected), rtol=1e-4)


def test_tables_that_are_filled_at_loading_are_those_of_the_lookups(tmp_path):
    def look_up(words, name):
        pairs = gs.contrib.lookup.KeyValueTensorInitializer(gs.range(gs.constant(2, gs.int64)), gs.constant(words))
        gs.contrib.lookup.HashTable(pairs, "?").lookup(gs.constant([1, 5], gs.int64), name)

    def save(sess, directory):
        builder = gs.saved_model.builder.SavedModelBuilder(directory)
        builder.add_meta_graph_and_variables(sess, SERVE, main_op=gs.tables_initializer())
        builder.save()
        return directory

    with gs.Graph().as_default(), gs.Session() as sess:
        look_up(["a", "b"], "word")
        table = gs.contrib.lookup.index_table_from_tensor(gs.constant(["a", "b"]), num_oov_buckets=1)
        gs.add(table.lookup(gs.constant(["b", "c"])), table.size(), name="places")
        first = save(sess, str(tmp_path / "first"))
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.saved_model.loader.load(sess, SERVE, first)
        gs.saved_model.loader.load(sess, SERVE, first, import_scope="copy")
        for scope in ("", "copy/"):
            assert sess.run(f"{scope}word:0").tolist() == [b"b", b"?"]
            assert sess.run(f"{scope}places:0").tolist() == [4, 5]
        look_up(["c", "d"], "other")
        second = save(sess, str(tmp_path / "second"))
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.saved_model.loader.load(sess, SERVE, second)
        found = sess.run(["word:0", "copy/word:0", "other:0"])
        assert [words[0] for words in found] == [b"b", b"b", b"d"]


IDS = gs.feature_column.categorical_column_with_identity("ids", 4)
WEIGHED = gs.feature_column.weighted_categorical_column(IDS, "weights")
CROSSED = gs.feature_column.crossed_column([IDS, "words"], 5)


@pytest.mark.parametrize(
    "column",
    [
        gs.feature_column.embedding_column(IDS, 2),
        *(gs.feature_column.indicator_column(column) for column in (IDS, WEIGHED, CROSSED)),
        gs.feature_column.bucketized_column(gs.feature_column.numeric_column("weights"), [0.5, 1.0]),
    ],
    ids=lambda column: column.name,
)
def test_feature_columns_come_back(tmp_path, column):
    feeds = {"ids:0": [[0], [1], [3]], "words:0": [["a"], ["c"], ["z"]], "weights:0": [[-1.0], [0.5], [3.0]]}
    kinds = {"ids": gs.int64, "words": gs.string, "weights": gs.float32}
    with gs.Graph().as_default(), gs.Session() as sess:
        features = {name: gs.placeholder(dtype, [None, 1], name) for name, dtype in kinds.items()}
        y = gs.identity(gs.feature_column.input_layer(features, [column]), name="y")
        sess.run(gs.global_variables_initializer())
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), features, {"y": y})
        expected = sess.run(y, feeds)
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.saved_model.loader.load(sess, SERVE, str(tmp_path / "model"))
        np.testing.assert_array_equal(sess.run("y:0", feeds), expected)


@pytest.mark.parametrize("onnx", [None, False])
def test_what_onnx_cannot_say_is_an_error_only_where_it_is_asked_for(tmp_path, caplog, onnx):
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [2], name="x")
        w = gs.Variable([1.0, 2.0], name="w")
        y = gs.multiply(gs.py_func(lambda value: value + 1, [x], gs.float32, name="own"), w, name="y")
        sess.run(gs.global_variables_initializer())
        with pytest.raises(gs.errors.InvalidArgumentError, match=r"'own' \(PyFunc.*onnx=False"):
            gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": y}, onnx=True)
        assert not (tmp_path / "model").exists()
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": y}, onnx=onnx)
    assert ("'serving_default' is written without its .onnx file" in caplog.text) == (onnx is None)
    assert not list((tmp_path / "model").glob("*.onnx"))
    with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
        gs.saved_model.loader.load(sess, SERVE, str(tmp_path / "model"))
        assert sess.run("y:0", {"own:0": [1.0, 1.0]}).tolist() == [1.0, 2.0]


def test_a_predictor_of_a_saved_model(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [None, 2], name="x")
        w = gs.Variable([1.0, 2.0], name="w")
        sess.run(gs.global_variables_initializer())
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": x * w})
    load = gs.contrib.predictor.from_saved_model
    for options in ({}, {"signature_def_key": "serving_default"}, {"input_names": {"x": "x:0"}, "output_names": {}}):
        predict = load(str(tmp_path / "model"), tags="serve", **options)
        found = predict({"x": [[1, 1]]})
        assert [*found] == ([] if "input_names" in options else ["y"])
        np.testing.assert_array_equal(found.get("y", [[1, 2]]), [[1, 2]])
        with pytest.raises(ValueError, match="Got unexpected keys in input_dict: {'z'}"):
            predict({"z": 1})
        predict.session.close()
    for options, text in (
        ({"signature_def_key": "other"}, "Available signatures are"),
        ({"signature_def_key": "a", "input_names": {}}, "You must specify at most one of"),
    ):
        with pytest.raises(ValueError, match=text):
            load(str(tmp_path / "model"), **options)


def test_other_bad_input_writes_nothing(tmp_path):
    directory = tmp_path / "model"
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [None], name="x")
        w = gs.Variable(1.0, name="w")
        local = gs.Variable(1.0, name="own", trainable=False, collections=[gs.GraphKeys.LOCAL_VARIABLES])
        with pytest.raises(ValueError, match="Prediction outputs cannot be None or empty"):
            gs.saved_model.simple_save(sess, str(directory), {"x": x}, {})
        with pytest.raises(gs.errors.FailedPreconditionError, match="needs? the Variable 'own'"):
            gs.saved_model.simple_save(sess, str(directory), {"x": x}, {"y": x * local})
        with pytest.raises(ValueError, match="assets_collection is not supported"):
            gs.saved_model.Builder(str(directory)).add_meta_graph_and_variables(sess, SERVE, assets_collection=[x])
        assert not directory.exists()
        with pytest.raises(gs.errors.FailedPreconditionError, match="uninitialized value w"):
            gs.saved_model.simple_save(sess, str(directory), {"x": x}, {"y": x * w})
        assert not gs.saved_model.contains_saved_model(directory)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(AssertionError, match="Export directory already exists, and isn't empty"):
            gs.saved_model.simple_save(sess, str(tmp_path / "full"), {"x": x}, {"y": x})


def test_a_model_that_is_not_there_or_lacks_its_values_or_is_tensorflows(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = model(sess)
        gs.saved_model.simple_save(sess, str(tmp_path / "model"), {"x": x}, {"y": y})
    (tmp_path / "model" / "variables" / "variables.index.json").unlink()
    ours = read_models(str(tmp_path / "model"))[0]
    theirs = gs.MetaGraphDef()
    theirs.meta_info_def.tags.append("serve")
    theirs.meta_info_def.tensorflow_version = "1.15.0"
    theirs.graph_def.node.add(name="x", op="Placeholder")
    (tmp_path / "tf").mkdir()
    write_models(str(tmp_path / "tf"), [type(ours).FromString(theirs.SerializeToString())], as_text=False)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "saved_model.pb").write_bytes(b"\xff\xff")
    with gs.Graph().as_default() as graph, gs.Session(graph=graph) as sess:
        for directory, kind, words in (
            ("none", gs.errors.NotFoundError, "SavedModel file does not exist at: .*none/"),
            ("model", gs.errors.NotFoundError, "lacks its values"),
            ("tf", ValueError, "of TensorFlow 1.15.0 was not written by globalstep"),
            ("bad", ValueError, "Cannot parse file .*bad/saved_model.pb"),
        ):
            with pytest.raises(kind, match=words):
                gs.saved_model.loader.load(sess, SERVE, str(tmp_path / directory))
            assert graph.nodes == []


def test_signatures_of_classification_and_regression_want_strings_and_floats():
    with gs.Graph().as_default():
        examples = gs.placeholder(gs.string, [None], name="examples")
        scores = gs.placeholder(gs.float32, None, name="scores")
        found = gs.saved_model.signature_def_utils.classification_signature_def(examples, None, scores)
        assert (found.method_name, found.outputs["scores"].name) == ("tensorflow/serving/classify", "scores:0")
        assert found.outputs["scores"].tensor_shape.unknown_rank
        assert [dim.size for dim in found.inputs["inputs"].tensor_shape.dim] == [-1]
        found = gs.saved_model.regression_signature_def(examples, scores)
        assert list(found.outputs) == ["outputs"]
        with pytest.raises(ValueError, match="Regression input tensors must be of type string; 'scores:0'"):
            gs.saved_model.regression_signature_def(scores, scores)
        with pytest.raises(ValueError, match="classes and scores cannot both be None"):
            gs.saved_model.classification_signature_def(examples, None, None)


def test_the_paths_by_which_programs_reach_the_parts():
    from globalstep.saved_model import builder, signature_constants, tag_constants
    from globalstep.saved_model.signature_def_utils import predict_signature_def

    assert builder.SavedModelBuilder is gs.saved_model.Builder
    assert predict_signature_def is gs.saved_model.predict_signature_def
    assert signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY == "serving_default"
    assert tag_constants.TRAINING == "train"
    assert json.dumps(gs.saved_model.constants.VARIABLES_DIRECTORY) == '"variables"'

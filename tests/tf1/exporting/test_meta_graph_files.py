"""`.meta` files: exported, imported by programs without the model's code, and refused where they cannot be."""

import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.checkpoints.tf_checkpoints import import_checkpoint

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def train(path, **options):
    """Train a small classifier for five steps, save it, and give the checkpoint and what the model then computes."""
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [None, 4], name="x")
        y = gs.placeholder(gs.int64, [None], name="y")
        logits = gs.layers.dense(gs.layers.dense(x, 8, gs.nn.tanh), 2)
        loss = gs.identity(gs.losses.sparse_softmax_cross_entropy(y, logits), name="loss")
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.AdamOptimizer(0.05).minimize(loss, global_step=step, name="train")
        gs.add_to_collection("inputs", x)
        gs.add_to_collection("inputs", y)
        gs.add_to_collection("classes", 2)
        gs.nn.softmax(logits, name="probabilities")
        saver = gs.train.Saver(**options)
        sess.run(gs.global_variables_initializer())
        for _ in range(5):
            sess.run(train_op, {x: X, y: Y})
        prefix = saver.save(sess, str(path / "model"), global_step=step)
        return prefix, sess.run("probabilities:0", {x: X}), sess.run(loss, {x: X, y: Y})


def test_a_program_without_the_models_code_evaluates_and_trains_on(tmp_path):
    prefix, expected, loss_before = train(tmp_path, max_to_keep=3)
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        saver = gs.train.import_meta_graph(prefix + ".meta")
        saver.restore(sess, prefix)
        np.testing.assert_array_equal(sess.run("probabilities:0", {"x:0": X}), expected)
        assert graph.get_tensor_by_name("x:0").shape.as_list() == [None, 4]
        assert gs.get_collection("inputs")[0] is graph.get_tensor_by_name("x:0")
        assert gs.get_collection("classes") == [2]
        assert len(gs.trainable_variables()) == 4
        assert saver.options()["max_to_keep"] == 3
        (train_op,) = gs.get_collection("train_op")
        for _ in range(5):
            sess.run(train_op, {"x:0": X, "y:0": Y})
        assert sess.run(gs.train.get_global_step()) == 10
        assert sess.run("loss:0", {"x:0": X, "y:0": Y}) < loss_before
        assert saver.save(sess, str(tmp_path / "model"), global_step=gs.train.get_global_step()).endswith("-10")


def test_an_imported_model_is_trained_further_with_a_new_last_layer(tmp_path):
    prefix, _, _ = train(tmp_path)
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        saver = gs.train.import_meta_graph(prefix + ".meta")
        hidden = graph.get_tensor_by_name("dense/Tanh:0")
        new = gs.layers.dense(hidden, 1, name="new")
        loss = gs.reduce_mean(gs.square(new - 1.0))
        train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss, name="tune")
        saver.restore(sess, prefix)
        sess.run(gs.variables_initializer(gs.get_collection(gs.GraphKeys.GLOBAL_VARIABLES, scope="new")))
        before = sess.run([loss, "dense/kernel:0"], {"x:0": X})
        for _ in range(10):
            sess.run(train_op, {"x:0": X})
        after = sess.run([loss, "dense/kernel:0"], {"x:0": X})
        assert after[0] < before[0]
        assert not np.array_equal(after[1], before[1])


def test_under_an_import_scope_checkpoints_keep_their_names(tmp_path):
    prefix, expected, _ = train(tmp_path)
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        savers = [gs.train.import_meta_graph(prefix + ".meta", import_scope="copy") for _ in range(2)]
        for saver in savers:
            saver.restore(sess, prefix)
        np.testing.assert_array_equal(sess.run("copy/probabilities:0", {"copy/x:0": X}), expected)
        sess.run("copy/train", {"copy/x:0": X, "copy/y:0": Y})
        np.testing.assert_array_equal(sess.run("copy_1/probabilities:0", {"copy_1/x:0": X}), expected)
        assert not np.array_equal(sess.run("copy/probabilities:0", {"copy/x:0": X}), expected)
        assert {variable.op.name.partition("/")[0] for variable in gs.global_variables()} == {"copy", "copy_1"}
        assert graph.get_operation_by_name("copy/train") in [op.op for op in gs.get_collection("train_op")]


def test_devices_stay_or_are_cleared(tmp_path):
    with gs.Graph().as_default() as graph, gs.device("/job:ps/task:1"):
        gs.Variable(1.0, name="w")
        gs.train.export_meta_graph(str(tmp_path / "kept.meta"))
        cleared = gs.train.export_meta_graph(clear_devices=True, graph=graph)
    kept = str(tmp_path / "kept.meta")
    for given, clear, device in ((kept, False, "/job:ps/task:1"), (kept, True, ""), (cleared, False, "")):
        with gs.Graph().as_default() as copy, gs.Session() as sess:
            assert gs.train.import_meta_graph(given, clear_devices=clear) is not None
            assert copy.get_operation_by_name("w").device == device
            sess.run(gs.global_variables_initializer())
            assert sess.run("w:0") == 1.0


def test_a_saver_of_some_variables_and_other_names_comes_back_as_it_was(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        a, _ = gs.Variable([1.0, 2.0], name="a"), gs.Variable(5.0, name="b")
        parts = gs.get_variable(
            "parts", [4, 2], initializer=gs.ones_initializer(), partitioner=gs.fixed_size_partitioner(2)
        )
        sess.run(gs.global_variables_initializer())
        prefix = gs.train.Saver({"other": a, "whole": parts}).save(sess, str(tmp_path / "m"))
    with gs.Graph().as_default(), gs.Session() as sess:
        saver = gs.train.import_meta_graph(prefix + ".meta")
        sess.run(gs.global_variables_initializer())
        sess.run([variable.assign(variable * 0) for variable in gs.global_variables()])
        saver.restore(sess, prefix)
        assert sess.run(["a:0", "b:0", "parts/part_1:0"])[:2] == [pytest.approx([1.0, 2.0]), 0.0]
        assert sess.run("parts/part_1:0").tolist() == [[1.0, 1.0]] * 2


def test_collections_that_are_asked_for_and_items_that_no_file_holds(tmp_path, caplog):
    with gs.Graph().as_default():
        gs.add_to_collection("wanted", gs.constant(1.0, name="one"))
        gs.add_to_collection("wanted", object())
        gs.add_to_collection("other", "text")
        gs.add_to_collection(("stack",), "text")
        gs.train.export_meta_graph(str(tmp_path / "all.meta"))
        gs.train.export_meta_graph(str(tmp_path / "text.meta"), collection_list=["wanted"], as_text=True)
    assert 'op: "Const"' in (tmp_path / "text.meta").read_text()
    with gs.Graph().as_default() as graph, caplog.at_level(logging.WARNING):
        assert gs.train.import_meta_graph(str(tmp_path / "text.meta")) is None
        assert gs.get_collection("wanted") == [graph.get_tensor_by_name("one:0")]
        assert gs.get_collection("other") == []
    with gs.Graph().as_default():
        gs.train.import_meta_graph(str(tmp_path / "all.meta"))
        assert (gs.get_collection("other"), gs.get_collection(("stack",))) == (["text"], [])


def part_of_a_graph(path):
    """A graph with a layer in the scope "net/layer"; gives its values before and after a step."""
    with gs.Graph().as_default(), gs.Session() as sess:
        x = gs.placeholder(gs.float32, [None, 4], name="x")
        with gs.variable_scope("net"):
            doubled = gs.multiply(x, 2.0, name="doubled")
            with gs.variable_scope("layer"):
                hidden = gs.layers.dense(doubled, 3, name="dense")
                gs.nn.relu(hidden, name="out")
            with gs.variable_scope("layer_2"):
                gs.Variable(1.0, name="other")
        gs.add_to_collection("kept", hidden)
        gs.add_to_collection("kept", doubled)
        gs.add_to_collection("kept", 5)
        sess.run(gs.global_variables_initializer())
        saver = gs.train.Saver()
        prefix = saver.save(sess, str(path / "whole"))
        meta = saver.export_meta_graph(str(path / "part.meta"), export_scope="net/layer")
        return prefix, meta, sess.run("net/layer/out:0", {x: X}), sess.run("net/layer/dense/kernel:0")


def test_a_part_of_a_graph_is_imported_under_another_scope(tmp_path):
    prefix, meta, expected, kernel = part_of_a_graph(tmp_path)
    names = {node.name for node in meta.graph_def.node}
    assert {"dense/kernel", "dense/BiasAdd", "out"} <= names
    assert not [name for name in names if name.startswith(("net", "x"))]
    assert meta.collection_def["unbound_inputs"].bytes_list.value == [b"$unbound_inputs_net/doubled"]
    for scope, begin in (("copy", "copy/"), (None, "")):
        with gs.Graph().as_default() as graph, gs.Session() as sess:
            fed = gs.placeholder(gs.float32, [None, 4], name="fed")
            given = {"$unbound_inputs_net/doubled:0": fed}
            saver = gs.train.import_meta_graph(str(tmp_path / "part.meta"), import_scope=scope, input_map=given)
            assert [v.op.name for v in gs.trainable_variables()] == [f"{begin}dense/kernel", f"{begin}dense/bias"]
            assert gs.get_collection("kept") == [graph.get_tensor_by_name(f"{begin}dense/BiasAdd:0"), 5]
            # The Saver reads the whole graph's checkpoint.
            saver.restore(sess, prefix)
            np.testing.assert_array_equal(sess.run(f"{begin}dense/kernel:0"), kernel)
            np.testing.assert_array_equal(sess.run(f"{begin}out:0", {fed: 2 * X}), expected)
            loss = gs.reduce_sum(gs.square(graph.get_tensor_by_name(f"{begin}out:0") - 1.0))
            sess.run(gs.train.GradientDescentOptimizer(0.01).minimize(loss), {fed: X})
            assert not np.array_equal(sess.run(f"{begin}dense/kernel:0"), kernel)


def test_a_part_needs_what_comes_from_outside(tmp_path):
    part_of_a_graph(tmp_path)
    with gs.Graph().as_default() as graph:
        other = {"$unbound_inputs_y": gs.constant(1.0)}
        count = len(graph.nodes)
        for given in (None, other):
            with pytest.raises(ValueError, match=r"unbound inputs: \$unbound_inputs_net/doubled. Must provide"):
                gs.train.import_meta_graph(str(tmp_path / "part.meta"), input_map=given)
        assert len(graph.nodes) == count


def test_a_part_that_trains_by_itself_is_imported_twice_in_one_graph():
    with gs.Graph().as_default(), gs.name_scope("tower"):
        w = gs.Variable([4.0, 4.0], name="w")
        gs.train.AdamOptimizer(0.5).minimize(gs.reduce_sum(gs.square(w)), name="train")
        meta = gs.train.export_meta_graph(export_scope="tower")
    with gs.Graph().as_default(), gs.Session() as sess:
        for scope in ("one", "two"):
            gs.train.import_meta_graph(meta, import_scope=scope)
        sess.run(gs.global_variables_initializer())
        for _ in range(3):
            sess.run("one/train")
        one, two = sess.run(["one/w:0", "two/w:0"])
        assert one[0] < 3.0
        assert two.tolist() == [4.0, 4.0]


def test_a_file_that_is_not_there_or_no_meta_graph(tmp_path):
    with gs.Graph().as_default() as graph:
        with pytest.raises(gs.errors.NotFoundError, match=r"File .*none\.meta does not exist"):
            gs.train.import_meta_graph(str(tmp_path / "none.meta"))
        (tmp_path / "m.meta").write_bytes(b"\xff\xfe nothing")
        with pytest.raises(ValueError, match=r"Cannot parse file .*m\.meta: it is no meta graph"):
            gs.train.import_meta_graph(str(tmp_path / "m.meta"))
        assert graph.nodes == []


def test_a_meta_graph_of_tensorflow_says_what_it_is_and_what_to_do(tmp_path):
    meta = gs.MetaGraphDef()
    meta.meta_info_def.tensorflow_version = "1.15.0"
    meta.graph_def.node.add(name="x", op="Placeholder")
    (tmp_path / "tf.meta").write_bytes(meta.SerializeToString())
    with gs.Graph().as_default() as graph:
        with pytest.raises(ValueError) as refused:
            gs.train.import_meta_graph(str(tmp_path / "tf.meta"))
        assert graph.nodes == []
    for words in ("tf.meta of TensorFlow 1.15.0", "not written by globalstep", "model's own code", "checkpoint import"):
        assert words in str(refused.value)
    assert import_checkpoint.__name__ == "import_checkpoint"


def test_no_graph_is_written_where_the_program_says_so_and_an_old_one_goes_with_its_checkpoint(tmp_path):
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.Variable(1.0, name="w")
        sess.run(gs.global_variables_initializer())
        saver = gs.train.Saver(max_to_keep=1)
        saver.save(sess, str(tmp_path / "m"), global_step=1, write_meta_graph=False)
        assert not (tmp_path / "m-1.meta").exists()
        saver.save(sess, str(tmp_path / "m"), global_step=2)
        first = (tmp_path / "m-2.meta").read_bytes()
        gs.constant(1.0, name="later")
        saver.save(sess, str(tmp_path / "m"), global_step=3)
        assert not (tmp_path / "m-2.meta").exists()
        assert b"later" in (tmp_path / "m-3.meta").read_bytes()
        assert b"later" not in first


def test_a_checkpoint_counts_whose_graph_could_not_be_written(tmp_path, caplog):
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.Variable(1.0, name="w")
        sess.run(gs.global_variables_initializer())
        (tmp_path / "m-1.meta").mkdir()
        with caplog.at_level(logging.WARNING):
            prefix = gs.train.Saver().save(sess, str(tmp_path / "m"), global_step=1)
        assert "The checkpoint is written, but not its graph" in caplog.text
        assert gs.train.latest_checkpoint(str(tmp_path)) == prefix


def test_a_monitored_program_leaves_a_graph_that_can_be_evaluated(tmp_path):
    with gs.Graph().as_default():
        w = gs.Variable([2.0, 3.0], name="w")
        gs.reduce_sum(w * w, name="squares")
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.GradientDescentOptimizer(0.1).minimize(gs.reduce_sum(w), global_step=step)
        hooks = [gs.train.StopAtStepHook(3)]
        with gs.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as sess:
            while not sess.should_stop():
                sess.run(train_op)
    gs.train.SummaryWriterCache.clear()
    latest = gs.train.latest_checkpoint(str(tmp_path))
    with gs.Graph().as_default(), gs.Session() as sess:
        gs.train.import_meta_graph(latest + ".meta").restore(sess, latest)
        np.testing.assert_allclose(sess.run("squares:0"), 1.7**2 + 2.7**2, rtol=1e-6)

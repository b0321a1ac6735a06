"""Frozen graphs: Variables as constants, written by one program and imported by another."""

import logging

import numpy as np
import pytest

import globalstep as gs

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def model(sess):
    """A trained classifier in the session's graph: what it computes for X, and its nodes' names."""
    x = gs.placeholder(gs.float32, [None, 4], name="x")
    table = gs.get_variable("table", [4, 6], partitioner=gs.fixed_size_partitioner(2))
    hidden = gs.layers.batch_normalization(gs.nn.relu(gs.matmul(x, table)), training=False)
    looked = gs.nn.embedding_lookup(gs.get_variable("rows", [5, 6]), [1, 4, 1])
    gs.nn.softmax(gs.layers.dense(hidden + looked, 2), name="y")
    gs.train.AdamOptimizer(0.1).minimize(gs.reduce_sum(gs.square(hidden)), gs.train.get_or_create_global_step())
    sess.run(gs.global_variables_initializer())
    sess.run("Adam", {x: X})
    return sess.run("y:0", {x: X})


@pytest.mark.parametrize("how", ["as_graph_def", "graph_def", "graph"])
def test_a_frozen_graph_computes_the_same_without_variables(tmp_path, how, caplog):
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        expected = model(sess)
        given = {"as_graph_def": graph.as_graph_def(), "graph_def": sess.graph_def, "graph": graph}[how]
        with caplog.at_level(logging.INFO):
            frozen = gs.graph_util.convert_variables_to_constants(sess, given, ["y"])
        (tmp_path / "frozen.pb").write_bytes(frozen.SerializeToString())
        gs.train.write_graph(frozen, str(tmp_path), "frozen.pbtxt")
    assert "Froze 9 variables." in caplog.text
    assert "Converted 9 variables to const ops." in caplog.text
    assert not [node.name for node in frozen.node if node.op == "VariableV2" or "Adam" in node.name]
    written = gs.GraphDef()
    written.ParseFromString((tmp_path / "frozen.pb").read_bytes())
    with gs.Graph().as_default() as served, gs.Session(graph=served) as sess:
        gs.import_graph_def(written, name="")
        assert not [node for node in served.nodes if "missing" in node.attrs]
        assert gs.global_variables() == []
        np.testing.assert_array_equal(sess.run("y:0", {"x:0": X}), expected)
    with gs.Graph().as_default(), gs.Session() as sess:
        x, y = gs.import_graph_def(written, return_elements=["x:0", "y:0"], name="prefix")
        np.testing.assert_array_equal(sess.run(y, {x: X}), expected)


def test_some_variables_stay_with_their_initializers():
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        a, b = gs.Variable(2.0, name="a"), gs.Variable(3.0, name="b")
        gs.multiply(a, b, name="y")
        sess.run([gs.global_variables_initializer(), a.assign(5.0), b.assign(7.0)])
        sess.run([a.assign(5.0), b.assign(7.0)])
        for how in ({"variable_names_whitelist": ["a"]}, {"variable_names_blacklist": ["b"]}):
            frozen = gs.graph_util.convert_variables_to_constants(sess, graph.as_graph_def(), ["y"], **how)
            with gs.Graph().as_default() as part, gs.Session(graph=part) as other:
                gs.import_graph_def(frozen, name="")
                other.run("b/Assign")
                assert other.run("y:0") == 15.0


def test_what_is_asked_for_must_be_there():
    with gs.Graph().as_default() as graph, gs.Session() as sess:
        gs.add(gs.Variable(1.0, name="w"), 1.0, name="y")
        given = graph.as_graph_def()
        with pytest.raises(AssertionError, match="^nothing is not in graph$"):
            gs.graph_util.convert_variables_to_constants(sess, given, ["nothing"])
        with pytest.raises(gs.errors.FailedPreconditionError, match="'?w'?"):
            gs.graph_util.convert_variables_to_constants(sess, given, ["y"])
        with pytest.raises(TypeError, match="must be a graph_pb2.GraphDef proto, got str"):
            gs.graph_util.convert_variables_to_constants(sess, "y", ["y"])
        with pytest.raises(TypeError, match="dest_nodes must be a list"):
            gs.graph_util.extract_sub_graph(given, "y")
        theirs = gs.GraphDef()
        theirs.node.add(name="y", op="Relu")
        with pytest.raises(ValueError, match="was not written by globalstep"):
            gs.graph_util.convert_variables_to_constants(sess, theirs, ["y"])


def test_a_part_of_a_graph():
    with gs.Graph().as_default() as graph:
        a = gs.constant(2.0, name="a")
        with gs.control_dependencies([gs.no_op(name="before")]):
            b = gs.add(a, 1.0, name="b")
        gs.multiply(a, b, name="c")
    part = gs.graph_util.extract_sub_graph(graph.as_graph_def(), ["b"])
    assert [node.name for node in part.node] == ["a", "before", "Add/y", "b"]
    assert gs.graph_util.remove_training_nodes(part) == part
    with gs.Graph().as_default(), gs.Session() as sess:
        (b,) = gs.import_graph_def(part, return_elements=["b:0"])
        assert sess.run(b) == 3.0

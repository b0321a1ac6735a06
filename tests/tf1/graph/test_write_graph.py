"""Graphs as GraphDef: names, inputs, devices, shapes, and how an update is spread out."""

import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.graph_pb2 import GraphDef

import globalstep as gs
from globalstep.errors import OpError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.write_graph import graph_def, write_graph
from globalstep.tf1.inputs.queues import FIFOQueue
from globalstep.tf1.ops.embedding_ops import embedding_lookup


def model(optimizer, **options):
    """A linear model on two PS tasks and its train op."""
    with gs.device(gs.train.replica_device_setter(ps_tasks=2)):
        step = gs.train.get_or_create_global_step()
        x = gs.placeholder(gs.float32, [None, 4], name="x")
        with gs.name_scope("layer"):
            weights = gs.Variable(np.zeros((4, 3), np.float32), name="weights")
            bias = gs.Variable(np.zeros(3, np.float32), name="bias")
        loss = gs.reduce_mean(gs.square(gs.matmul(x, weights) + bias), name="loss")
        return optimizer.minimize(loss, global_step=step, **options)


@pytest.fixture
def graph():
    with gs.Graph().as_default() as graph:
        yield graph


def nodes_of(graph, **options):
    found = {node.name: node for node in graph_def(graph, **options).node}
    assert len(found) == len(graph_def(graph, **options).node)
    for node in found.values():
        for source in node.input:
            assert source.removeprefix("^") in found, f"{node.name} takes {source}, which is not there"
    return found


def shape_of(node):
    return [dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim]


def test_every_node_has_its_op_inputs_device_dtype_and_shape(graph):
    model(gs.train.GradientDescentOptimizer(0.1))
    found = nodes_of(graph)
    assert {node.op_name for node in graph.nodes} <= set(found)
    assert found["x"].op == "Placeholder"
    assert [dim.size for dim in found["x"].attr["shape"].shape.dim] == [-1, 4]
    assert found["x"].attr["dtype"].type == types_pb2.DT_FLOAT
    assert found["x"].device == "/job:worker"
    matmul = found["MatMul"]
    assert list(matmul.input) == ["x", "layer/weights"]
    assert shape_of(matmul) == [-1, 3]
    assert matmul.attr["T"].type == types_pb2.DT_FLOAT
    assert found["layer/weights"].op == "VariableV2"
    assert found["layer/weights"].device == "/job:ps/task:1"
    assert found["layer/bias"].device == "/job:ps/task:0"
    assert [dim.size for dim in found["layer/weights"].attr["shape"].shape.dim] == [4, 3]
    value = found["layer/bias/initial_value"].attr["value"].tensor
    assert np.frombuffer(value.tensor_content, "<f4").tolist() == [0.0] * 3
    assert list(found["layer/bias/Assign"].input) == ["layer/bias", "layer/bias/initial_value"]


def test_an_update_is_spread_over_its_variables_and_the_step_waits_for_it(graph):
    train_op = model(gs.train.AdamOptimizer(0.125), name="train")
    found = nodes_of(graph)
    apply = found["layer/weights/train/ApplyAdam"]
    assert apply.device == "/job:ps/task:1"
    assert list(apply.input[:3]) == ["layer/weights", "layer/weights/Adam", "layer/weights/Adam_1"]
    assert apply.attr["_class"].list.s[0] == b"loc:@layer/weights"
    assert 0.125 in {attr.f for attr in apply.attr.values()}
    assert found["layer/weights/Adam"].device == "/job:ps/task:1"
    assert found["layer/bias/train/ApplyAdam"].device == "/job:ps/task:0"
    assert set(found["train/update"].input) == {"^layer/weights/train/ApplyAdam", "^layer/bias/train/ApplyAdam"}
    step = found[train_op.op.name]
    assert step.op == "AssignAdd"
    assert list(step.input) == ["global_step", "train/value", "^train/update"]
    assert step.device == found["global_step"].device


def test_sparse_updates_take_their_rows(graph):
    table = gs.Variable(np.zeros((10, 2), np.float32), name="table")
    loss = gs.reduce_sum(embedding_lookup(table, [1, 2]))
    gs.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    found = nodes_of(graph)
    assert found["table/train/SparseApplyGradientDescent"].input[0] == "table"
    assert len(found["table/train/SparseApplyGradientDescent"].input) == 3
    assert list(found["train"].input) == ["^table/train/SparseApplyGradientDescent"]


def test_assignments_and_control_inputs_keep_their_edges(graph):
    total = gs.Variable(1.0, name="total")
    count = gs.Variable(np.int64(0), name="count", is_step=True)
    with gs.control_dependencies([gs.assign_add(total, 2.0, name="more")]):
        Node("Identity", [total], lambda value: value, name="after")
    gs.assign_add(count, 3, name="count_up")
    found = nodes_of(graph)
    assert found["more"].op == "AssignAdd"
    assert found["more"].input[0] == "total"
    assert list(found["after"].input) == ["total", "^more"]
    assert found["count_up"].input[0] == "count"
    value = found[found["count_up"].input[1]].attr["value"].tensor
    assert np.frombuffer(value.tensor_content, "<i8").tolist() == [3]


def test_variables_that_were_placed_nowhere_take_their_place_from_the_cluster(graph):
    gs.Variable(1.0, name="total")
    found = nodes_of(graph, where={"total": 3})
    assert found["total"].device == found["total/Assign"].device == "/job:ps/task:3"
    assert nodes_of(graph)["total"].device == ""


def test_large_constants_are_drawn_without_their_value(graph):
    gs.constant(np.zeros(2000, np.float32), name="large")
    gs.constant("text", name="words")
    found = nodes_of(graph)
    assert "value" not in found["large"].attr
    assert shape_of(found["large"]) == [2000]
    assert list(found["words"].attr["value"].tensor.string_val) == [b"text"]


def test_what_is_not_known_is_drawn_without_and_nothing_large_is_made_up(graph):
    calls = []
    wide = Node("Placeholder", dtype="float32", shape=[1 << 12, 1 << 12])
    Node("Heavy", [wide], calls.append, name="heavy")
    Node("Placeholder", dtype="float32", name="any")
    FIFOQueue(3, ["int32", "string"], name="queue").dequeue()
    found = nodes_of(graph)
    assert calls == []
    assert "T" not in found["heavy"].attr
    assert found["any"].attr["shape"].shape.unknown_rank
    assert list(found["queue_Dequeue"].input) == ["queue"]


@pytest.mark.parametrize("as_text", [True, False])
def test_the_file_is_the_graph(graph, tmp_path, as_text):
    model(gs.train.GradientDescentOptimizer(0.1))
    path = write_graph(graph, str(tmp_path / "run"), "graph.pbtxt", as_text=as_text)
    assert path == str(tmp_path / "run" / "graph.pbtxt")
    data = (tmp_path / "run" / "graph.pbtxt").read_bytes()
    read = text_format.Parse(data.decode(), GraphDef()) if as_text else GraphDef.FromString(data)
    assert read == graph_def(graph)
    again = write_graph(read, str(tmp_path), "again.pb", as_text=False)
    assert GraphDef.FromString((tmp_path / "again.pb").read_bytes()) == read
    assert again.endswith("again.pb")
    assert sorted(item.name for item in (tmp_path / "run").iterdir()) == ["graph.pbtxt"]


def test_a_directory_that_cannot_be_made_is_named(graph, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OpError, match="Could not write"):
        write_graph(graph, str(tmp_path / "file"), "graph.pbtxt")

"""What an operation says of itself as a NodeDef, and the containers that are accepted."""

import globalstep as gs


def test_an_operation_has_its_node_def():
    with gs.device("/job:ps/task:0"):
        c = gs.constant([1.0, 2.0], name="c")
    with gs.control_dependencies([gs.no_op(name="before")]):
        total = gs.add(c, c, name="total")
    found = total.op.node_def
    assert (found.name, found.op, list(found.input)) == ("total", total.op.type, ["c", "c", "^before"])
    assert c.op.node_def.device == "/job:ps/task:0"
    assert c.op.node_def.attr["dtype"].type == 1
    assert c.op.node_def.attr["value"].tensor.tensor_content == b"\0\0\x80?\0\0\0@"


def test_a_variable_and_a_train_op_have_theirs():
    w = gs.Variable([1.0], name="w")
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(w * w, gs.train.get_or_create_global_step())
    assert (w.op.node_def.op, w.op.node_def.name) == ("VariableV2", "w")
    found = train_op.op.node_def
    assert (found.name, found.op) == (train_op.op.name, "AssignAdd")
    assert "global_step" in found.input


def test_they_are_those_of_the_graph():
    gs.reduce_sum(gs.placeholder("float32", [None, 2]) + 1.0)
    graph = gs.get_default_graph()
    whole = {node.name: node for node in graph.as_graph_def().node}
    for operation in graph.get_operations():
        assert list(operation.node_def.input) == list(whole[operation.name].input)


def test_a_container_changes_nothing():
    with gs.container("experiment0"):
        w = gs.Variable(1.0, name="w")
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert session.run(w) == 1

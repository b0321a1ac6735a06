"""Graphs as GraphDefs that can be imported again: what is kept, and what is refused."""

import contextlib
import json
import os
import tracemalloc

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.exporting.graph_files import PAYLOAD
from globalstep.tf1.exporting.values import ValueReader, ValueWriter

RNG = np.random.default_rng(5)
FEEDS = {
    "images:0": RNG.normal(size=(2, 6, 6, 3)).astype(np.float32),
    "rows:0": RNG.normal(size=(3, 4)).astype(np.float32),
    "steps:0": RNG.normal(size=(2, 5, 4)).astype(np.float32),
    "ids:0": np.array([1, 4, 1]),
}


def build():
    """Operations of every kind: of models, loops, choices, random ones, sparse ones; and gradients through all."""
    gs.set_random_seed(3)
    images = gs.placeholder(gs.float32, [None, 6, 6, 3], name="images")
    rows = gs.placeholder(gs.float32, [3, 4], name="rows")
    steps = gs.placeholder(gs.float32, [None, 5, 4], name="steps")
    ids = gs.placeholder(gs.int64, [None], name="ids")
    net = gs.layers.conv2d(images, 4, 3, activation=gs.nn.relu)
    net = gs.nn.avg_pool(gs.layers.max_pooling2d(net, 2, 2), [1, 2, 2, 1], [1, 1, 1, 1], "SAME")
    net = gs.layers.dropout(gs.layers.batch_normalization(net, training=True), 0.5, training=True)
    logits = gs.layers.dense(gs.layers.flatten(net), 3)
    cell = gs.nn.rnn_cell.MultiRNNCell([gs.nn.rnn_cell.LSTMCell(3), gs.nn.rnn_cell.GRUCell(2)])
    outputs, _ = gs.nn.dynamic_rnn(cell, steps, sequence_length=[5, 3], dtype=gs.float32)
    table = gs.get_variable("table", [10, 4], partitioner=gs.fixed_size_partitioner(3))
    looked = gs.nn.embedding_lookup(table, ids) + gs.reduce_sum(gs.convert_to_tensor(table))
    _, looped = gs.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, a * 1.5), [0, gs.reduce_sum(outputs)])
    mapped = gs.map_fn(lambda row: gs.nn.softmax(row) * 2, rows)
    chosen = gs.cond(gs.reduce_sum(rows) > 0, lambda: rows * 2, lambda: rows[:, ::-1])
    odd = [rows[1:, ::2], rows[gs.argmax(rows[:, 0])], gs.one_hot([1, 2], 4), gs.nn.top_k(rows, 2)[1], gs.cumsum(rows)]
    odd += [gs.einsum("ij,kj->ik", rows, rows), gs.where(rows > 0, rows, -rows), gs.unique([1, 1, 2])[0], gs.norm(rows)]
    odd += [gs.random_normal([3]), gs.nn.elu(rows), gs.constant("text"), gs.constant([1 + 2j]), gs.rank(rows)]
    odd += [gs.segment_max(rows, [0, 0, 1]), gs.string_split(["a b"]).values, gs.regex_replace(["a1"], "[0-9]", "x")]
    odd += [gs.image.resize_bicubic(images, [3, 4]), gs.image.flip_up_down(images), gs.as_string(rows, 2)]
    odd += gs.image.sample_distorted_bounding_box([6, 6, 3], [[[0.0, 0.0, 0.5, 1.0]]])
    loss = gs.add_n(
        [gs.reduce_sum(gs.square(part)) for part in (logits, outputs, looked, looped, mapped, chosen)], "loss"
    )
    step = gs.train.get_or_create_global_step()
    rate = gs.train.exponential_decay(0.01, step, 10, 0.9)
    with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
        gs.train.AdamOptimizer(rate).minimize(loss, global_step=step, name="train")
    return odd


def values(graph, names):
    """Train twice, and give the values of all these nodes; of one that fails, how."""
    with gs.Session(graph=graph) as sess, graph.as_default():
        sess.run(gs.global_variables_initializer())
        sess.run(["train", "train"], FEEDS)
        sess.run("train", FEEDS)
        found = {}
        for name in names:
            try:
                found[name] = sess.run(f"{name}:0", FEEDS)
            except gs.errors.OpError as error:
                found[name] = type(error).__name__
        return found


def fetchable(graph):
    skipped = ("Placeholder", "Assign", "AssignAdd", "AssignSub", "While", "RecurrentSequence", "Saved")
    return [
        node.op_name
        for node in graph.nodes
        if not node.is_operation and not node.attrs.get("tuple") and node.op_type not in skipped
        and node.op_type != "TensorArrayUnstack" and "Exit" not in node.op_name
    ]  # fmt: skip


@pytest.mark.long
def test_an_imported_graph_computes_and_trains_as_the_one_it_was():
    with gs.Graph().as_default() as graph:
        build()
    written = gs.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with gs.Graph().as_default() as imported:
        gs.import_graph_def(written, name="")
        for node in imported.nodes:
            if isinstance(node, gs.Variable):
                gs.add_to_collection(gs.GraphKeys.GLOBAL_VARIABLES, node)
    assert [node.op_name for node in imported.nodes] == [node.op_name for node in graph.nodes]
    assert not [node for node in imported.nodes if "missing" in node.attrs]
    stated = [[(node._dtype, node.shape) for node in whole.nodes] for whole in (imported, graph)]
    assert stated[0] == stated[1]
    names = fetchable(graph)
    assert len(names) > 150
    expected, found = values(graph, names), values(imported, names)
    for name in names:
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected[name]), err_msg=name)


def imported_copy(graph, **how):
    with gs.Graph().as_default() as copy:
        gs.import_graph_def(graph.as_graph_def(), name="", **how)
    return copy


def test_imported_loops_and_choices_have_gradients():
    with gs.Graph().as_default() as graph:
        x, w = gs.placeholder(gs.float32, [2], name="x"), gs.placeholder(gs.float32, [2], name="w")
        _, y = gs.while_loop(
            lambda i, _: i < 3, lambda i, h: (i + 1, gs.cond(i > 1, lambda: h * w, lambda: gs.sin(h))), [0, x]
        )
        z = gs.multiply(gs.cond(w[0] > 0, lambda: y * w, lambda: x), w, name="z")
    written = graph.as_graph_def()
    with graph.as_default():
        expected = gs.gradients(z, [x, w])
    with gs.Graph().as_default() as imported:
        gs.import_graph_def(written, name="")
        z, *by = map(imported.get_tensor_by_name, ("z:0", "x:0", "w:0"))
        found = gs.gradients(z, by)
    feeds = {"x:0": [0.1, 0.2], "w:0": [1.0, 2.0]}
    with gs.Session(graph=graph) as session, gs.Session(graph=imported) as other:
        np.testing.assert_array_equal(other.run(found, feeds), session.run(expected, feeds))


def test_what_belongs_to_the_program_can_be_fed_and_says_so_when_it_is_run():
    with gs.Graph().as_default() as graph:
        x = gs.placeholder(gs.float32, [2], name="x")
        gs.multiply(gs.py_func(lambda value: value + 1, [x], gs.float32, name="own"), 2.0, name="twice")
    copy = imported_copy(graph)
    with gs.Session(graph=copy) as sess:
        assert sess.run("twice:0", {"own:0": [1.0, 2.0]}).tolist() == [2.0, 4.0]
        with pytest.raises(gs.errors.FailedPreconditionError, match=r"'own' \(PyFunc\) .*__main__|Feed it a value"):
            sess.run("twice:0", {"x:0": [1.0, 2.0]})


def test_training_by_a_loss_of_the_program_says_so_where_it_was_imported():
    with gs.Graph().as_default() as graph:
        loss = gs.py_loss(lambda w: (w.sum(), [np.ones_like(w)]), [gs.Variable([1.0, 2.0])], [])
        gs.train.GradientDescentOptimizer(0.1).minimize(loss * 2.0, name="train")
        gs.global_variables_initializer()
    with gs.Session(graph=imported_copy(graph)) as sess:
        sess.run("init")
        with pytest.raises(gs.errors.FailedPreconditionError, match=r"\(PyLoss\) was imported without"):
            sess.run("train")


def test_an_own_gradient_stays_with_the_program():
    with gs.Graph().as_default() as graph:
        cube = gs.custom_gradient(lambda x: (x**3, lambda dy: dy))(gs.placeholder(gs.float32, [], name="x"))
        gs.identity(cube, name="y")
    copy = imported_copy(graph)
    x, y = map(copy.get_tensor_by_name, ("x:0", "y:0"))
    with gs.Session(graph=copy) as sess:
        assert sess.run(y, {x: 2.0}) == 8.0
    with copy.as_default(), pytest.raises(LookupError, match=r"No gradient defined .* \(op type: IdentityN\)"):
        gs.gradients(y, x)


def test_names_of_an_imported_graph_are_taken():
    with gs.Graph().as_default() as graph, gs.name_scope("scope"):
        gs.constant(1.0, name="one")
    copy = imported_copy(graph)
    with copy.as_default():
        assert gs.constant(2.0, name="scope/one").op.name == "scope/one_1"
        with gs.name_scope("scope") as scope:
            assert scope == "scope_1/"
        with pytest.raises(ValueError, match="Node name 'scope/one' already exists"):
            gs.import_graph_def(graph.as_graph_def(), name="")
        assert [node.op_name for node in copy.nodes] == ["scope/one", "scope/one_1"]


def test_a_part_of_a_graph_with_another_input():
    with gs.Graph().as_default() as graph:
        x = gs.placeholder(gs.float32, [2], name="x")
        gs.add(x * 3.0, 1.0, name="y")
    with gs.Graph().as_default(), gs.Session() as sess:
        given = gs.constant([1.0, 2.0])
        y, y_op = gs.import_graph_def(graph.as_graph_def(), input_map={"x:0": given}, return_elements=["y:0", "y"])
        assert y.name == "import/y:0"
        assert y_op.name == "import/y"
        assert sess.run(y).tolist() == [4.0, 7.0]
        with pytest.raises(ValueError, match="inputs that were not found in graph_def"):
            gs.import_graph_def(graph.as_graph_def(), input_map={"z:0": given})
        with pytest.raises(ValueError, match="return_element 'z:0' not found"):
            gs.import_graph_def(graph.as_graph_def(), return_elements=["z:0"])


def test_a_program_may_take_the_devices_away():
    with gs.Graph().as_default() as graph, gs.device("/job:ps/task:1"):
        gs.constant(1.0, name="one")
    written = graph.as_graph_def()
    for node in written.node:
        node.device = ""
    with gs.Graph().as_default() as copy:
        gs.import_graph_def(written, name="")
    assert copy.get_operation_by_name("one").device == ""
    assert imported_copy(graph).get_operation_by_name("one").device == "/job:ps/task:1"


def test_a_graph_of_tensorflow_is_refused_in_words():
    written = gs.GraphDef()
    written.node.add(name="x", op="Placeholder")
    written.node.add(name="y", op="Relu", input=["x"])
    with (
        gs.Graph().as_default() as graph,
        pytest.raises(ValueError, match="not written by globalstep.*TensorFlow's oper"),
    ):
        gs.import_graph_def(written)
    assert graph.nodes == []


def damaged(change):
    with gs.Graph().as_default() as graph:
        gs.nn.softmax(gs.placeholder(gs.float32, [2], name="x"), name="y")
    written = graph.as_graph_def()
    attr = written.node[1].attr[PAYLOAD]
    payload = json.loads(attr.s)
    change(payload)
    attr.s = json.dumps(payload).encode()
    return written


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload.update({"class": "Graph"}),
        lambda payload: payload["state"].update({"inputs": {"no such kind": 1}}),
        lambda payload: payload["state"].update({"_dtype": {"dtype": "float31"}}),
        lambda payload: payload.pop("state"),
        lambda payload: payload.pop("computed"),
    ],
)
def test_a_damaged_graph_adds_nothing(change):
    with gs.Graph().as_default() as graph, pytest.raises(ValueError, match="is damaged, or of a version"):
        gs.import_graph_def(damaged(change))
    assert graph.nodes == []


def test_a_file_names_no_function():
    """What computes a node is its op's kernel, whatever else the file says of it."""
    change = {"fn": {"global": "os:system"}, "constraint": {"global": "os:system"}}
    with gs.Graph().as_default() as graph:
        gs.import_graph_def(damaged(lambda payload: payload.update(change)), name="")
    with gs.Session(graph=graph) as sess:
        assert sess.run("y:0", {"x:0": [1.0, 1.0]}).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("change", [{"computed": False}, {"attrs": {}}])
def test_a_node_that_this_version_cannot_compute_refuses_to_run(change):
    with gs.Graph().as_default() as graph:
        gs.import_graph_def(damaged(lambda payload: payload.update(change)), name="")
    with gs.Session(graph=graph) as sess, pytest.raises(gs.errors.FailedPreconditionError, match="'y'.*was imported"):
        sess.run("y:0", {"x:0": [1.0, 2.0]})


def test_values_come_back_as_they_were():
    with gs.Graph().as_default() as graph:
        shared = [1, 2]
        cycle: list = [shared, shared]
        cycle.append(cycle)
        given = (
            cycle,
            {"a": float("inf"), 3: None},
            {1, 2},
            frozenset("x"),
            b"\0",
            slice(1, None, 2),
            ...,
            2j,
            np.float32(1.5),
            np.arange(6).reshape(2, 3),
            gs.TensorShape([None, 2]),
            gs.float16,
            np.dtype("<i8"),
            range(3),
            np.array(["a", b"b"], object),
        )
        written = json.loads(json.dumps(ValueWriter(graph).write(given)))
        found = ValueReader(graph, lambda name: None, {}).read(written)
    first, *rest = found
    assert first[0] is first[1]
    assert first[2] is first
    assert first[0] == shared
    for one, other in zip(rest, given[1:], strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) and one.dtype != object else True
    assert rest[0] == given[1]
    assert rest[3:5] == [b"\0", slice(1, None, 2)]
    assert rest[7] == np.float32(1.5)
    assert rest[-1].tolist() == [b"a", b"b"]


def obj(place, **state):
    return {"object": [place, [[name, item] for name, item in state.items()]]}


PARTITIONED = "globalstep.tf1.variables.partitioned_variables:PartitionedVariable"
WRAPPER = "globalstep.tf1.rnn.attention:AttentionWrapper"
EXPR = "globalstep.wire.expressions:Expr"
RELU = {"global": "globalstep.tf1.ops.nn_ops:_relu"}


@pytest.mark.parametrize(
    "hostile",
    [
        {"method": ["check_call", obj(PARTITIONED, _whole={"module": "numpy"})]},
        {"global": "os:system"},
        {"global": PARTITIONED},
        {"type": "subprocess.Popen"},
        {"items": [{"module": "os"}]},
        obj(PARTITIONED, _whole=1),
        obj(WRAPPER, _packed=RELU),
        obj("subprocess:Popen", args="true"),
        obj("globalstep.tf1.graph.graph:Node", fn=RELU),
        obj(EXPR, __class__=RELU),
        obj(EXPR, __dict__={"dict": []}),
        obj(EXPR, evaluate=RELU),
        obj("globalstep.tf1.ops.init_ops:Orthogonal", draw=RELU),
        obj("globalstep.tf1.graph.mutations:OptimizerSpec", name=obj(EXPR, op="add")),
        obj("globalstep.tf1.text.lookup_tables:HashTable", name=obj(EXPR, op="add")),
        {"named tuple": ["builtins:tuple", [1]]},
        {"enum": [EXPR, "op"]},
        {"enum": ["globalstep.wire.declarations:OpKind", "__class__"]},
        {"ref": -1},
        {"numpy dtype": "(1,"},
        {"float": 10**400},
        {"complex": [10**400, 0]},
        {"array": ["float32", [10**12], ""]},
        {"set": [[1]]},
        {},
        {"a": 1, "b": 2},
        {"ref": "0"},
        {"array": ["object", [1], "AAAAAAAAAAA="]},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["attrs", "state", "list"])
def test_a_hostile_file_runs_nothing_and_is_refused(hostile, where, monkeypatch):
    """The node refuses to run, or the file is said to be damaged; no object of the file's making ever acts."""
    ran = []
    monkeypatch.setattr(np.f2py.subprocess, "Popen", lambda *args, **kwargs: ran.append(args))
    monkeypatch.setattr(os, "system", ran.append)
    with gs.Graph().as_default():
        x = gs.placeholder(gs.float32, [2], name="x")
        gs.nn.softmax(x, name="y")
    written = x.graph.as_graph_def()
    attr = written.node[1].attr[PAYLOAD]
    payload = json.loads(attr.s)
    match where:
        case "attrs":
            payload["attrs"]["x"] = hostile
        case "state":
            payload["state"]["_shape"] = hostile
        case "list":
            payload["attrs"]["x"] = [1, {"dict": [[2, {"tuple": [hostile]}]]}]
    attr.s = json.dumps(payload).encode()
    with gs.Graph().as_default() as graph:
        try:
            gs.import_graph_def(written, name="")
        except ValueError as error:
            assert "is damaged, or of a version" in str(error)  # noqa: PT017
        else:
            with gs.Session() as sess, pytest.raises(gs.errors.FailedPreconditionError, match="'y'.*was imported"):
                sess.run("y:0", {"x:0": [1.0, 2.0]})
    assert not ran
    assert graph.nodes == [] or len(graph.nodes) == 2


#: What a program may do with a node before it runs it.
USES = {
    "shape": lambda y: y.shape,
    "dtype": lambda y: y.dtype,
    "static shape": lambda y: y.set_shape([2]),
    "copy": lambda y: gs.nn.relu(gs.identity(y) + y),
    "sizes": lambda y: gs.reshape(gs.ones([4]), y[0] * 2),
    "stack": lambda y: gs.zeros([y, gs.stack([y, 2])[0]]),
    "fill": lambda y: gs.fill(y, gs.placeholder(gs.float32, [])),
    "tile": lambda y: gs.tile(gs.ones([1, 1]), y),
    "range": lambda y: gs.zeros(gs.range(y)),
    "eye": lambda y: gs.eye(y),
    "one hot": lambda y: gs.one_hot([1], y),
    "dense": lambda y: gs.sparse_to_dense([[0, 0]], y, 1.0).shape,
    "outer": lambda y: gs.einsum("i,j->ij", y, y).shape,
    "dot": lambda y: gs.tensordot(y, y, 0).shape,
    "parts": lambda y: gs.split(y, 2)[0].shape,
    "assertion": lambda y: gs.assert_less(gs.reshape(y, [-1, 1]), gs.reshape(y, [1, -1])),
    "gradients": lambda y: gs.gradients(y, gs.get_default_graph().nodes[0])[0].shape,
    "train": lambda y: gs.train.GradientDescentOptimizer(0.1).minimize(gs.reduce_sum(y)),
    "loop": lambda y: gs.while_loop(lambda i: i < 2, lambda i: i + gs.cast(y, gs.int32), [0]),
    "file": lambda y: gs.train.export_meta_graph(),
}


def lying_file(case, path):
    """A GraphDef whose node "y" is not what it says: it writes to `path`, or is large."""
    with gs.Graph().as_default() as graph:
        match case:
            case "constant":
                gs.constant([1 << 14, 1 << 14], name="y")
            case "number":
                gs.constant(1 << 28, name="y")
            case "wide" | "long":
                gs.placeholder(gs.float32, [1, 1], name="y")
            case "filled":
                gs.zeros([1 << 14, 1 << 14], name="y")
            case _:
                gs.write_file(path, "text", name="y")
    written = graph.as_graph_def()
    attr = next(node.attr[PAYLOAD] for node in written.node if node.name == "y")
    payload = json.loads(attr.s)
    state = payload["state"]
    if case in ("wide", "long"):
        state["_shape"] = {"shape": [1 << 14] * 2 if case == "wide" else [1 << 28]}
    elif case not in ("constant", "number"):
        state.update(_dtype=None, _shape=None, stateful=False, is_operation=False)
        state["op_type"] = case if case[0].isupper() else state["op_type"]
    attr.s = json.dumps(payload).encode()
    return written


@pytest.mark.parametrize(
    "case",
    [*("WriteFile", "Identity", "Const", "Shape", "Range", "Pack", "Reshape", "Gradients"),
     *("constant", "number", "wide", "long", "filled", "branch")],
)  # fmt: skip
def test_nothing_that_a_file_says_of_a_node_has_it_evaluated_before_a_run(case, tmp_path):
    path = tmp_path / "written"
    lie = lying_file("WriteFile" if case == "branch" else case, str(path))

    def imported():
        return gs.import_graph_def(lie, name="", return_elements=["y:0"])[0]

    for use in USES.values():
        with gs.Graph().as_default():
            tracemalloc.start()
            # Errors are as good as nodes: "y" need not be one that fits.
            with contextlib.suppress(Exception):
                if case == "branch":
                    use(gs.cond(gs.placeholder(gs.bool, []), imported, lambda: 1))
                use(imported())
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert not path.exists()
        assert peak < 1 << 24


def test_a_constraint_of_the_program_is_in_no_file():
    """As in TensorFlow; what an optimizer has made of it is."""
    with gs.Graph().as_default() as graph:
        gs.Variable(1.0, name="y", constraint=gs.nn.relu)
    with gs.Graph().as_default() as imported:
        gs.import_graph_def(graph.as_graph_def(), name="")
    assert imported.get_tensor_by_name("y:0").constraint is None


@pytest.mark.parametrize(
    "state",
    [
        {"_shape": {"shape": [1e400]}}, {"_shape": {"shape": ["a"]}}, {"_shape": {"shape": [-2]}}, {"_shape": RELU},
        {"_shape": {"shape": [1 << 80]}}, {"_dtype": "float32"}, {"inputs": {"tuple": [1]}}, {"inputs": {"node": "x"}},
        {"control_inputs": {"tuple": [RELU]}}, {"stateful": {"dimension": 1}}, {"op_type": 5}, {"op_type": "Const"},
        {"_shape": {"scalar": {"node": "x"}}},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_file_says_of_a_node_is_of_the_kind_that_it_is_of(state):
    with gs.Graph().as_default() as graph, pytest.raises(ValueError, match="is damaged, or of a version"):
        gs.import_graph_def(damaged(lambda payload: payload["state"].update(state)), name="")
    assert graph.nodes == []


@pytest.mark.parametrize("name", ["__class__", "fn", "graph", "eval", "op", "__dict__", "run"])
def test_a_file_gives_nodes_the_state_of_nodes_only(name):
    with gs.Graph().as_default() as graph, pytest.raises(ValueError, match=f"has no '{name}'"):
        gs.import_graph_def(damaged(lambda payload: payload["state"].update({name: RELU})), name="")
    assert graph.nodes == []


@pytest.mark.parametrize(
    "item", [{"type": "subprocess.Popen"}, {"ref": 5}, {"set": [[1]]}, {"dimension": 1e400}, {"a": 1, "b": 2}], ids=str
)
def test_a_damaged_item_of_a_collection_is_left_out(item, caplog):
    with gs.Graph().as_default() as graph:
        gs.add_to_collection("c", gs.placeholder(gs.float32, [2], name="x"))
    meta = gs.train.export_meta_graph(graph=graph)
    values = meta.collection_def[PAYLOAD].bytes_list.value
    content = json.loads(values[0])
    content["collections"]["c"].append(item)
    values[0] = json.dumps(content).encode()
    with gs.Graph().as_default() as graph:
        gs.train.import_meta_graph(meta)
        assert [node.op_name for node in gs.get_collection("c")] == ["x"]
    assert "'c' was imported without one of its items" in caplog.text

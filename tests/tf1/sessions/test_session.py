"""What a program may ask of a session, and what it is told when it may not."""

import threading
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from recording_cluster import RecordingCluster

import globalstep as gs
from globalstep.errors import InvalidArgumentError, JobDoneError, OutOfRangeError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.wire.declarations import Outcome, OutcomeKind, StopLimit
from globalstep.worker.protocol.push_result import PushResult

Pair = namedtuple("Pair", "first second")


class TestFetching:
    def test_structures(self, session):
        one, two = as_node(1.0, name="one"), as_node([2.0, 3.0])
        found = session.run({"a": [one, (two,)], "b": Pair(one, "one:0"), "c": OrderedDict(z=one.op, y=[])})
        assert list(found) == ["a", "b", "c"]
        assert found["a"][0] == 1.0
        assert isinstance(found["a"][1], tuple)
        assert found["b"] == Pair(1.0, 1.0)
        assert isinstance(found["c"], OrderedDict)
        assert list(found["c"].items()) == [("z", 1.0), ("y", [])]

    def test_kinds_of_values(self, session):
        scalar, text, flag = session.run([as_node(1.0), as_node("a"), as_node(1.0) > 0.0])
        assert type(scalar) is np.float32
        assert text == b"a"
        assert type(flag) is np.bool_
        assert type(session.run(as_node([1.0]))) is np.ndarray
        assert session.run(Node("NoOp", operation=True)) is None

    def test_operations_and_names(self, session):
        w = gs.Variable(1.0, name="w")
        assert session.run(w.initializer) is None
        assert session.run(["w/Assign", w.op, "w"]) == [None, 1.0, 1.0]

    def test_indexed_slices(self, session):
        slices = IndexedSlices(as_node(np.ones((2, 3), np.float32)), as_node([4, 4]), (5, 3))
        found = session.run(slices)
        assert isinstance(found, IndexedSlices)
        assert found.dense()[4].tolist() == [2.0, 2.0, 2.0]

    @pytest.mark.parametrize(
        ("fetch", "error", "text"),
        [
            (None, TypeError, r"Fetch argument None has invalid type <class 'NoneType'>"),
            (7, TypeError, r"Fetch argument 7 has invalid type <class 'int'>, must be a string or Tensor\. \(Can not "),
            ("absent:0", ValueError, r"Fetch argument 'absent:0' cannot be interpreted as a Tensor\. \(The name"),
        ],
    )
    def test_what_is_no_fetch(self, session, fetch, error, text):
        as_node(1.0)
        with pytest.raises(error, match=text):
            session.run([fetch])

    def test_node_of_another_graph(self, session):
        as_node(1.0)
        with gs.Graph().as_default():
            foreign = as_node(2.0)
        with pytest.raises(ValueError, match="is not an element of this graph"):
            session.run(foreign)

    def test_empty_graph(self, session):
        with pytest.raises(RuntimeError, match="The Session graph is empty"):
            session.run([])


class TestFeeding:
    def test_converts_to_the_dtype(self, session):
        x = placeholder(gs.float32, [None])
        found = session.run(x, {x: [1, 2]})
        assert (found.dtype, found.tolist()) == (np.float32, [1.0, 2.0])

    def test_any_node_and_any_variable(self, session):
        w = gs.Variable(1.0)
        double = w * 2.0
        assert session.run([w, double + 1.0], {w: 3.0}) == [3.0, 7.0]
        assert session.run(double + 1.0, {double: 5.0}) == 6.0
        assert session.run("Variable:0", {"Variable:0": 4.0}) == 4.0

    def test_structured_keys(self, session):
        a, b = placeholder(gs.float32), placeholder(gs.float32)
        assert session.run(a - b, {(a, b): (3.0, 1.0)}) == 2.0
        slices = IndexedSlices(placeholder(gs.float32), placeholder(gs.int64))
        found = session.run(slices, {slices: ([[1.0]], [2])})
        assert (found.values.tolist(), found.indices.tolist()) == ([[1.0]], [2])

    @pytest.mark.parametrize(
        ("value", "error", "text"),
        [
            (np.ones((2, 2)), ValueError, r"^Cannot feed value of shape \(2, 2\) for Tensor 'x:0', which has shape "),
            ([["a"]], ValueError, "fed to 'x:0' of dtype float32"),
        ],
    )
    def test_values_that_do_not_fit(self, session, value, error, text):
        x = placeholder(gs.float32, [None, 3], name="x")
        with pytest.raises(error, match=text):
            session.run(x, {x: value})

    def test_shape_in_the_message_is_tensorflows(self, session):
        x = placeholder(gs.float32, [None, 3], name="x")
        with pytest.raises(ValueError) as caught:
            session.run(x, {x: [1.0]})
        assert str(caught.value) == "Cannot feed value of shape (1,) for Tensor 'x:0', which has shape '(?, 3)'"

    def test_node_as_value_and_stranger_as_key(self, session):
        x = placeholder(gs.float32)
        with pytest.raises(TypeError, match=r"The value of a feed cannot be a tf\.Tensor object"):
            session.run(x, {x: as_node(1.0)})
        with pytest.raises(TypeError, match="Cannot interpret feed_dict key as Tensor: Can not convert a int"):
            session.run(x, {3: 1.0})
        with pytest.raises(TypeError, match="Cannot interpret feed_dict key as Tensor: The name 'y' refers"):
            session.run(x, {"y": 1.0})

    def test_number_too_large_for_the_dtype(self, session):
        x = placeholder(gs.int32, [])
        with pytest.raises(TypeError, match=r"Type of feed value 4294967296 with type <class 'int'> is not compatible"):
            session.run(x, {x: 2**32})

    def test_strings_are_bytes(self, session):
        path, names = placeholder(gs.string, []), placeholder(gs.string, [None])
        whole = gs.py_func(lambda text: text.decode() + ".npy", [path], gs.string)
        joined = gs.py_func(lambda texts: b",".join(texts), [names], gs.string)
        found = session.run([as_node("é"), path, whole, joined], {path: "a", names: ["b", b"c"]})
        assert found == ["é".encode(), b"a", b"a.npy", b"b,c"]
        assert session.run(gs.constant(["a", b"b"], gs.string)).tolist() == [b"a", b"b"]

    def test_unfed(self, session):
        x = placeholder(gs.int64, name="x")
        with pytest.raises(
            InvalidArgumentError, match="^You must feed a value for placeholder tensor 'x' with dtype int64"
        ):
            session.run(x)


class TestLifetime:
    def test_closed(self):
        node = as_node(1.0)
        session = gs.Session()
        call = session.make_callable(node)
        session.close()
        session.close()
        for attempt in (lambda: session.run(node), call):
            with pytest.raises(RuntimeError, match=r"^Attempted to use a closed Session\.$"):
                attempt()

    def test_default_session_and_graph(self):
        graph = gs.Graph()
        with gs.Session(graph=graph) as session:
            assert gs.get_default_graph() is graph
            assert gs.get_default_session() is session
            assert as_node(2.0).eval() == 2.0
            with gs.Session(graph=graph) as inner:
                assert gs.get_default_session() is inner
            assert gs.get_default_session() is session
        assert gs.get_default_session() is None
        assert gs.get_default_graph() is not graph

    def test_as_default_leaves_it_open(self):
        node = as_node(2.0)
        session = gs.Session()
        with session.as_default() as same:
            assert same is session
            assert node.eval() == 2.0
        assert session.run(node) == 2.0
        with pytest.raises(ValueError, match="no default session is registered"):
            node.eval()
        session.close()

    def test_default_session_is_of_one_thread(self, session):
        found = []
        thread = threading.Thread(target=lambda: found.append(gs.get_default_session()), name="other")
        thread.start()
        thread.join()
        assert found == [None]
        assert gs.get_default_session() is session

    def test_interactive(self):
        session = gs.InteractiveSession()
        w = gs.Variable(1.0)
        w.initializer.run()
        assert w.eval() == 1.0
        session.close()
        assert gs.get_default_session() is None

    def test_each_session_has_variables_of_its_own(self):
        w = gs.Variable(1.0)
        with gs.Session() as one, gs.Session() as other:
            one.run(w.initializer)
            other.run(w.assign(2.0))
            assert [one.run(w), other.run(w)] == [1.0, 2.0]

    def test_given_a_cluster_it_does_not_close_it(self):
        cluster = RecordingCluster()
        w = gs.Variable(1.0)
        with gs.Session(cluster=cluster) as session:
            session.run(w.initializer)
        with gs.Session(cluster=cluster) as session:
            assert session.run(w) == 1.0
        cluster.close()

    def test_graph_must_be_one(self):
        with pytest.raises(TypeError, match=r"graph must be a gs\.Graph, but got <class 'str'>"):
            gs.Session(graph="graph")


class TestCallable:
    def test_feeds_in_order(self, session):
        a, b = placeholder(gs.float32), placeholder(gs.float32)
        call = session.make_callable([a - b, a.op], [a, "Placeholder_1:0"])
        assert call(3.0, 1.0) == [2.0, 3.0]
        with pytest.raises(ValueError, match=r"zip\(\)"):
            call(3.0)

    def test_feed_list_must_be_one(self, session):
        a = placeholder(gs.float32)
        with pytest.raises(TypeError, match="`feed_list` must be a list or tuple"):
            session.make_callable(a, a)


class TestTheEnd:
    def test_a_refused_push_tells_what_was_computed(self):
        cluster = RecordingCluster()
        step = gs.train.create_global_step()
        train = step.assign_add(1)
        with gs.Session(cluster=cluster) as session:
            session.run(gs.global_variables_initializer())
            cluster.results = [PushResult(Outcome(OutcomeKind.REFUSED_DONE, steps={"global_step": 0}))]
            with pytest.raises(JobDoneError) as caught:
                session.run({"step": step, "train": train})
        cluster.close()
        assert caught.value.values == {"step": 0, "train": None}

    def test_a_limit_stops_exactly(self, session):
        step = gs.train.create_global_step()
        train = step.assign_add(1)
        session.run(step.initializer)
        session.cluster.open([StopLimit("global_step", last_step=3)])
        assert [session.run(train) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(OutOfRangeError, match=r"global_step = 3"):
            session.run(train)
        assert session.run(step) == 3


@pytest.mark.parametrize("dtype", [np.float32, object])
def test_what_the_program_does_to_its_arrays_later_changes_neither_the_graph_nor_values(dtype):
    mine = np.array([b"a", b"b"] if dtype is object else [1, 2], dtype)
    before, kind = mine.tolist(), gs.as_dtype(mine.dtype)
    fed = gs.placeholder(kind, [2])
    views = [fed, gs.identity(fed), gs.reshape(fed, [2, 1]), fed[:2]]
    fetches = [gs.constant(mine), gs.convert_to_tensor(mine), gs.py_func(lambda: mine, [], kind), *views]
    initialized = gs.Variable(mine) if dtype is not object else gs.constant(mine)
    with gs.Session() as session:
        found = session.run(fetches, {fed: mine})
        mine[:] = b"z" if dtype is object else 9
        assert [value.ravel().tolist() for value in found] == [before] * len(found)
        assert [value.tolist() for value in session.run(fetches[:2])] == [before] * 2
        session.run(gs.global_variables_initializer())
        assert session.run(initialized).tolist() == before

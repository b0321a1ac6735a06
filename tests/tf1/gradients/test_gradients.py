import subprocess
import sys
import threading

import numpy as np
import pytest
from evaluate import evaluate

import globalstep as gs
from globalstep.tf1.gradients.gradients import AggregationMethod, gradients
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.ops.array_ops import identity, shape, stop_gradient
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.ops.indexing_ops import gather
from globalstep.tf1.ops.reduction_ops import argmax, reduce_sum
from globalstep.tf1.variables.variables import Variable

TABLE = np.arange(10.0, dtype=np.float32).reshape(5, 2)


@gradient_of("Counted")
def three_times(node, grad):
    return [grad * 3.0]


def counted(x, calls):
    """A function whose evaluations are counted."""

    def fn(value):
        calls.append(1)
        return value * 3

    return Node("Counted", (x,), fn, dtype=x.dtype, shape=x.shape)


def test_gradients_of_several_values_add_up():
    x, y = c.placeholder("float64", [2]), c.placeholder("float64", [2])
    found = gradients([x * y, m.square(x)], [x, y])
    np.testing.assert_array_equal(evaluate(found, {x: [1, 2], y: [3, 4]}), [[5, 8], [1, 2]])


def test_grad_ys_weigh():
    x = c.placeholder("float64", [2])
    found = gradients([x * 3.0, x * x], [x], grad_ys=[None, [10.0, 20.0]])
    np.testing.assert_array_equal(evaluate(found[0], {x: [1, 2]}), [3 + 20, 3 + 80])
    with pytest.raises(ValueError, match="Passed 1 grad_ys for 2 ys"):
        gradients([x, x], [x], grad_ys=[x])
    with pytest.raises(ValueError, match="does not fit"):
        gradients([x * 1.0], [x], grad_ys=[c.zeros([3], "float64")])


def test_what_is_not_connected_is_none():
    x, y, n = c.placeholder("float32", [2]), c.placeholder("float32", [2]), c.placeholder("int32", [])
    assert gradients(x * 2.0, [y, n]) == [None, None]
    assert gradients(argmax(x), x) == [None]
    assert gradients(m.cast(x, "int32"), x) == [None]
    assert gradients(m.cast(shape(x), "float32"), x) == [None]
    assert gradients(m.cast(n, "float32"), n) == [None]
    assert gradients(stop_gradient(x) * 2.0, x) == [None]


def test_a_value_by_itself():
    x = c.placeholder("float32", [2])
    np.testing.assert_array_equal(evaluate(gradients(x, x)[0], {x: [5, 6]}), [1, 1])


def test_x_may_depend_on_another_x():
    x = c.placeholder("float64", [])
    h = identity(x)
    y = h * h + x
    found = evaluate(gradients(y, [x, h]), {x: 3})
    np.testing.assert_array_equal(found, [7, 6])


def test_stop_gradients_are_constants():
    x = c.placeholder("float64", [])
    h = x * 2.0
    y = h * x
    feeds = {x: 3}
    assert evaluate(gradients(y, x)[0], feeds) == 12
    assert evaluate(gradients(y, x, stop_gradients=[h])[0], feeds) == 6
    assert evaluate(gradients(y, h, stop_gradients=[h])[0], feeds) == 3
    assert evaluate(gradients(x * stop_gradient(h), x)[0], feeds) == 6


def test_the_forward_pass_runs_once_for_loss_and_gradients():
    calls = []
    x = c.placeholder("float64", [2])
    loss = reduce_sum(counted(x, calls))
    found = evaluate([*gradients(loss, [x]), loss], {x: [1, 2]})
    np.testing.assert_array_equal(found[0], [3, 3])
    assert found[1] == 9
    assert calls == [1]


def test_a_fed_node_passes_the_gradient_on_with_its_value():
    x = c.placeholder("float64", [])
    h = x * 2.0
    (slope,) = gradients(h * h, x)
    assert evaluate(slope, {x: 3, h: 10}) == 2 * 10 * 2


def test_gradients_of_a_table_are_rows():
    table = Variable(TABLE)
    rows = gather(table, [[1, 1], [4, 0]])
    (slope,) = gradients(reduce_sum(rows * rows), [table])
    assert isinstance(slope, IndexedSlices)
    assert slope.shape.as_list() == [5, 2]
    assert slope.dtype.name == "float32"
    found = evaluate(slope, {table: TABLE, rows: TABLE[[[1, 1], [4, 0]]]})
    np.testing.assert_array_equal(found.indices, [1, 1, 4, 0])
    np.testing.assert_array_equal(found.values, 2 * TABLE[[1, 1, 4, 0]])
    assert found.values.dtype == np.float32
    assert found.indices.dtype == np.int64
    dense = np.zeros((5, 2))
    np.add.at(dense, [1, 1, 4, 0], 2 * TABLE[[1, 1, 4, 0]])
    np.testing.assert_array_equal(found.dense(), dense)
    np.testing.assert_array_equal(evaluate(slope.__node__(), {table: TABLE, rows: TABLE[[[1, 1], [4, 0]]]}), dense)


def test_a_table_that_is_also_read_whole_has_a_dense_gradient():
    table = Variable(TABLE)
    loss = reduce_sum(gather(table, [1, 1])) + reduce_sum(m.square(table))
    (slope,) = gradients(loss, table)
    expected = 2 * TABLE
    expected[1] += 2
    assert isinstance(slope, Node)
    np.testing.assert_array_equal(evaluate(slope, {table: TABLE}), expected)


def test_a_table_looked_up_along_another_axis_has_a_dense_gradient():
    table = Variable(TABLE)
    (slope,) = gradients(gather(table, [1, 1], axis=1), table)
    np.testing.assert_array_equal(evaluate(slope, {table: TABLE}), np.tile([0, 2], (5, 1)))


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_a_table_in_parts_has_rows_for_each_part(strategy):
    whole = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    parts = [whole[i::3] for i in range(3)] if strategy == "mod" else [whole[:3], whole[3:5], whole[5:]]
    tables = [Variable(part) for part in parts]
    ids = [[6, 0], [3, 6]]
    rows = embedding_lookup(tables, ids, partition_strategy=strategy)
    assert rows.shape.as_list() == [2, 2, 2]
    feeds = dict(zip(tables, parts, strict=True))
    np.testing.assert_array_equal(evaluate(rows, feeds), whole[np.array(ids)])
    slopes = gradients(reduce_sum(rows * rows), tables)
    found = evaluate(slopes, feeds)
    expected = np.zeros((7, 2))
    np.add.at(expected, [6, 0, 3, 6], 2 * whole[[6, 0, 3, 6]])
    dense = [slices.dense() for slices in found]
    joined = np.zeros((7, 2))
    if strategy == "mod":
        for i, part in enumerate(dense):
            joined[i::3] = part
    else:
        joined = np.concatenate(dense)
    np.testing.assert_array_equal(joined, expected)


def test_second_derivatives():
    w, x = c.placeholder("float64", [3]), c.placeholder("float64", [3])
    h = m.tanh(w * x)
    (first,) = gradients(reduce_sum(h * h), w)
    second = gradients(first, [w, x])

    u, v = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    t = np.tanh(u * v)
    s = 1 - t * t
    of_product = 2 * s * (s - 2 * t * t)
    expected = [2 * t * s * v, of_product * v * v, of_product * u * v + 2 * t * s]
    np.testing.assert_allclose(evaluate([first, *second], {w: u, x: v}), expected)


def test_third_derivatives():
    x = c.placeholder("float64", [])
    slope = x**4
    for expected in (4 * 2.0**3, 12 * 2.0**2, 24 * 2.0, 24.0):
        (slope,) = gradients(slope, x)
        assert evaluate(slope, {x: 2}) == pytest.approx(expected)


def test_a_penalty_on_the_gradient():
    w, x = c.placeholder("float64", [2]), c.placeholder("float64", [2])
    (slope,) = gradients(reduce_sum(w * m.square(x)), x)
    (found,) = gradients(reduce_sum(m.square(slope)), w)
    np.testing.assert_allclose(evaluate(found, {w: [1, 2], x: [3, 4]}), [8 * 9, 2 * 8 * 16])


def test_second_derivatives_of_a_table():
    table = Variable(TABLE)
    rows = gather(table, [1, 3, 1])
    (first,) = gradients(reduce_sum(rows * rows * rows), table)
    (second,) = gradients(reduce_sum(first.values), table)
    found = evaluate(second, {table: TABLE})
    expected = np.zeros_like(TABLE)
    np.add.at(expected, [1, 3, 1], 6 * TABLE[[1, 3, 1]])
    np.testing.assert_array_equal(found.dense(), expected)


def test_a_function_without_gradient_is_an_error_only_where_one_would_flow():
    x = c.placeholder("float32", [2])
    opaque = Node("Opaque", (x,), lambda v: v, dtype="float32", shape=[2])
    with pytest.raises(LookupError, match=r"No gradient defined for operation 'Opaque' \(op type: Opaque\)"):
        gradients(opaque, x)
    assert gradients(argmax(opaque), x) == [None]
    (slope,) = gradients(x * stop_gradient(opaque), x)
    np.testing.assert_array_equal(evaluate(slope, {x: [2, 3]}), [2, 3])


def test_gradients_have_the_dtype_of_their_x():
    x = c.placeholder("float32", [2])
    y = m.cast(x, "float64") * 2.0
    (slope,) = gradients(y, x)
    assert slope.dtype.name == "float32"
    assert evaluate(slope, {x: [1, 2]}).dtype == np.float32


def test_names_are_under_their_scope():
    x = c.placeholder("float32", [2], name="x")
    y = x * 2.0
    assert gradients(y, x)[0].name == "gradients/mul_grad/Mul:0"
    assert gradients(y, x, name="mine")[0].name == "mine/mul_grad/Mul:0"


def test_nodes_go_to_the_graph_of_ys():
    with Graph().as_default() as graph:
        x = c.placeholder("float32", [])
        y = x * x
    assert gradients(y, x)[0].graph is graph


def test_aggregation_methods_give_the_same_sum():
    x = c.placeholder("float64", [])
    y = x * x + x * 3.0 + m.exp(x)
    for method in (None, AggregationMethod.DEFAULT, AggregationMethod.ADD_N, AggregationMethod.EXPERIMENTAL_TREE):
        assert evaluate(gradients(y, x, aggregation_method=method)[0], {x: 1}) == pytest.approx(5 + np.e)
    with pytest.raises(ValueError, match="Invalid aggregation_method specified 9"):
        gradients(y, x, aggregation_method=9)


def test_a_variable_read_in_two_phases_gets_the_sum():
    w = Variable(np.float64(3))
    first = w * w
    with gs.control_dependencies([first]), gs.control_dependencies([w.assign(4)]):
        second = w * w * w
    (slope,) = gradients(first + second, w)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert session.run([first, slope, w]) == [9, 2 * 3 + 3 * 4**2, 3]


def test_what_a_gradient_is_made_of_does_not_wait_for_what_it_is_ordered_after():
    w = Variable(np.float64(3))
    loss = w * w * w
    with gs.control_dependencies([w.assign_add(1)]):
        (slope,) = gradients(loss, w)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert [session.run(slope), session.run(w)] == [27, 4]


def test_items_taken_out_of_a_tuple_twice_add_up():
    x = c.placeholder("float64", [4])
    values = gs.split(x, 2)
    again = gs.nn.top_k(x, 2)
    loss = reduce_sum(values[0] * values[0]) + reduce_sum(again.values * [1.0, 10.0]) + reduce_sum(m.square(again[0]))
    found = evaluate(gradients(loss, x)[0], {x: [1, 2, 4, 3]})
    np.testing.assert_array_equal(found, [2, 4, 1 + 8, 10 + 6])


def test_threads_evaluate_side_by_side():
    x = c.placeholder("float64", [50])
    slope = x
    for _ in range(2):
        slope = gradients(reduce_sum(m.exp(slope * x)), x)[0]
    value = np.linspace(0, 0.5, 50)
    expected = evaluate(slope, {x: value})
    wrong = []

    def work():
        for _ in range(30):
            if not np.array_equal(evaluate(slope, {x: value}), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work, name=f"gradients-{i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_slices_need_a_shape_to_become_whole():
    slices = IndexedSlices(c.ones([1, 2]), c.constant([0]))
    assert slices.shape.ndims is None
    assert (slices.name, slices.op.type, slices.dtype.name) == ("ones:0", "Fill", "float32")
    with pytest.raises(ValueError, match="dense_shape"):
        slices.__node__()
    typed = IndexedSlices(np.ones((1, 2)), np.array([1]), c.constant([3, 2]))
    np.testing.assert_array_equal(typed.dense(), [[0, 0], [1, 1], [0, 0]])


def test_it_runs_without_the_namespace():
    code = "import globalstep.tf1.gradients.gradients, sys; print('globalstep.worker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

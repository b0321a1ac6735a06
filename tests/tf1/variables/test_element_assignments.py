"""Changes of elements of Variables; tests/golden/values/scatter_cases.py has TensorFlow's numbers."""

import contextlib

import numpy as np
import pytest

import globalstep as gs


def test_methods_of_a_variable(session):
    w = gs.Variable(gs.zeros([2, 2]))
    session.run(w.initializer)
    session.run(w.scatter_nd_update([[0, 1]], [5.0]))
    session.run(w.scatter_nd_add([[0, 1], [1, 0]], [1.0, 2.0]))
    assert session.run(w.scatter_nd_sub([[1]], [[1.0, 1.0]])).tolist() == [[0, 6], [1, -1]]


def test_a_change_comes_after_the_one_that_it_takes(session):
    w = gs.Variable(gs.zeros([2, 2]))
    session.run(w.initializer)
    first = gs.scatter_nd_update(w, [[0, 0], [1, 1]], [1.0, 2.0])
    second = gs.scatter_nd_update(first, [[0, 1]], [3.0])
    third = gs.scatter_mul(second, [[0, 1]], [[[10.0, 10.0], [10.0, 10.0]]])
    assert session.run(third).tolist() == [[10, 30], [0, 20]]


def test_index_tuples_whose_number_is_not_known(session):
    w = gs.Variable(gs.zeros([2, 3]))
    at, by = gs.placeholder("int64", [None, None]), gs.placeholder("float32", None)
    put = gs.scatter_nd_update(w, at, by)
    session.run(w.initializer)
    assert session.run(put, {at: [[0, 2], [1, 0]], by: [7, 8]}).tolist() == [[0, 0, 7], [8, 0, 0]]
    assert session.run(put, {at: [[1]], by: [[1, 2, 3]]}).tolist() == [[0, 0, 7], [1, 2, 3]]


@pytest.mark.parametrize("op", [gs.scatter_nd_add, gs.scatter_nd_sub, gs.scatter_nd_update])
@pytest.mark.parametrize("tuples", [[[0, 2]], [[2, 0]], [[0, -1]], [[-1, 0]]])
def test_an_index_out_of_range_changes_nothing(session, op, tuples):
    w = gs.Variable(gs.zeros([2, 2]), name="w")
    session.run(w.initializer)
    with pytest.raises(gs.errors.InvalidArgumentError):
        session.run(op(w, tuples, [1.0]))
    assert not session.run(w).any()


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda w: gs.scatter_nd_add(w, [[0.5]], [[1.0, 1.0]]), TypeError, "'indices' of 'ScatterNdAdd'"),
        (lambda w: gs.scatter_nd_add(w, 0, [1.0]), ValueError, "must be of rank 1 or more"),
        (lambda w: gs.scatter_nd_add(w, [[0, 0, 0]], [1.0]), ValueError, "inner dimension of indices"),
        (lambda w: gs.scatter_nd_update(w, [[0, 0]], [[1.0, 2.0]]), ValueError, "Shapes must be equal rank"),
        (lambda w: gs.scatter_nd_update(w, [[0, 0]], gs.constant([1])), TypeError, "'ScatterNdUpdate' Op has type int"),
        (lambda w: gs.scatter_mul(w, [0, 1], [[1.0, 2.0]]), ValueError, "Dimension 0 in both shapes"),
        (lambda w: gs.scatter_nd_update(gs.identity(w), [[0, 0]], [1.0]), TypeError, "changes a Variable"),
    ],
)
def test_what_is_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make(gs.Variable(gs.zeros([2, 2]), name="w"))


@contextlib.contextmanager
def _cluster(num_workers, num_ps):
    workers, ps = gs.test.create_local_cluster(num_workers, num_ps)
    try:
        yield workers
    finally:
        for server in (*workers, *ps):
            server.stop()


def test_a_table_on_parameter_servers():
    """Tabular learning: two workers change elements of one table, which is split over two PS tasks."""
    with _cluster(2, 2) as workers:
        with gs.device(gs.train.replica_device_setter(ps_tasks=2)):
            q = gs.get_variable("q", [1000, 4], initializer=gs.zeros_initializer(), partitioner=None)
            flags = gs.Variable(gs.zeros([3], "bool"), trainable=False)
        state, action, value = (gs.placeholder(kind, [None]) for kind in ("int32", "int32", "float32"))
        at = gs.stack([state, action], axis=1)
        learn, put = q.scatter_nd_add(at, value), q.scatter_nd_update(at, value)
        raised = gs.scatter_nd_update(flags, [[1]], [True])
        with gs.Session(workers[0].target) as first, gs.Session(workers[1].target) as second:
            first.run(gs.global_variables_initializer())
            for session in (first, second):
                session.run(learn, {state: [0, 999, 0], action: [1, 3, 1], value: [1, 2, 3]})
            second.run(put, {state: [999], action: [0], value: [9]})
            second.run(raised)
            table = first.run(q)
            assert (table[0].tolist(), table[999].tolist()) == ([0, 8, 0, 0], [9, 0, 0, 4])
            assert np.count_nonzero(table) == 3
            assert first.run(flags).tolist() == [False, True, False]

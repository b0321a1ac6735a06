"""Optimizers of Variables in LOCAL_VARIABLES do to them what they do to Variables on a PS, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.ps.local import drop
from globalstep.tf1.variables.graph_program import optimizers_of

LOCAL = {"collections": [gs.GraphKeys.LOCAL_VARIABLES]}
OPTIMIZERS = {
    "sgd": lambda: gs.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: gs.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: gs.train.AdagradOptimizer(0.1),
    "adadelta": lambda: gs.train.AdadeltaOptimizer(0.1),
    "adam": lambda: gs.train.AdamOptimizer(0.1),
    "lazy_adam": lambda: gs.train.LazyAdamOptimizer(0.1),
    "ftrl": lambda: gs.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "rmsprop": lambda: gs.train.RMSPropOptimizer(0.1, momentum=0.5),
    "centered": lambda: gs.train.RMSPropOptimizer(0.1, centered=True),
    "proximal": lambda: gs.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.1),
    "lamb": lambda: gs.train.LambOptimizer(0.1),
    "lion": lambda: gs.train.LionOptimizer(0.1),
}


@pytest.fixture(autouse=True)
def _graph():
    with gs.Graph().as_default():
        yield


def started():
    session = gs.Session()
    session.run([gs.global_variables_initializer(), gs.local_variables_initializer()])
    return session


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_local_variable_is_trained_as_one_on_a_ps(kind, sparse):
    initial = np.random.RandomState(1).rand(6, 3).astype(np.float32)
    shared, local = gs.Variable(initial, name="shared"), gs.Variable(initial, name="local", **LOCAL)
    ids, target = gs.placeholder("int32", [None]), gs.placeholder("float32", [None, 3])
    ops, optimizers = [], []
    for variable in (shared, local):
        rows = gs.gather(variable, ids) if sparse else variable
        optimizers.append(OPTIMIZERS[kind]())
        ops.append(optimizers[-1].minimize(gs.reduce_sum(gs.square(rows - target)), var_list=[variable]))
    rng = np.random.RandomState(2)
    with started() as session:
        for _ in range(4):
            session.run(ops, {ids: [1, 4, 1], target: rng.rand(3 if sparse else 6, 3)})
        there, here = (
            session.run([variable, *(optimizer.get_slot(variable, name) for name in optimizer.get_slot_names())])
            for variable, optimizer in zip((shared, local), optimizers, strict=True)
        )
        states = [session.run(optimizer.variables()) for optimizer in optimizers]
    assert not np.array_equal(there[0], initial)
    for one, other in zip(there, here, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_may_be_every_second_of_an_array():
    initial = np.ones((6, 3), np.float32)
    shared, local = gs.Variable(initial, name="shared"), gs.Variable(initial, name="local", **LOCAL)
    ids, rows = gs.placeholder("int64", [None]), gs.placeholder("float32", [None, 3])
    optimizer = gs.train.GradientDescentOptimizer(0.5)
    ops = [optimizer.apply_gradients([(gs.IndexedSlices(rows, ids), variable)]) for variable in (shared, local)]
    with started() as session:
        session.run(ops, {ids: np.array([1, 0, 4, 0, 1, 0])[::2], rows: np.ones((3, 6), np.float32)[:, ::2]})
        for values in session.run([shared, local]):
            assert values[:, 0].tolist() == [1, 0, 1, 1, 0.5, 1]


def test_slots_and_scalars_of_a_local_variable_are_local_and_in_the_global_collection():
    local = gs.Variable([1.0, 2.0], name="net", **LOCAL)
    optimizer = gs.train.AdamOptimizer(0.1)
    optimizer.minimize(gs.reduce_sum(local * local))
    assert gs.local_variables() == [local]
    assert {v.op_name for v in gs.global_variables()} == {"net/Adam", "net/Adam_1", "beta1_power", "beta2_power"}
    assert all(v.is_local for v in gs.global_variables())
    assert {v.op_name for v in optimizer.variables()} == {"net/Adam", "net/Adam_1", "beta1_power", "beta2_power"}
    assert optimizer.get_slot_names() == ["m", "v"]
    assert optimizers_of(local.graph) == []  # none is declared to a PS


def test_an_optimizer_is_given_all_local_variables_again_and_again():
    local = gs.Variable([1.0, 2.0], name="net", **LOCAL)
    optimizer = gs.train.AdagradOptimizer(0.5)
    loss = gs.reduce_sum(local * local)
    train_ops = [optimizer.minimize(loss, var_list=gs.local_variables()) for _ in range(3)]
    with started() as session:
        for train_op in train_ops:
            session.run(train_op)
        assert session.run(optimizer.get_slot(local, "accumulator"))[0] > 4


def test_a_saver_leaves_out_what_an_optimizer_keeps_of_local_variables(tmp_path):
    shared = gs.Variable([1.0], name="shared")
    local = gs.Variable([1.0], name="net", **LOCAL)
    train_op = gs.train.AdagradOptimizer(0.5).minimize(gs.reduce_sum(local * local))
    saver = gs.train.Saver()
    with started() as session:
        session.run(train_op)
        saved = saver.save(session, str(tmp_path / "model"))
        assert [name for name, _ in gs.train.list_variables(saved)] == ["shared"]
        saver.restore(session, saved)
        assert session.run(shared) == [1.0]


def test_one_optimizer_trains_both_kinds_in_one_op_with_one_step():
    step = gs.train.get_or_create_global_step()
    shared, local = gs.Variable([1.0], name="shared"), gs.Variable([1.0], name="local", **LOCAL)
    rate = gs.train.exponential_decay(0.5, step, 1, 0.5)
    optimizer = gs.train.MomentumOptimizer(rate, 0.9)
    train_op = optimizer.minimize(gs.reduce_sum(shared + local), global_step=step)
    with started() as session:
        for wanted in (0.5, 0.5 - 0.25 * 1.9):
            session.run(train_op)
            there, here = session.run([shared, local])
            assert there == here == pytest.approx(np.array([wanted], np.float32))
        assert session.run(step) == 2
        momenta = session.run([optimizer.get_slot(variable, "momentum") for variable in (shared, local)])
        assert momenta[0] == momenta[1]


@pytest.mark.parametrize("gate", [gs.train.Optimizer.GATE_NONE, gs.train.Optimizer.GATE_GRAPH])
def test_gates_and_constraints(gate):
    local = gs.Variable([1.0, -1.0], name="net", constraint=gs.nn.relu, **LOCAL)
    other = gs.Variable([1.0], name="other", **LOCAL)
    loss = gs.reduce_sum(local * local) + gs.reduce_sum(other)
    train_op = gs.train.AdamOptimizer(0.1).minimize(loss, gate_gradients=gate)
    with started() as session:
        session.run(train_op)
        assert session.run(local) == pytest.approx([0.9, 0.0])
        assert session.run(other) == pytest.approx([0.9])
        assert session.run("beta1_power:0") == pytest.approx(0.81)


def test_a_rate_may_be_fed_be_a_variable_or_a_function():
    local = gs.Variable([4.0], name="net", **LOCAL)
    fed, calls = gs.placeholder("float32", []), []
    variable = gs.Variable(0.5, trainable=False)
    ops = [
        gs.train.GradientDescentOptimizer(rate).apply_gradients([(gs.constant([1.0]), local)])
        for rate in (fed, variable, lambda: calls.append(1) or 0.125)
    ]
    with started() as session:
        session.run(ops[0], {fed: 1.0})
        session.run(ops[1])
        session.run(ops[2])
        assert session.run(local) == [4.0 - 1.0 - 0.5 - 0.125]


def test_each_session_trains_its_own():
    local = gs.Variable([1.0], name="net", **LOCAL)
    train_op = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(gs.constant([1.0]), local)])
    with gs.Session("local://shared") as one, gs.Session("local://shared") as two:
        for session in (one, two):
            session.run(gs.local_variables_initializer())
        one.run(train_op)
        assert (one.run(local), two.run(local)) == ([0.0], [1.0])
    drop("shared")


def test_what_does_not_fit_is_refused_and_changes_nothing():
    local = gs.Variable([[1.0], [2.0]], name="net", **LOCAL)
    ids = gs.placeholder("int32", [None])
    optimizer = gs.train.AdagradOptimizer(0.1)
    train_op = optimizer.apply_gradients([(gs.IndexedSlices(gs.ones([1, 1]), ids, [2, 1]), local)])
    with gs.Session() as session:
        session.run(local.initializer)
        with pytest.raises(FailedPreconditionError, match="uninitialized value net/Adagrad"):
            session.run(train_op, {ids: [0]})
        session.run(gs.local_variables_initializer())
        with pytest.raises(InvalidArgumentError, match="'net' has 2 rows"):
            session.run(train_op, {ids: [2]})
        assert session.run(local).tolist() == [[1.0], [2.0]]
        assert session.run(optimizer.get_slot(local, "accumulator")).tolist() == [[pytest.approx(0.1)]] * 2


def test_downpour_accumulates_here_and_pushes_now_and_then():
    """As DOWNPOUR and SAGN programs do: a local net takes every step, the global one what all of them come to."""
    shared = gs.Variable([8.0], name="global/w")
    local = gs.Variable([0.0], name="local/w", **LOCAL)
    total = gs.Variable([0.0], trainable=False, name="local/sum", **LOCAL)
    pull = local.assign(shared)
    (gradient,) = gs.gradients(gs.reduce_sum(gs.square(local)), [local])
    inner = gs.train.GradientDescentOptimizer(0.25).apply_gradients([(gradient, local)])
    both = gs.group(inner, total.assign_add(gradient))
    push = gs.train.GradientDescentOptimizer(0.25).apply_gradients([(total, shared)])
    with started() as session:
        session.run(pull)
        for wanted in (4.0, 2.0, 1.0):
            session.run(both)
            assert session.run(local) == [wanted]
        session.run(push)
        assert session.run(shared) == [8.0 - 0.25 * (16 + 8 + 4)]

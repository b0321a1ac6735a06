"""Optimizers: from a loss to a train op, TensorFlow's names and errors, and what a run of it does."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.optimizers.optimizer import Optimizer, Slot
from globalstep.tf1.variables.training_util import create_global_step
from globalstep.tf1.variables.variable_scope import variable_scope
from globalstep.wire.declarations import OpKind

OPTIMIZERS = {
    "GradientDescent": {},
    "Momentum": {"momentum": 0.9},
    "Adagrad": {},
    "Adadelta": {},
    "RMSProp": {},
    "Adam": {},
    "Ftrl": {},
    "ProximalGradientDescent": {},
    "ProximalAdagrad": {},
    "AdamW": {},
    "LazyAdam": {},
    "Lamb": {},
    "Lion": {},
}


def variables():
    return gs.Variable([1.0, 2.0], name="w"), gs.Variable(3.0, name="b")


def loss_of(w, b):
    """Gradients: 2 w and 1."""
    return gs.reduce_sum(w * w) + b


def test_the_train_op_is_one_push_with_the_step():
    w, b = variables()
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(0.5).minimize(loss_of(w, b), global_step=step)

    assert isinstance(train_op, Mutation)
    assert train_op.name == "GradientDescent"
    assert train_op.is_operation
    assert [(part.kind, part.variable) for part in train_op.parts] == [(OpKind.APPLY, w), (OpKind.APPLY, b)]
    assert train_op.increments == ((step, 1),)
    assert [spec.kind for spec in train_op.uses] == ["gradient_descent"]
    assert gs.get_collection(gs.GraphKeys.TRAIN_OP) == [train_op]


def test_adam_gives_its_powers_as_tensorflow_s_does():
    optimizer = gs.train.AdamOptimizer()
    assert optimizer._get_beta_accumulators() == [None, None]
    optimizer.minimize(gs.reduce_sum(gs.Variable([1.0])))
    assert [power.op_name for power in optimizer._get_beta_accumulators()] == ["beta1_power", "beta2_power"]


def test_minimize_moves_variables_and_step(session):
    w, b = variables()
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(0.25).minimize(loss_of(w, b), global_step=step)
    sess = session()
    assert sess.run(train_op) is None
    assert sess.run(w).tolist() == [0.5, 1.0]
    assert sess.run([b, step]) == [2.75, 1]


def test_without_a_step_none_moves(session):
    w, b = variables()
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(0.25).minimize(loss_of(w, b))
    sess = session()
    sess.run(train_op)
    assert sess.run([b, step]) == [2.75, 0]


def test_gradients_may_be_capped_on_the_way(session):
    w, b = variables()
    optimizer = gs.train.GradientDescentOptimizer(1.0)
    pairs = optimizer.compute_gradients(loss_of(w, b), [w, b])
    train_op = optimizer.apply_gradients([(gs.minimum(grad, 0.5), variable) for grad, variable in pairs])
    sess = session()
    sess.run(train_op)
    assert sess.run(w).tolist() == [0.5, 1.5]
    assert sess.run(b) == 2.5


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_lowers_a_loss(session, name):
    w, b = variables()
    loss = gs.reduce_sum(w * w) + b * b
    optimizer = getattr(gs.train, f"{name}Optimizer")(learning_rate=0.05, **OPTIMIZERS[name])
    train_op = optimizer.minimize(loss)
    sess = session(shards=2)
    before = sess.run(loss)
    for _ in range(5):
        sess.run(train_op)
    assert sess.run(loss) < before
    assert optimizer.get_name() == ("Adam" if name == "LazyAdam" else name)


def test_slots_are_named_as_in_tensorflow():
    w, b = variables()
    optimizer = gs.train.AdamOptimizer()
    assert optimizer.get_slot_names() == []
    assert optimizer.variables() == []
    optimizer.minimize(loss_of(w, b))
    assert optimizer.get_slot_names() == ["m", "v"]
    assert optimizer.get_slot(w, "m").name == "w/Adam:0"
    assert optimizer.get_slot(w, "v").name == "w/Adam_1:0"
    assert optimizer.get_slot(w, "momentum") is None
    assert optimizer.get_slot(gs.Variable(0.0, trainable=False), "m") is None
    assert [v.name for v in optimizer.variables()] == [
        "b/Adam:0", "b/Adam_1:0", "beta1_power:0", "beta2_power:0", "w/Adam:0", "w/Adam_1:0",
    ]  # fmt: skip
    assert gs.trainable_variables() == [w, b]


def test_a_second_optimizer_of_a_name_gets_names_of_its_own():
    w, b = variables()
    first, second = gs.train.AdamOptimizer(), gs.train.AdamOptimizer()
    ops = [first.minimize(loss_of(w, b)), second.minimize(loss_of(w, b))]
    assert [op.name for op in ops] == ["Adam", "Adam_1"]
    assert [op.uses[0].name for op in ops] == ["Adam", "Adam_1"]
    assert second.get_slot(w, "v").name == "w/Adam_3:0"
    assert "beta2_power_1:0" in [v.name for v in second.variables()]


def test_slots_follow_the_variable_scope_but_not_the_name_scope():
    w, _ = variables()
    momentum = gs.train.MomentumOptimizer(0.1, 0.9)
    with gs.name_scope("train"):
        momentum.minimize(gs.reduce_sum(w * w), var_list=[w])
    assert momentum.get_slot(w, "momentum").name == "w/Momentum:0"
    adagrad = gs.train.AdagradOptimizer(0.1)
    with variable_scope("fit"):
        adagrad.minimize(gs.reduce_sum(w * w), var_list=[w])
    assert adagrad.get_slot(w, "accumulator").name == "fit/w/Adagrad:0"


def test_slots_live_where_their_variable_does():
    with gs.device("/job:ps/task:1"):
        w, b = variables()
    optimizer = gs.train.MomentumOptimizer(0.1, 0.9)
    optimizer.minimize(loss_of(w, b))
    slot = optimizer.get_slot(w, "momentum")
    assert slot.device == "/job:ps/task:1"
    assert (slot.primary, slot.optimizer_name, slot.slot_name) == (w, "Momentum", "momentum")


def test_ftrl_slots_may_have_names_of_their_own():
    w, b = variables()
    optimizer = gs.train.FtrlOptimizer(0.1, accum_name="acc", linear_name="lin")
    optimizer.minimize(loss_of(w, b))
    assert optimizer.get_slot(w, "accum").name == "w/acc:0"
    assert optimizer.get_slot(w, "linear").name == "w/lin:0"


def test_centered_rmsprop_has_a_slot_more():
    w, b = variables()
    optimizer = gs.train.RMSPropOptimizer(0.1, centered=True)
    optimizer.minimize(loss_of(w, b))
    assert optimizer.get_slot_names() == ["mg", "momentum", "rms"]
    assert optimizer.get_slot(w, "mg").name == "w/RMSProp_1:0"


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"Ftrl", "ProximalAdagrad"}))
def test_a_negative_rate_climbs_as_in_tensorflow(session, name):
    """The way that the same positive rate goes down."""
    more = dict(OPTIMIZERS[name], **({"weight_decay": 0.0} if name == "AdamW" else {}))
    moved = []
    for rate in (0.25, -0.25):
        with gs.Graph().as_default():
            w, b = variables()
            train_op = getattr(gs.train, f"{name}Optimizer")(rate, **more).minimize(loss_of(w, b))
            sess = session()
            sess.run(train_op)
            moved.append(sess.run(w) - np.float32([1.0, 2.0]))
    assert (moved[0] < 0).all()
    np.testing.assert_allclose(moved[1], -moved[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["Ftrl", "ProximalAdagrad"])
def test_where_tensorflow_wants_a_positive_rate_the_push_is_refused(session, name):
    w, b = variables()
    train_op = getattr(gs.train, f"{name}Optimizer")(-0.1).minimize(loss_of(w, b))
    sess = session()
    with pytest.raises(gs.errors.InvalidArgumentError, match="lr is not a positive scalar: -0.1"):
        sess.run(train_op)
    assert sess.run(w).tolist() == [1.0, 2.0]


def test_a_schedule_may_go_below_zero(session):
    w, b = variables()
    step = create_global_step()
    rate = gs.train.piecewise_constant(step, [0], [0.25, -0.25])
    train_op = gs.train.GradientDescentOptimizer(rate).minimize(loss_of(w, b), global_step=step)
    sess = session()
    found = []
    for _ in range(2):
        sess.run(train_op)
        found.append(float(sess.run(b)))
    assert found == [2.75, 3.0]


def test_a_variable_without_a_gradient_gets_no_slot():
    w, b = variables()
    optimizer = gs.train.MomentumOptimizer(0.1, 0.9)
    train_op = optimizer.minimize(gs.reduce_sum(w * w))
    assert optimizer.get_slot(b, "momentum") is None
    assert [part.variable for part in train_op.parts] == [w]


def test_slots_start_as_tensorflow_has_them(session):
    w, b = variables()
    adagrad, rmsprop = gs.train.AdagradOptimizer(0.1, 0.7), gs.train.RMSPropOptimizer(0.1)
    adagrad.minimize(loss_of(w, b))
    rmsprop.minimize(loss_of(w, b))
    sess = session()
    np.testing.assert_array_equal(sess.run(adagrad.get_slot(w, "accumulator")), np.full(2, 0.7, np.float32))
    assert sess.run(rmsprop.get_slot(w, "rms")).tolist() == [1.0, 1.0]
    assert sess.run(rmsprop.get_slot(w, "momentum")).tolist() == [0.0, 0.0]


def test_beta_powers_move_on_once_a_push(session):
    w, b = variables()
    optimizer = gs.train.AdamOptimizer(beta1=0.5, beta2=0.25)
    train_op = optimizer.minimize(loss_of(w, b))
    sess = session(shards=3)
    powers = [v for v in optimizer.variables() if "power" in v.name]
    assert sess.run(powers) == [0.5, 0.25]
    sess.run(train_op)
    sess.run(train_op)
    assert sess.run(powers) == [0.125, 0.015625]


@pytest.mark.parametrize("gate", [0, 1, 2])
def test_gating_gives_the_same_values_to_one_worker(session, gate):
    w, b = variables()
    step = create_global_step()
    optimizer = gs.train.AdamOptimizer(0.1)
    train_op = optimizer.minimize(loss_of(w, b), global_step=step, gate_gradients=gate)
    sess = session(shards=2)
    for _ in range(3):
        sess.run(train_op)
    np.testing.assert_allclose(sess.run(w), [0.7015863, 1.7006234], rtol=1e-5)
    assert sess.run(step) == 3


@pytest.mark.parametrize(("gate", "pushes"), [(0, 3), (1, 1), (2, 1)])
def test_gate_none_pushes_each_gradient_by_itself(session, gate, pushes):
    """Three pushes: of w, of b, and of the step; the gated ones are one."""
    w, b = variables()
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss_of(w, b), global_step=step, gate_gradients=gate)
    sess = session()
    before = sess.cluster.refresh()[0].applied
    sess.run(train_op)
    assert sess.cluster.refresh()[0].applied - before == pushes


def test_a_sparse_gradient_is_a_sparse_part(session):
    table = gs.Variable(np.zeros((4, 2), np.float32), name="table")
    rows = gs.gather(table, [1, 3, 1])
    optimizer = gs.train.GradientDescentOptimizer(1.0)
    train_op = optimizer.minimize(gs.reduce_sum(rows))
    assert train_op.parts[0].indices is not None
    sess = session()
    sess.run(train_op)
    assert sess.run(table).tolist() == [[0, 0], [-2, -2], [0, 0], [-1, -1]]


@pytest.mark.parametrize(("name", "rest_moves"), [("Adam", True), ("LazyAdam", False), ("Momentum", False)])
def test_rows_without_a_gradient_move_only_with_dense_equivalent_adam(session, name, rest_moves):
    table = gs.Variable(np.zeros((3, 1), np.float32), name="table")
    rows = gs.placeholder("int64", [None])
    optimizer = getattr(gs.train, f"{name}Optimizer")(learning_rate=0.1, **OPTIMIZERS[name])
    train_op = optimizer.minimize(gs.reduce_sum(gs.gather(table, rows)))
    sess = session()
    sess.run(train_op, {rows: [0, 1]})
    after_first = sess.run(table)[0, 0]
    sess.run(train_op, {rows: [1]})
    assert (sess.run(table)[0, 0] != after_first) == rest_moves
    assert sess.run(table)[2, 0] == 0


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "GradientDescent"])
def test_a_lookup_of_no_rows_is_a_push_like_any_other(session, name):
    table = gs.Variable(np.ones((3, 2), np.float32), name="table")
    rows = gs.placeholder("int64", [None])
    step = create_global_step()
    optimizer = getattr(gs.train, f"{name}Optimizer")(learning_rate=0.1)
    train_op = optimizer.minimize(gs.reduce_sum(gs.gather(table, rows)), global_step=step)
    sess = session()
    sess.run(train_op, {rows: []})
    assert sess.run(table).tolist() == [[1, 1], [1, 1], [1, 1]]
    assert sess.run(step) == 1


def test_adam_sums_repeated_rows_first(session):
    """Two rows of 1 for one id are a gradient of 2: v is 4 (1 - beta2), not 2 (1 - beta2)."""
    table = gs.Variable(np.zeros((2, 1), np.float32), name="table")
    optimizer = gs.train.AdamOptimizer(beta2=0.5)
    train_op = optimizer.minimize(gs.reduce_sum(gs.gather(table, [0, 0])))
    sess = session()
    sess.run(train_op)
    assert sess.run(optimizer.get_slot(table, "v")).tolist() == [[2.0], [0.0]]


def test_a_rate_may_be_a_variable_that_the_program_changes(session):
    w, b = variables()
    rate = gs.Variable(0.5, trainable=False, name="rate")
    train_op = gs.train.GradientDescentOptimizer(rate).minimize(loss_of(w, b))
    sess = session(shards=3)
    sess.run(train_op)
    assert sess.run(b) == 2.5
    sess.run(gs.assign(rate, 1.0))
    sess.run(train_op)
    assert sess.run(b) == 1.5


def test_a_callable_is_asked_for_every_push(session):
    w, b = variables()
    rates = iter([0.0, 0.5, 1.0, 2.0])  # the first is seen when the graph is built
    train_op = gs.train.GradientDescentOptimizer(lambda: next(rates)).minimize(loss_of(w, b))
    sess = session()
    seen = []
    for _ in range(3):
        sess.run(train_op)
        seen.append(float(sess.run(b)))
    assert seen == [2.5, 1.5, -0.5]


def test_a_callable_that_makes_a_node_is_that_node(session):
    w, b = variables()
    rate = gs.Variable(0.5, trainable=False, name="rate")
    train_op = gs.train.GradientDescentOptimizer(lambda: rate).minimize(loss_of(w, b))
    assert train_op.uses[0].hypers["learning_rate"] is rate


def test_a_rate_that_becomes_nan_is_refused_and_changes_nothing(session):
    w, b = variables()
    step = create_global_step()
    rate = gs.placeholder("float32", [])
    train_op = gs.train.GradientDescentOptimizer(rate).minimize(loss_of(w, b), global_step=step)
    sess = session()
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        sess.run(train_op, {rate: np.nan})
    assert sess.run([b, step]) == [3.0, 0]


def test_an_optimizer_may_be_used_for_two_losses(session):
    w, b = variables()
    optimizer = gs.train.MomentumOptimizer(0.5, 0.5)
    first = optimizer.minimize(b * 1.0, var_list=[b])
    second = optimizer.minimize(gs.reduce_sum(w), var_list=[w])
    assert first.uses == second.uses
    sess = session()
    sess.run(first)
    sess.run(second)
    assert sess.run(b) == 2.5
    assert sess.run(w).tolist() == [0.5, 1.5]


def test_a_constraint_is_applied_after_the_update(session):
    w = gs.Variable([1.0, 2.0], name="w", constraint=lambda v: gs.maximum(v, 0.0))
    step = create_global_step()
    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(w * [3.0, 0.5]), global_step=step)
    sess = session()
    sess.run(train_op)
    assert sess.run(w).tolist() == [0.0, 1.5]
    assert sess.run(step) == 1


def test_a_constraint_on_a_sparse_variable_is_an_error():
    table = gs.Variable(np.zeros((4, 2), np.float32), constraint=lambda v: v)
    with pytest.raises(RuntimeError, match="Cannot use a constraint function on a sparse variable"):
        gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(gs.gather(table, [1])))


class DoublingOptimizer(Optimizer):
    """An optimizer of one's own: it only names a rule."""

    kind = "adagrad"

    def __init__(self, name="Doubling"):
        super().__init__(False, name)

    def hypers(self):
        return {"learning_rate": 2.0}

    def slots(self):
        return (Slot("accumulator", 0.0),)


def test_an_optimizer_of_ones_own_names_its_rule(session):
    w, b = variables()
    train_op = DoublingOptimizer().minimize(loss_of(w, b))
    sess = session()
    sess.run(train_op)
    assert sess.run(b) == 1.0


# ---- Errors -----------------------------------------------------------------------------------------


def test_an_optimizer_needs_a_name():
    with pytest.raises(ValueError, match="Must specify the optimizer name"):
        gs.train.GradientDescentOptimizer(0.1, name="")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: gs.train.MomentumOptimizer(float("nan"), 0.9), "learning_rate of 'Momentum' is NaN"),
        (lambda: gs.train.AdamOptimizer(beta1=float("nan")), "beta1 of 'Adam' is NaN"),
        (lambda: gs.train.AdagradOptimizer(0.1, 0.0), "initial_accumulator_value must be positive: 0.0"),
        (lambda: gs.train.ProximalAdagradOptimizer(0.1, 0.0), "initial_accumulator_value must be positive: 0.0"),
        (lambda: gs.train.FtrlOptimizer(0.1, 0.5), "learning_rate_power 0.500000 needs to be negative or zero"),
        (
            lambda: gs.train.FtrlOptimizer(0.1, initial_accumulator_value=-1.0),
            "initial_accumulator_value -1.000000 needs to be positive or zero",
        ),
        (
            lambda: gs.train.FtrlOptimizer(0.1, l1_regularization_strength=-1.0),
            "l1_regularization_strength -1.000000 needs to be positive or zero",
        ),
        (
            lambda: gs.train.AdagradDAOptimizer(0.1, create_global_step(), 0.0),
            "initial_gradient_squared_accumulator_value must be positive: 0.0",
        ),
        (lambda: gs.train.AdamOptimizer(gs.constant([0.1, 0.2])), "learning_rate of 'Adam' must be a scalar"),
    ],
)
def test_bad_numbers_are_refused_when_they_are_given(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_hyper_parameter_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="learning_rate of 'Adam' must be a number"):
        gs.train.AdamOptimizer("fast")


def test_minimize_without_any_gradient():
    w, b = variables()
    with pytest.raises(ValueError, match="No gradients provided for any variable, check your graph for ops that"):
        gs.train.GradientDescentOptimizer(0.1).minimize(gs.constant(1.0) * 2.0, var_list=[w, b])


def test_apply_without_any_gradient():
    w, b = variables()
    optimizer = gs.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="No variables provided."):
        optimizer.apply_gradients([])
    with pytest.raises(ValueError, match="No gradients provided for any variable: .*'w:0'.*'b:0'"):
        optimizer.apply_gradients([(None, w), (None, b)])


def test_without_variables_there_is_nothing_to_optimize():
    with pytest.raises(ValueError, match=r"No variables to optimize."):
        gs.train.GradientDescentOptimizer(0.1).minimize(gs.constant(1.0))


def test_an_unknown_gate():
    w, b = variables()
    with pytest.raises(ValueError, match="gate_gradients must be one of: Optimizer.GATE_NONE"):
        gs.train.GradientDescentOptimizer(0.1).minimize(loss_of(w, b), gate_gradients=7)


def test_what_is_no_variable_is_refused():
    w, b = variables()
    optimizer = gs.train.GradientDescentOptimizer(0.1)
    with pytest.raises(NotImplementedError, match=r"Trying to update a Tensor"):
        optimizer.apply_gradients(optimizer.compute_gradients(5.0 * (node := b * 1.0), [node]))
    with pytest.raises(TypeError, match=r"Argument is not a gs.Variable: w"):
        optimizer.compute_gradients(loss_of(w, b), ["w"])
    with pytest.raises(TypeError, match=r"Argument is not a gs.Variable: w"):
        optimizer.apply_gradients([(1.0, "w")])


def test_a_loss_that_is_not_floating_is_refused():
    w, _ = variables()
    with pytest.raises(ValueError, match="Invalid type gs.int32"):
        gs.train.GradientDescentOptimizer(0.1).minimize(gs.constant(1), var_list=[w])


def test_a_gradient_must_be_one():
    w, _ = variables()
    optimizer = gs.train.GradientDescentOptimizer(0.1)
    with pytest.raises(TypeError, match="Gradient must be convertible to a Tensor or IndexedSlices, or None"):
        optimizer.apply_gradients([("steep", w)])


@pytest.mark.parametrize(
    ("grad", "error", "text"),
    [
        (np.zeros(3, np.float32), ValueError, r"Variable 'w:0' has shape \(3,\).*\(2,\)"),
        (np.zeros((2, 1), np.float32), ValueError, r"Variable 'w:0' has shape \(2, 1\)"),
        (np.zeros(2, np.float64), TypeError, "Variable 'w:0' has dtype float64, the Variable float32"),
        (
            gs.IndexedSlices(np.zeros((1, 2), np.float32), np.array([0]), (2,)),
            ValueError,
            r"Variable 'w:0' has shape \(1, 2\).*by rows",
        ),
        (
            gs.IndexedSlices(np.zeros(1, np.float32), np.array([0.5], np.float32), (2,)),
            TypeError,
            "Indices .* of Variable 'w:0' must be int32 or int64",
        ),
    ],
)
def test_a_gradient_that_does_not_fit_names_both_sides(grad, error, text):
    w, _ = variables()
    with pytest.raises(error, match=text):
        gs.train.GradientDescentOptimizer(0.1).apply_gradients([(grad, w)])


def test_a_gradient_that_turns_out_not_to_fit_changes_nothing(session):
    w, b = variables()
    step = create_global_step()
    grad = gs.placeholder("float32")
    train_op = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(1.0, b), (grad, w)], global_step=step)
    sess = session()
    with pytest.raises((InvalidArgumentError, ValueError), match="'w'"):
        sess.run(train_op, {grad: np.zeros(3, np.float32)})
    assert sess.run([b, step]) == [3.0, 0]


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_out_of_range_change_nothing(session, row):
    table = gs.Variable(np.zeros((4, 1), np.float32), name="table")
    step = create_global_step()
    ids = gs.placeholder("int64", [None])
    grad = gs.IndexedSlices(gs.constant([[1.0], [1.0]]), ids, (4, 1))
    train_op = gs.train.AdagradOptimizer(1.0).apply_gradients([(grad, table)], global_step=step)
    sess = session()
    with pytest.raises((InvalidArgumentError, ValueError), match="'table'"):
        sess.run(train_op, {ids: [0, row]})
    assert not sess.run(table).any()
    assert sess.run(step) == 0


def test_a_step_must_be_one():
    w, b = variables()
    with pytest.raises(TypeError, match="does not have integer type: string"):
        gs.train.GradientDescentOptimizer(0.1).minimize(loss_of(w, b), global_step=gs.Variable("a"))
    with pytest.raises(TypeError, match="is not scalar"):
        gs.train.GradientDescentOptimizer(0.1).minimize(loss_of(w, b), global_step=gs.Variable([0]))

import numpy as np
import pytest

import globalstep as gs
from globalstep.cluster.placement import SPLITTABLE_KINDS
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import UnimplementedError
from globalstep.rules import BUILT_IN, get_rule
from globalstep.tf1.graph.graph import as_node, get_default_graph
from globalstep.tf1.graph.mutations import Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.variables.graph_program import declarations, steps_of
from globalstep.wire.declarations import OpKind, RowRange

SPREAD = RunPolicy(spread_above=0)
MIB = 1 << 18  # floats


def _variable(name, size, **options):
    return gs.Variable(np.zeros(size, np.float32), name=name, **options)


def placed(shards=2, policy=SPREAD, **run):
    """Where the Variables of the default graph are."""
    return declarations(get_default_graph(), shards, policy, **run).shards


def test_largest_first_to_the_emptiest():
    for name, size in (("a", 10), ("b", 40), ("c", 30), ("d", 20)):
        _variable(name, size)
    assert placed() == {"b": 0, "c": 1, "d": 1, "a": 0}


def test_equal_sizes_keep_the_order_of_creation():
    for name in "abcd":
        _variable(name, 4)
    assert placed(3) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_devices_place_nothing_and_read_as_the_program_said():
    with gs.device("/job:ps/task:1"):
        on_one, step = _variable("a", 4), gs.train.create_global_step()
    with gs.device("/job:ps/task:7"):
        beyond = _variable("b", 8)
    assert placed() == {"b": 1, "global_step": 0, "a": 0}
    assert placed(policy=RunPolicy()) == {"b": 0, "global_step": 0, "a": 0}
    assert [variable.device for variable in (on_one, step, beyond)] == [
        "/job:ps/task:1",
        "/job:ps/task:1",
        "/job:ps/task:7",
    ]


def test_slots_live_with_their_primary_and_count_for_it():
    a = _variable("a", 10)
    _variable("b", 12)
    _variable("c", 8)
    slot = _variable("a/M", 10, primary=a)
    _variable("a/M/average", 10, primary=slot)
    assert placed() == {"a": 0, "a/M": 0, "a/M/average": 0, "b": 1, "c": 1}


def test_steps_and_scalars_live_on_the_sequencer():
    first, _ = gs.train.create_global_step(), _variable("large", 100)
    second = gs.Variable(np.int64(0), name="second", trainable=False)
    rate = gs.Variable(0.1, name="rate", trainable=False)
    w = _variable("w", 4)
    rule = OptimizerSpec("Rule", "gradient_descent", {"learning_rate": rate}, {w: ()}, ())
    part = MutationPart(OpKind.APPLY, w, as_node(np.zeros(4, np.float32)), optimizer=rule)
    Mutation([part], increments=[(second, 1)], uses=[rule])
    assert steps_of(get_default_graph()) == [first, second]
    on_one = placed(sequencer=1)
    assert {name: on_one[name] for name in ("global_step", "second", "rate")} == {
        "global_step": 1,
        "second": 1,
        "rate": 1,
    }
    assert on_one["large"] == 0
    assert placed()["rate"] == 0


def test_what_is_placed_stays():
    a = _variable("a", 10)
    _variable("b", 100)
    _variable("a/M", 10, primary=a)
    assert placed(sequencer=1, placed={"a": 1}) == {"a": 1, "a/M": 1, "b": 0}
    # A run that was begun when all was spread: what is new goes to its sequencer.
    assert placed(policy=RunPolicy(), sequencer=1, placed={"a": 0}) == {"a": 0, "a/M": 0, "b": 1}


def _bounded(floats):
    return RunPolicy(spread_above=4 * floats)


def test_a_dense_model_is_on_the_sequencer_up_to_the_bound():
    a = _variable("a", 10)
    _variable("b", 6)
    _variable("a/M", 10, primary=a)
    assert set(placed(policy=_bounded(17)).values()) == {0}
    assert set(placed(policy=_bounded(17), sequencer=1).values()) == {1}
    # Slots do not count: no push carries them.
    assert placed(policy=_bounded(16)) == {"a": 0, "a/M": 0, "b": 1}


def test_the_default_bound():
    made = [_variable(f"w{at}", 3 * MIB) for at in range(5)]
    assert placed(policy=RunPolicy()) == dict.fromkeys((one.op_name for one in made), 0)
    _variable("w5", MIB)
    assert set(placed(policy=RunPolicy()).values()) == {0, 1}


def _with_table(rows):
    """A table and a small dense model on it; the table's gradient has rows alone."""
    table = _variable("table", (rows, 4))
    _variable("dense", 4)
    ids = gs.placeholder(gs.int64, [None])
    loss = gs.reduce_sum(gs.nn.embedding_lookup(table, ids)) + gs.reduce_sum(gs.trainable_variables()[1])
    step = gs.train.get_or_create_global_step()
    gs.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return declarations(get_default_graph(), 2, RunPolicy())


def test_a_table_goes_by_rows_and_the_dense_model_beside_it_does_not():
    made = _with_table(2 * MIB)
    assert {decl.name for decl in made.variables if decl.parts} == {"table", "table/Adagrad"}
    assert {decl.shard for decl in made.variables if not decl.parts} == {0}


def test_a_small_table_is_with_the_dense_model():
    made = _with_table(1000)
    assert {(decl.shard, decl.parts) for decl in made.variables} == {(0, ())}


def test_declarations_of_a_graph():
    w = _variable("w", 8)
    unknown = gs.Variable(as_node([1.0]), name="u", validate_shape=False)
    gs.Variable(0, name="mine", trainable=False, collections=["local_variables"])
    power = gs.Variable(0.9, name="beta1_power", trainable=False)
    step = gs.Variable(np.int64(0), name="step", trainable=False)
    rule = OptimizerSpec("Rule", "adam", {"beta1": 0.9}, {w: ()}, (power,))
    Mutation(
        [MutationPart(OpKind.APPLY, w, as_node(np.zeros(8, np.float32)), optimizer=rule)],
        increments=[(step, 1)],
        uses=[rule],
    )
    found = declarations(get_default_graph(), 2, SPREAD)
    by_name = {decl.name: decl for decl in found.variables}
    assert set(by_name) == {"w", "beta1_power", "step"}
    assert by_name["step"].is_step
    assert by_name["beta1_power"].shard == by_name["step"].shard == found.sequencer == 0
    assert found.shards["u"] in (0, 1)
    assert unknown.op_name not in by_name
    (optimizer,) = found.optimizers
    assert (optimizer.name, optimizer.kind, optimizer.scalars) == ("Rule", "adam", ("beta1_power",))
    assert optimizer.hypers["beta1"].value == 0.9


def _planned(shards, train=True, optimizer=None):
    step = gs.train.get_or_create_global_step()
    if train:
        loss = gs.add_n([gs.reduce_sum(v) for v in gs.trainable_variables()])
        (optimizer or gs.train.AdamOptimizer()).minimize(loss, global_step=step)
    made = declarations(get_default_graph(), shards, SPREAD)
    return made, {decl.name: decl.parts for decl in made.variables if decl.parts}


def test_a_variable_beyond_its_fair_share_is_split_and_its_slots_with_it():
    _variable("big", (24 * MIB // 8, 8))
    _variable("small", MIB)
    _, parts = _planned(2)
    assert set(parts) == {"big", "big/Adam", "big/Adam_1"}
    assert set(parts.values()) == {(RowRange(0, 0, 12 * MIB // 8), RowRange(1, 12 * MIB // 8, 24 * MIB // 8))}


def test_one_ps_splits_nothing_and_neither_does_a_fair_share():
    _variable("one", 8 * MIB)
    _variable("two", 8 * MIB)
    assert _planned(1)[1] == {}
    assert _planned(2)[1] == {}


def test_a_variable_whose_rule_looks_at_all_of_it_is_not_split():
    _variable("big", 24 * MIB)
    assert _planned(2, optimizer=gs.train.LambOptimizer(0.1))[1] == {}


def test_what_is_copied_from_or_to_another_is_not_split():
    source, target = _variable("source", 24 * MIB), _variable("target", 24 * MIB)
    Mutation([MutationPart(OpKind.ASSIGN, target, source=source)])
    assert _planned(3, train=False)[1] == {}


def test_an_average_is_split_as_what_it_averages():
    big = _variable("big", 24 * MIB)
    gs.train.ExponentialMovingAverage(0.9).apply([big])
    assert set(_planned(2)[1]) >= {"big", "big/ExponentialMovingAverage"}


def test_splittable_rules_are_those_that_change_each_element_or_row_alone():
    elementwise = {kind for kind in BUILT_IN if get_rule(kind).elementwise or get_rule(kind).by_rows}
    # Its slots count pushes, for the whole Variable.
    assert elementwise - SPLITTABLE_KINDS == {"zero_debias_moving_average"}
    assert elementwise >= SPLITTABLE_KINDS


def test_strings_stay_in_the_session():
    gs.Variable("abc", name="words", trainable=False)
    refused = pytest.raises(UnimplementedError, match=r"Variable 'words' holds strings.*LOCAL_VARIABLES")
    with gs.Session() as session, refused:
        session.run(gs.global_variables_initializer())


def test_strings_that_the_session_holds():
    local = gs.Variable("abc", trainable=False, collections=[gs.GraphKeys.LOCAL_VARIABLES])
    with gs.Session() as session:
        session.run(gs.local_variables_initializer())
        assert session.run(local) == b"abc"

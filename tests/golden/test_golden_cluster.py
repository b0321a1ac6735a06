"""Optimizers follow TensorFlow's trajectories through sessions and a real PS, over every transport.

The data is that of test_golden_rules.py; here the rates decay on the PS, at the step that it holds.
"""

import golden_cases as cases
import numpy as np
import pytest
from golden_optimizers import DATA, ROOTS, assert_follows
from golden_sessions import KINDS, open_session
from pairwise import pairwise

import globalstep as gs
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.optimizers.schedules import exponential_decay
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.partitioned_variables import fixed_size_partitioner
from globalstep.tf1.variables.training_util import create_global_step
from globalstep.tf1.variables.variable_scope import variable_scope

ALL = list(cases.optimizer_cases())


def drive_session(case, kind):
    """Give every value, slot and scalar after each step of a run."""
    w = gs.Variable(cases.initial_values(), name="w")
    # Something else, so that Variables and the sequencer are on several PS.
    other = gs.Variable(np.zeros(100, np.float32), name="other")
    step = create_global_step()
    arguments = dict(case.arguments)
    if case.decayed:
        arguments["learning_rate"] = exponential_decay(
            arguments["learning_rate"], step, cases.DECAY_STEPS, cases.DECAY_RATE
        )
    if case.optimizer == "AdagradDA":
        arguments["global_step"] = step
    optimizer = getattr(gs.train, f"{case.optimizer}Optimizer")(**arguments)
    if case.sparse:
        ids, rows = gs.placeholder("int64", [None]), gs.placeholder("float32", [None, cases.SHAPE[1]])
        grad = gs.IndexedSlices(rows, ids, cases.SHAPE)
        feeds = [dict(zip((ids, rows), given, strict=True)) for given in zip(*cases.sparse_gradients(), strict=True)]
    else:
        grad = gs.placeholder("float32", cases.SHAPE)
        feeds = [{grad: given} for given in cases.dense_gradients()]
    pairs = [(grad, w), (gs.ones([100]), other)]
    train_op = optimizer.apply_gradients(pairs, global_step=step)
    state = {"values": w, **{name: optimizer.get_slot(w, name) for name in case.slots}}
    state.update({name: next(v for v in optimizer.variables() if v.op_name == name) for name in case.scalars})
    assert optimizer.get_slot_names() == sorted(case.slots)
    history = []
    with open_session(kind) as sess:
        for feed in feeds:
            sess.run(train_op, feed)
            history.append(sess.run(state))
        assert sess.run(step) == cases.STEPS
    return {name: np.stack([entry[name] for entry in history]) for name in state}


def _row(case, kind):
    return f"{case.optimizer}-{case.number}", case.sparse, case.decayed, kind


#: Every two of an optimizer's arguments, a kind of gradient, a kind of rate and a kind of session are together here.
PAIRS = set(pairwise(_row(case, kind) for case in ALL for kind in KINDS))


def _marks(at, case, number, kind):
    """Say in which tier a case is: the quick one has each with one kind of session."""
    if at % len(KINDS) == number:
        return []
    return [pytest.mark.long if _row(case, kind) in PAIRS else pytest.mark.full_matrix]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.name}-{kind}", marks=_marks(at, case, number, kind))
        for at, case in enumerate(ALL)
        for number, kind in enumerate(KINDS)
    ],
)
def test_an_optimizer_follows_tensorflow(case, kind):
    assert_follows(case, drive_session(case, kind))


@pytest.mark.parametrize("kind", ["local-1", "grpc-3"])
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Momentum", "Ftrl", "GradientDescent"])
def test_a_partitioned_table_follows_tensorflow(name, strategy, kind):
    """Its parts, put together, are what the whole is: the same lookups give the same rows."""
    case = next(c for c in ALL if c.optimizer == name and c.sparse and not c.decayed)
    whole = cases.initial_values()
    parts = 3
    order = np.concatenate([np.arange(part, cases.SHAPE[0], parts) for part in range(parts)])
    initial = whole if strategy == "div" else whole[order]
    with variable_scope("table", partitioner=fixed_size_partitioner(parts)):
        table = get_variable("w", initializer=initial)
    ids, rows = gs.placeholder("int64", [None]), gs.placeholder("float32", [None, cases.SHAPE[1]])
    looked_up = embedding_lookup(table, ids, partition_strategy=strategy)
    optimizer = getattr(gs.train, f"{name}Optimizer")(**case.arguments)
    train_op = optimizer.minimize(gs.reduce_sum(looked_up * rows))
    wanted = DATA[f"{case.name}/values"]
    bound = 1e-5 if name in ROOTS else 1e-6
    with open_session(kind) as sess:
        for at, (given_ids, given_rows) in enumerate(zip(*cases.sparse_gradients(), strict=True)):
            sess.run(train_op, {ids: given_ids, rows: given_rows})
            found = sess.run(looked_up, {ids: np.arange(cases.SHAPE[0])})
            np.testing.assert_allclose(found, wanted[at], rtol=bound, atol=bound * np.abs(wanted).max())

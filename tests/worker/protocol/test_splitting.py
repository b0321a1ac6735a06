"""Variables split by rows: the arithmetic of parts, and a program that knows nothing of it (rungs 1 and 2)."""

from __future__ import annotations

import numpy as np
import pytest

import globalstep as gs
from globalstep.ps.local import drop, named
from globalstep.tf1.graph.graph import Graph
from globalstep.wire.declarations import Op, OpKind, Push, RowRange, VariableDecl
from globalstep.worker.protocol.splitting import Splitter, split_declaration

PARTS = (RowRange(0, 0, 2), RowRange(1, 2, 5))
WHOLE = VariableDecl("w", "float32", (5, 2), trainable=True, parts=PARTS)
SLOT = VariableDecl("w/m", "float32", (5, 2), primary="w", optimizer="o", slot="m", parts=PARTS)


@pytest.fixture
def splitter():
    made = Splitter()
    for part in split_declaration(WHOLE):
        made.learn(part)
    return made


def test_declarations_of_parts_tell_the_whole_in_any_order():
    for decl in (WHOLE, SLOT):
        splitter = Splitter()
        first, second = split_declaration(decl)
        assert splitter.learn(second) is None
        assert not splitter.wholes
        assert splitter.learn(first) == decl
        assert splitter.parts(decl.name) == PARTS
    assert splitter.learn(VariableDecl("b", "float32", ())) is None


def test_a_change_by_a_number_or_by_a_slot_goes_to_every_part(splitter):
    for part in split_declaration(SLOT):
        splitter.learn(part)
    push, _ = splitter.split_push(Push(ops=[Op(OpKind.ASSIGN, "w", fill=0.5), Op(OpKind.ASSIGN, "w", source="w/m")]))
    assert [op.fill for op in push.ops[:2]] == [0.5, 0.5]
    assert [op.source for op in push.ops[2:]] == ["w/m#0", "w/m#1"]


@pytest.fixture
def target(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_RUN_POLICY", "spread_above=0,split_above=1")
    named("splitting", 2)
    yield "local://splitting"
    drop("splitting")


def build():
    w = gs.get_variable("w", [6, 2], initializer=gs.ones_initializer())
    ids = gs.placeholder(gs.int64, [None])
    step = gs.train.get_or_create_global_step()
    loss = gs.reduce_sum(gs.nn.embedding_lookup(w, ids))
    return w, ids, gs.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)


def test_another_program_of_the_run_learns_of_the_split(target):
    with Graph().as_default(), gs.Session(target) as session:
        w, ids, train = build()
        session.run(gs.global_variables_initializer())
        session.run(train, {ids: [0, 5]})
        changed = session.run(w)
        assert session.cluster.where["w#0"] != session.cluster.where["w#1"]
    with Graph().as_default(), gs.Session(target) as session:
        w = gs.get_variable("w", [6, 2])
        assert np.array_equal(session.run(w), changed)
        assert session.run(gs.report_uninitialized_variables()).size == 0
        session.run(w.assign(np.full((6, 2), 3.0)))
        assert np.array_equal(session.run(gs.gather(w, [5, 0])), [[3, 3], [3, 3]])


@pytest.mark.parametrize("shards_then", [1, 2, 3])
def test_a_checkpoint_has_the_whole_under_its_name(target, tmp_path, shards_then):
    with Graph().as_default(), gs.Session(target) as session:
        w, ids, train = build()
        session.run(gs.global_variables_initializer())
        session.run(train, {ids: [0, 5, 5]})
        saved = session.run(w)
        path = gs.train.Saver().save(session, str(tmp_path / "model"))
    names = dict(gs.train.list_variables(path))
    assert {name: names[name] for name in ("w", "w/Adagrad")} == {"w": [6, 2], "w/Adagrad": [6, 2]}
    assert np.array_equal(gs.train.load_variable(path, "w"), saved)
    named("splitting-then", shards_then)
    try:
        with Graph().as_default(), gs.Session("local://splitting-then") as session:
            w, ids, train = build()
            gs.train.Saver().restore(session, path)
            assert np.array_equal(session.run(w), saved)
            session.run(train, {ids: [5]})
            assert not np.array_equal(session.run(w), saved)
    finally:
        drop("splitting-then")

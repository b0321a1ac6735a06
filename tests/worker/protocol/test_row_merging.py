"""A client sends and fetches each row once, and nobody can tell but by the bytes."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.errors import InvalidArgumentError
from globalstep.ps.local import LocalPS
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, RowRange, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient

ROWS, WIDTH, NAMED = 300, 8, 4000
IDS = np.random.default_rng(0).integers(0, ROWS, NAMED)
UNIQUE = len(np.unique(IDS))


@pytest.fixture(params=[1, 2], ids=["one table", "a table in two parts"])
def client(request):
    with_ps = ClusterClient(LocalPS(request.param).transports())
    yield with_ps
    with_ps.close()


def declared(client, kind="gradient_descent", dtype="float32", shape=(ROWS, WIDTH)):
    slots = ("table/accumulator",) if kind == "adagrad" else ()
    parts = (RowRange(0, 0, ROWS // 3), RowRange(1, ROWS // 3, ROWS)) if client.shards == 2 else ()
    decls = [VariableDecl("table", dtype, shape, trainable=True, parts=parts)]
    like = {"primary": "table", "optimizer": "o", "slot": "accumulator", "parts": parts}
    decls += [VariableDecl(name, dtype, shape, **like) for name in slots]
    optimizer = OptimizerDecl("o", kind, {"learning_rate": constant(0.5)}, {"table": slots})
    client.declare(decls, [optimizer] if np.dtype(dtype).kind == "f" else [])
    start = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    client.push(Push([Op(OpKind.ASSIGN, "table", start)] + [Op(OpKind.ASSIGN, name, fill=0.1) for name in slots]))
    return start


def traffic_of(client, call):
    before = client.traffic
    call()
    return tuple(after - was for after, was in zip(client.traffic, before, strict=True))


def apply(ids, rows):
    return Push([Op(OpKind.APPLY, "table", rows, indices=ids, optimizer="o")], uses=[OptimizerUse("o")])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
def test_a_pull_gives_every_id_its_row(client, dtype):
    start = declared(client, dtype=dtype)
    (rows,) = client.pull([Read("table", IDS)])
    np.testing.assert_array_equal(rows, start[IDS])


def test_a_pull_fetches_each_row_once(client):
    declared(client)
    sent, received = traffic_of(client, lambda: client.pull([Read("table", IDS)]))
    assert received == UNIQUE * WIDTH * 4
    assert sent <= UNIQUE * 8


def test_reads_that_are_laid_out_alike_are_told_once(client):
    start, told = declared(client), []

    def watch(send):
        return lambda request, pieces: told.append(request.pull) or send(request, pieces)

    for transport in client.run.transports:
        transport.send = watch(transport.send)
    for ids in (IDS, IDS[::-1], IDS[:3000]):
        told.clear()
        np.testing.assert_array_equal(client.pull([Read("table", ids)], "rows")[0], start[ids])
        assert all(pull.layout for pull in told)
        assert all(bool(pull.reads) == (ids is IDS) for pull in told)


def test_lookups_of_one_variable_in_one_cut_share_their_rows(client):
    start = declared(client)
    half = NAMED // 2
    found = []
    reads = [Read("table", IDS[:half]), Read("table"), Read("table", IDS[half:])]
    _, received = traffic_of(client, lambda: found.extend(client.pull(reads)))

    for value, wanted in zip(found, [start[IDS[:half]], start, start[IDS[half:]]], strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert received == (UNIQUE + ROWS) * WIDTH * 4


def test_rows_pulled_earlier_stay_as_they_were(client):
    start = declared(client)
    (first,) = client.pull([Read("table", IDS)])
    client.push(apply(IDS, np.ones((NAMED, WIDTH), np.float32)))
    (second,) = client.pull([Read("table", IDS)])

    np.testing.assert_array_equal(first, start[IDS])
    assert np.all(second < first)


def test_a_program_may_write_new_ids_into_its_array(client):
    start = declared(client)
    ids = IDS.copy()
    client.pull([Read("table", ids)])
    ids[:] = ids[::-1].copy()
    (rows,) = client.pull([Read("table", ids)])
    np.testing.assert_array_equal(rows, start[IDS[::-1]])


@pytest.mark.parametrize("kind", ["gradient_descent", "adagrad"])
def test_a_push_sends_the_sum_of_each_row_once(client, kind):
    start = declared(client, kind)
    rows = np.random.default_rng(1).normal(size=(NAMED, WIDTH)).astype(np.float32)
    total = np.zeros((ROWS, WIDTH), np.float32)
    np.add.at(total, IDS, rows)
    wanted = start - 0.5 * total
    if kind == "adagrad":
        wanted = start - 0.5 * total / np.sqrt(np.float32(0.1) + total * total)

    kept = rows.copy()
    sent, _ = traffic_of(client, lambda: client.push(apply(IDS, rows)))

    np.testing.assert_allclose(client.pull([Read("table")])[0], wanted, rtol=1e-6, atol=1e-5)
    assert sent <= UNIQUE * (8 + WIDTH * 4)
    np.testing.assert_array_equal(rows, kept)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("kind", [OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB])
def test_a_scatter_adds_what_an_id_is_given_in_all(client, kind, dtype):
    start = declared(client, dtype=dtype)
    rows = np.random.default_rng(1).integers(-5, 5, (NAMED, WIDTH)).astype(dtype)
    (np.add if kind is OpKind.ASSIGN_ADD else np.subtract).at(start, IDS, rows)

    client.push(Push([Op(kind, "table", rows, indices=IDS)]))

    np.testing.assert_array_equal(client.pull([Read("table")])[0], start)


def test_a_scatter_that_assigns_leaves_the_last_row_of_an_id(client):
    start = declared(client)
    rows = np.random.default_rng(1).normal(size=(NAMED, WIDTH)).astype(np.float32)
    start[IDS] = rows
    client.push(Push([Op(OpKind.ASSIGN, "table", rows, indices=IDS)]))
    np.testing.assert_array_equal(client.pull([Read("table")])[0], start)


def test_the_reads_of_a_push_are_fetched_once_each_too(client):
    start = declared(client)
    push = apply(IDS, np.ones((NAMED, WIDTH), np.float32))
    push.reads = [Read("table", IDS)]
    values = []
    _, received = traffic_of(client, lambda: values.extend(client.push(push).values))

    counts = np.bincount(IDS, minlength=ROWS)[:, None]
    np.testing.assert_array_equal(values[0], (start - 0.5 * counts)[IDS])
    assert received == UNIQUE * WIDTH * 4


def test_the_program_s_push_is_not_changed(client):
    declared(client)
    push = apply(IDS, np.ones((NAMED, WIDTH), np.float32))
    client.push(push)
    assert push.ops[0].indices is IDS
    assert not push.ops[0].unique


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_id_that_is_no_row_is_refused_and_changes_nothing(client, wrong):
    start = declared(client)
    ids = IDS.copy()
    ids[1234] = wrong
    with pytest.raises(InvalidArgumentError, match=rf"Row id {wrong} is not in \[0, {ROWS}\)"):
        client.pull([Read("table", ids)])
    with pytest.raises(InvalidArgumentError, match=rf"Row id {wrong} is not in \[0, {ROWS}\)"):
        client.push(apply(ids, np.ones((NAMED, WIDTH), np.float32)))
    np.testing.assert_array_equal(client.pull([Read("table")])[0], start)


def test_gradients_that_do_not_fit_their_ids_are_refused(client):
    declared(client)
    with pytest.raises(InvalidArgumentError, match="shape"):
        client.push(apply(IDS[:-1], np.ones((NAMED, WIDTH), np.float32)))

"""Layouts of rows: pushes that are alike but for their rows are told once, whatever rows they have (rung 2)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from counting_run import RATE, STEP, USES, initialize, state

from globalstep.errors import InvalidArgumentError
from globalstep.ps.local import LocalPS
from globalstep.wire.declarations import (
    Op,
    OpKind,
    OptimizerDecl,
    OutcomeKind,
    Push,
    Read,
    RowRange,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.wire.wire_options import WireOptions

METHODS = frozenset({"push", "stage", "commit"})


def change(ids, variable="e", width=(2,), **more):
    """A gradient of -1 for each of these rows."""
    rows = np.full((len(ids), *width), -1.0, np.float32)
    return Op(OpKind.APPLY, variable, rows, indices=np.array(ids, np.int64), optimizer="sgd", **more)


def rows_push(ids, read=(), layout="rows"):
    """A push of some rows of `e` and of all of `w`, which reads rows of `e`, and `b`."""
    w = Op(OpKind.APPLY, "w", np.full(3, -1.0, np.float32), optimizer="sgd")
    reads = [Read("e", np.array(read, np.int64)), Read("b")]
    return Push([w, change(ids)], list(STEP), list(USES), reads, layout=layout)


def watched(client):
    """The pushes and parts that a client sends from now on."""
    sent = []

    def watch(send):
        def watching(request, pieces):
            kind = request.WhichOneof("kind")
            if kind in ("push", "stage"):
                sent.append(getattr(request, kind))
            return send(request, pieces)

        return watching

    for transport in client.run.transports:
        transport.send = watch(transport.send)
    return sent


def is_told(message):
    return bool(message.ops or message.reads)


class Expected:
    """What `rows_push` makes of `e`, row by row."""

    def __init__(self):
        self.e = np.zeros((5, 2), np.float32)

    def push(self, ids):
        np.add.at(self.e, np.array(ids, np.int64), np.float32(RATE))


ROWS = [[1, 3], [0], [], [4, 4, 2, 0, 1], [3]]


def test_pushes_of_any_rows_are_told_once(shards, connected):
    client, expected = connected(LocalPS(shards)), Expected()
    initialize(client)
    sent = watched(client)
    for count, ids in enumerate(ROWS, 1):
        sent.clear()
        expected.push(ids)
        rows, b = client.push(rows_push(ids, read=ids[::-1])).values
        np.testing.assert_array_equal(rows, expected.e[ids[::-1]])
        assert b == 0
        assert all(is_told(message) == (count == 1) for message in sent if message.layout)
        assert all(message.known_layout and message.layout for message in sent if count > 1)
    assert state(client)["e"] == expected.e.tolist()
    assert state(client)["w"] == [RATE * len(ROWS)] * 3
    assert client.global_steps() == {"global_step": len(ROWS)}


def test_a_layout_that_a_shard_has_forgotten_is_told_again(shards, connected):
    client, expected = connected(LocalPS(shards)), Expected()
    initialize(client)
    sent = watched(client)
    for count, ids in enumerate(ROWS * 2):
        expected.push(ids)
        sent.clear()
        client.push(rows_push(ids))
        assert any(map(is_told, sent)) == (count % 3 == 0)
        if count % 3 == 2:
            for transport in client.run.transports:
                transport._memory._row_layouts.clear()
    assert state(client)["e"] == expected.e.tolist()


def test_a_row_that_is_not_there_is_refused_by_name_and_changes_nothing(shards, connected):
    client, expected = connected(LocalPS(shards)), Expected()
    initialize(client)
    sent = watched(client)
    for ids in ([1], [2, 3]):
        expected.push(ids)
        client.push(rows_push(ids))
    before = state(client)
    for wrong in ([0, 5], [-1], [2**40]):
        with pytest.raises(InvalidArgumentError, match=rf"Row id {wrong[-1]} is not in \[0, 5\) for Variable 'e'"):
            client.push(rows_push(wrong))
        with pytest.raises(InvalidArgumentError, match=f"Row id {wrong[-1]} is not in"):
            client.push(rows_push([0], read=wrong))
    assert state(client) == before
    for count in range(2):
        sent.clear()
        expected.push([4])
        client.push(rows_push([4]))
        assert any(map(is_told, sent)) == (count == 0), "what was refused is told anew"
    assert state(client)["e"] == expected.e.tolist()


def test_rows_of_the_wrong_shape_are_refused_by_name_under_a_known_layout(connected):
    client = connected(LocalPS(1))
    initialize(client)
    push = rows_push([1])
    client.push(rows_push([1]))
    push.ops[1].value = np.ones((2, 2), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"has shape \[2, 2\]"):
        client.push(push)
    push.ops[1].value = np.ones((1, 2), np.float64)
    with pytest.raises(InvalidArgumentError, match="has dtype float64"):
        client.push(push)
    assert client.global_steps() == {"global_step": 1}


def test_a_layout_is_looked_at_anew_after_a_declaration(shards, connected):
    client, expected = connected(LocalPS(shards)), Expected()
    initialize(client)
    for ids in ROWS:
        expected.push(ids)
        client.push(rows_push(ids))
        client.declare([VariableDecl(f"late{len(ids)}", "float32", (2,), shards - 1)], [])
    assert state(client)["e"] == expected.e.tolist()


def test_the_same_layout_may_have_other_variables_and_rows_that_repeat(shards, connected):
    """A client's layout says less than it seems to where rows are merged or a Variable is split: it is told anew."""
    client, expected = connected(LocalPS(shards)), Expected()
    initialize(client)
    sent = watched(client)
    pushes = [
        ([change([1, 2])], True),
        ([change([3])], False),
        ([change([3, 4], unique=True)], True),
        ([change([0, 1], unique=True)], False),
        ([change([2]), change([2], unique=True)], True),
        ([change([1]), change([1], unique=True)], False),
    ]
    for ops, told in pushes:
        sent.clear()
        for op in ops:
            expected.push(op.indices)
        client.push(Push(ops, list(STEP), list(USES), layout="a"))
        assert any(map(is_told, sent)) == told
    for names in (["e", "e", "b"], ["e", "b", "b"]):
        reads = [Read(name, np.array([1]) if name == "e" else None) for name in names]
        values = client.push(Push([change([0])], list(STEP), list(USES), reads, layout="b")).values
        expected.push([0])
        assert [value.shape for value in values] == [(1, 2) if name == "e" else () for name in names]
    assert state(client)["e"] == expected.e.tolist()


def test_a_number_for_all_elements_beside_rows_is_told_each_time(connected):
    client, expected = connected(LocalPS(1)), Expected()
    initialize(client)
    for count, ids in enumerate(ROWS * 2):
        push = rows_push(ids)
        if count % 3:
            push.ops[0].value, push.ops[0].fill = None, -1.0
        expected.push(ids)
        client.push(push)
    assert state(client)["w"] == [RATE * 2 * len(ROWS)] * 3
    assert state(client)["e"] == expected.e.tolist()


def test_ids_go_in_half_the_bytes_as_they_were_told(connected):
    client = connected(LocalPS(1))
    client.declare([VariableDecl("table", "float32", (1000,))], [])
    client.push(Push([Op(OpKind.ASSIGN, "table", np.arange(1000, dtype=np.float32))]))
    sent = watched(client)

    def read(ids):
        bytes_before = client.traffic[0]
        (rows,) = client.push(Push(reads=[Read("table", np.array(ids, np.int64))], layout="r")).values
        np.testing.assert_array_equal(rows, np.array(ids, np.float32))
        return client.traffic[0] - bytes_before

    assert read(range(300)) == 300 * 4
    assert read(range(100)) == 100 * 4
    assert read(range(1, 300)) == 299 * 4
    assert [is_told(message) for message in sent] == [True, False, False]
    with pytest.raises(InvalidArgumentError, match="Row id -3 is not in"):
        read([-3, 5])


def test_a_push_that_the_run_refuses_may_be_told_again(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    client.open([StopLimit("global_step", last_step=0)])
    assert client.push(rows_push([1])).outcome.kind is OutcomeKind.REFUSED_DONE
    client.open([StopLimit("global_step", last_step=9)])
    for ids in ROWS:
        client.push(rows_push(ids))
    assert client.global_steps() == {"global_step": len(ROWS)}


def test_packed_pushes_of_rows_are_told_all_each_time(connected):
    client, expected = connected(LocalPS(1), wire=WireOptions(dtype="bfloat16")), Expected()
    initialize(client)
    sent = watched(client)
    for ids in ROWS:
        expected.push(ids)
        client.push(rows_push(ids))
    assert not any(message.known_layout for message in sent)
    assert state(client)["e"] == expected.e.tolist()


def test_rows_of_a_split_variable_go_to_the_parts_that_have_them(connected):
    client = connected(LocalPS(3))
    initialize(client)
    parts = tuple(RowRange(at, 2 * at, 2 * at + 2) for at in range(3))
    sgd = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(RATE)}, {"table": ()})
    client.declare([VariableDecl("table", "float32", (6,), trainable=True, parts=parts)], [sgd])
    client.push(Push([Op(OpKind.ASSIGN, "table", np.zeros(6, np.float32))]))
    sent = watched(client)
    table, choice = np.zeros(6, np.float32), random.Random(7)
    for _ in range(60):
        ids, read = ([choice.randrange(6) for _ in range(choice.randrange(4))] for _ in "ab")
        np.add.at(table, np.array(ids, np.int64), np.float32(RATE))
        push = Push([change(ids, "table", ())], list(STEP), list(USES), [Read("table", np.array(read, np.int64))])
        push.layout = "split"
        np.testing.assert_array_equal(client.push(push).values[0], table[read])
    assert any(message.known_layout and message.rows for message in sent)
    assert client.global_steps() == {"global_step": 60}


def test_a_client_knows_no_more_layouts_than_some(connected):
    client, expected = connected(LocalPS(1)), Expected()
    initialize(client)
    for _ in range(2):
        for layout in range(150):
            expected.push([layout % 5])
            client.push(rows_push([layout % 5], layout=layout))
    assert state(client)["e"] == expected.e.tolist()
    assert len(client._protocol.messages._splits) <= 64

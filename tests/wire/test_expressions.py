"""Closed expressions: TensorFlow's arithmetic in float64, and no surprises from strangers (rung 1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from globalstep.errors import InvalidArgumentError
from globalstep.wire.expressions import OPERATIONS, Expr, constant, evaluate, names_in, step, variable

NAMES = {"global_step": 20_000_001.0, "lr": 0.5}
CASES = [
    ("add", (1, 2), 3), ("sub", (1, 2), -1), ("mul", (3, 4), 12), ("div", (1, 4), 0.25),
    ("pow", (2, 0.5), math.sqrt(2)),
    ("min", (3, 4), 3), ("max", (3, 4), 4), ("neg", (3,), -3), ("floor", (-1.5,), -2), ("ceil", (1.2,), 2),
    ("exp", (1,), math.e), ("log", (math.e,), 1), ("sqrt", (9,), 3), ("cos", (0,), 1), ("sin", (0,), 0),
    ("abs", (-2,), 2),
    ("less", (1, 2), 1), ("less_equal", (2, 2), 1), ("equal", (1, 2), 0), ("where", (0, 5, 6), 6),
    ("where", (1, 5, 6), 5),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "value"), CASES)
def test_every_operation(op, args, value):
    assert evaluate(Expr(op, tuple(map(constant, args))), {}) == pytest.approx(value)


def test_every_operation_is_tested():
    assert {op for op, _, _ in CASES} == set(OPERATIONS)


def test_steps_are_exact_beyond_what_float32_can_hold():
    assert evaluate(Expr("sub", (step("global_step"), constant(20_000_000))), NAMES) == 1.0


def test_where_evaluates_only_the_branch_it_takes():
    assert evaluate(Expr("where", (constant(1), variable("lr"), variable("nowhere"))), NAMES) == 0.5


@given(st.sampled_from(sorted(OPERATIONS)), st.lists(st.floats(), min_size=3, max_size=3))
def test_no_number_makes_an_operation_fail(op, numbers):
    count = OPERATIONS[op][0]
    assert isinstance(evaluate(Expr(op, tuple(map(constant, numbers[:count]))), {}), float)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (step("missing"), "missing"),
        (Expr("import", (constant(1),)), "Unknown operation 'import'"),
        (Expr("add", (constant(1),)), "1 operands"),
    ],
)
def test_what_is_unknown_is_named(expr, text):
    with pytest.raises(InvalidArgumentError, match=text):
        evaluate(expr, NAMES)


def test_names_in():
    assert list(names_in(Expr("add", (step("a"), Expr("neg", (variable("b"),)))))) == ["a", "b"]

import numpy as np
import pytest
from evaluate import evaluate

from globalstep.tf1.graph.graph import GraphKeys
from globalstep.tf1.ops import array_ops as a
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import indexing_ops as ix
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.ops.random_ops import random_normal
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.expressions import evaluate as evaluate_expr
from globalstep.wire.expressions import names_in


def rate_and_step():
    return Variable(np.float64(0.0), name="rate"), Variable(np.int64(0), trainable=False, name="step", is_step=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda v, s: v,
        lambda v, s: a.identity(v) + 1.0,
        lambda v, s: 2.0 - v * 3.0 / (v + 4.0),
        lambda v, s: v**2.0,
        lambda v, s: -v,
        lambda v, s: m.minimum(v, 0.1) + m.maximum(v, 0.3),
        lambda v, s: v * m.cast(s, "float64"),
        lambda v, s: v * m.cast(s // 3, "float64") + m.cast(s % 3, "float64"),
        lambda v, s: m.cast(m.cast(s, "float64") / 2.0, "int64"),
        lambda v, s: m.cast(-m.cast(s, "float64") / 2.0, "int64"),
        lambda v, s: m.rsqrt(m.to_double(s) + 1.0) + m.sqrt(v) + m.square(v) + m.reciprocal(v + 1.0),
        lambda v, s: m.exp(v) + m.log(v + 1.0) + m.sin(v) + m.cos(v) + m.abs(v) + m.sigmoid(v),
        lambda v, s: m.floor(v * 10.0) + m.ceil(v * 10.0) + m.squared_difference(v, 2.0),
        lambda v, s: m.add_n([v, v, v * 2.0]),
        lambda v, s: ix.where(s < 5, v, v * 2.0),
        lambda v, s: ix.where((s >= 5) & ~(s > 8) | m.equal(s, 1), v, v * 2.0),
        lambda v, s: ix.where(m.not_equal(s, 7), v, 0.0),
        lambda v, s: m.div(v, 4.0) + c.zeros([], "float64") + c.fill([], np.float64(2)),
        lambda v, s: a.stop_gradient(v) * 2.0,
    ],
)
@pytest.mark.parametrize(("value", "number"), [(0.25, 0), (0.5, 7), (3.0, 1), (1.5, 12)])
def test_an_expression_gives_what_the_node_gives(build, value, number):
    v, s = rate_and_step()
    node = build(v, s)
    expr = lower(node)
    assert set(names_in(expr)) <= {"rate", "step"}
    found = evaluate_expr(expr, {"rate": value, "step": number})
    assert found == pytest.approx(float(evaluate(node, {v: value, s: number})), rel=1e-12)


def test_what_a_worker_must_compute_is_not_lowered():
    v, _ = rate_and_step()
    local = Variable(1.0, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
    for node in (
        c.placeholder("float32", []),
        v * c.placeholder("float64", []),
        random_normal([]),
        Variable([1.0, 2.0])[0],
        Variable([1.0, 2.0]),
        local,
        v.assign(1.0),
        m.tanh(v),
        c.constant("text"),
        m.cast(v, "bool"),
    ):
        assert lower(node) is None


def test_constants_are_lowered():
    assert evaluate_expr(lower(c.constant(2)), {}) == 2
    assert evaluate_expr(lower(c.constant(True)), {}) == 1
    assert lower(c.constant([1.0])) is None

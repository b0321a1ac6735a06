"""Fewer bytes between worker and PS: what is rounded, what is thinned out, and what stays exact (rungs 1 to 3)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from served_tasks import starting

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import drop, named
from globalstep.tf1.graph.graph import Graph
from globalstep.wire.declarations import Op, OpKind
from globalstep.wire.wire_options import WireOptions, wire_options_of
from globalstep.worker.protocol.error_feedback import ErrorFeedback

SIZE = 4096


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dtype=int4", "dtype is 'int4'"),
        ("top_k=0", "top_k is 0"),
        ("top_k=x", "a number"),
        ("error_feedback=yes", "true or false"),
        ("speed=1", "no 'speed'"),
    ],
)
def test_options_that_cannot_be_are_refused(text, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        WireOptions.from_text(text)


def test_a_configuration_beats_the_environment():
    environ = {"GLOBALSTEP_WIRE": "dtype=float16, top_k=0.5"}
    assert wire_options_of(None, environ) == WireOptions("float16", 0.5)
    feedback = {"GLOBALSTEP_WIRE": "dtype=bfloat16,error_feedback=true"}
    assert wire_options_of(None, feedback) == WireOptions("bfloat16", error_feedback=True)
    assert wire_options_of(gs.ConfigProto(wire=WireOptions("bfloat16")), environ) == WireOptions("bfloat16")
    with pytest.raises(InvalidArgumentError, match=r"must be a gs\.WireOptions"):
        wire_options_of(gs.ConfigProto(wire="bfloat16"), {})


def gradient(values, variable="w"):
    return Op(OpKind.APPLY, variable, value=np.asarray(values, np.float32), optimizer="o")


def thinned(feedback, ops):
    """What is sent of changes that are applied."""
    sent, rest = feedback.thin(ops)
    feedback.keep(rest)
    return sent


FORMS = [pb.FORM_RAW, pb.FORM_BFLOAT16, pb.FORM_FLOAT16, pb.FORM_INT8]


@pytest.mark.parametrize("fraction", [0.1, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_sent_and_what_is_kept_are_the_gradient_and_what_was_kept_to_the_bit(form, fraction):
    feedback, rng = ErrorFeedback(fraction, form), np.random.default_rng(4)
    before = np.zeros((SIZE // 64, 64), np.float32)
    for _ in range(30):
        value = (rng.normal(size=before.shape) * 10 ** rng.uniform(-3, 2, (len(before), 1))).astype(np.float32)
        (op,), rest = feedback.thin([gradient(value)])
        feedback.keep(rest)
        left = rest.get(("o", "w"), np.zeros_like(value))
        assert op.value.dtype == left.dtype == np.float32
        np.testing.assert_array_equal(op.value.astype(float) + left, (value + before).astype(float))
        before = left
    assert before.any() == (form != pb.FORM_RAW or fraction < 1.0)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (33,), (2, 17)])
def test_gradients_of_all_shapes_are_rounded_with_feedback(shape):
    feedback = ErrorFeedback(1.0, pb.FORM_INT8)
    value, sent = np.random.default_rng(5).normal(size=shape), np.zeros(shape)
    for _ in range(64):
        (op,) = thinned(feedback, [gradient(value)])
        assert op.value.shape == shape
        sent = sent + op.value
    # What was sent is off by one rounding, however often there was one.
    np.testing.assert_allclose(sent, 64 * value, atol=0.05)


@pytest.mark.parametrize("form", FORMS)
def test_what_was_not_applied_leaves_what_was_kept_as_it_was(form):
    feedback, rng = ErrorFeedback(0.1, form), np.random.default_rng(6)
    first, second, third = (rng.normal(size=SIZE) for _ in range(3))
    thinned(feedback, [gradient(first)])
    (once,), rest = feedback.thin([gradient(second)])
    feedback.thin([gradient(third)])
    (again,), _ = feedback.thin([gradient(second)])
    np.testing.assert_array_equal(once.value, again.value)
    feedback.keep(rest)
    feedback.clear()
    (anew,), _ = feedback.thin([gradient(first)])
    (as_first,), _ = ErrorFeedback(0.1, form).thin([gradient(first)])
    np.testing.assert_array_equal(anew.value, as_first.value)


def test_what_top_k_does_not_send_now_it_sends_later():
    top_k, rng = ErrorFeedback(0.1), np.random.default_rng(3)
    given, sent = np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(50):
        value = rng.normal(size=SIZE)
        (op,) = thinned(top_k, [gradient(value)])
        assert 0.08 < np.count_nonzero(op.value) / SIZE < 0.12
        given += np.float32(value)
        sent += op.value
    for _ in range(40):
        sent += thinned(top_k, [gradient(np.zeros(SIZE))])[0].value
    np.testing.assert_allclose(sent, given, atol=1e-4)


def test_the_largest_are_sent_and_each_variable_has_its_own_rest():
    top_k = ErrorFeedback(0.25)
    value = np.arange(SIZE) - SIZE / 2
    first, second = thinned(top_k, [gradient(value), gradient(-value, "v")])
    assert abs(first.value[first.value != 0]).min() > abs(value[first.value == 0]).max() - 1
    np.testing.assert_array_equal(second.value, -first.value)


def test_small_gradients_rows_and_assigns_are_not_thinned():
    ops = [
        gradient(np.ones(10)),
        Op(OpKind.APPLY, "e", value=np.ones((SIZE, 1), np.float32), indices=np.arange(SIZE), optimizer="o"),
        Op(OpKind.ASSIGN, "w", value=np.ones(SIZE, np.float32)),
    ]
    assert all(after is before for after, before in zip(thinned(ErrorFeedback(0.01), ops), ops, strict=True))


def test_what_is_no_number_is_not_held_back():
    value = np.zeros(SIZE)
    value[7] = np.nan
    for feedback in (ErrorFeedback(0.01), ErrorFeedback(1.0, pb.FORM_INT8)):
        assert np.isnan(thinned(feedback, [gradient(value)])[0].value[7])
        assert np.isfinite(thinned(feedback, [gradient(np.zeros(SIZE))])[0].value).all()


@pytest.fixture(params=["1 task", "2 tasks", "auto", "unix", "grpc", "tcp"])
def target(request, monkeypatch):
    if request.param.endswith(("task", "tasks")):
        named("wire", int(request.param[0]))
        yield "local://wire"
        drop("wire")
        return
    monkeypatch.setenv("GLOBALSTEP_TRANSPORT", request.param)
    with starting() as serving:
        yield "grpc://" + ",".join(server.address for server in serving(2))


def build():
    w = gs.Variable(np.full((64, 64), 1.0 + 2**-12, np.float32), name="w")
    odd = gs.Variable(np.full(2001, 0.5, np.float32), name="odd")
    table = gs.Variable(np.ones((300, 16), np.float32), name="table")
    ids, by = gs.placeholder(gs.int64, [None]), gs.placeholder(gs.float32, [])
    step = gs.train.get_or_create_global_step()
    loss = by * (gs.reduce_sum(w) + gs.reduce_sum(odd) + gs.reduce_sum(gs.gather(table, ids)))
    return w, odd, table, ids, by, step, gs.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_and_values_are_rounded_and_the_ps_keeps_float32(target, dtype, tmp_path):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    with Graph().as_default(), gs.Session(target, config=gs.ConfigProto(wire=WireOptions(dtype))) as session:
        w, _, _, ids, by, step, train = build()
        session.run(gs.global_variables_initializer())
        before = session.cluster.traffic[1]
        session.run(w)
        assert session.cluster.traffic[1] - before == 64 * 64 * 2
        # An initial value arrives as it is, and is rounded only as it is read.
        assert session.run(w)[0, 0] == np.float32(kind(1.0 + 2**-12)) == 1.0
        exact, rate = 1.0 + 2**-12, np.float32(kind(0.1))
        for count in range(1, 4):
            session.run(train, {ids: [5, 299, 5], by: 0.1})
            exact -= rate
            assert session.run(step) == count
        np.testing.assert_array_equal(session.run(w), np.full((64, 64), np.float32(kind(np.float32(exact)))))
        path = gs.train.Saver().save(session, str(tmp_path / "model"))
        saved = gs.train.load_variable(path, "w")
        np.testing.assert_allclose(saved, exact, rtol=1e-6)
        assert saved[0, 0] != session.run(w)[0, 0]
        np.testing.assert_allclose(gs.train.load_variable(path, "odd"), 0.5 - 3 * rate, rtol=1e-6)
        rows = gs.train.load_variable(path, "table")
        np.testing.assert_allclose(rows[[0, 5, 299], 0], [1.0, 1 - 6 * rate, 1 - 3 * rate], rtol=0.01)


def test_top_k_sends_fewer_bytes_and_loses_nothing(target):
    bytes_sent = {}
    for top_k in (1.0, 0.05):
        config = gs.ConfigProto(wire=WireOptions(top_k=top_k))
        with Graph().as_default(), gs.Session(target, config=config) as session:
            w = gs.Variable(np.zeros(SIZE, np.float32), name=f"w{top_k}")
            pull = gs.placeholder(gs.float32, [SIZE])
            train = gs.train.GradientDescentOptimizer(1.0).minimize(-gs.reduce_sum(w * pull))
            session.run(gs.global_variables_initializer())
            before = session.cluster.traffic[0]
            direction = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
            for _ in range(5):
                session.run(train, {pull: direction})
            bytes_sent[top_k] = session.cluster.traffic[0] - before
            for _ in range(200 if top_k < 1 else 0):
                session.run(train, {pull: np.zeros(SIZE)})
            np.testing.assert_allclose(session.run(w), 5 * direction, rtol=1e-5, atol=1e-5)
    assert bytes_sent[0.05] < 0.15 * bytes_sent[1.0]


def least_sent(session, fetches, feeds, runs):
    """Give the bytes that a run sends, of several the least: one may be tried again."""
    sent = []
    for _ in range(runs):
        before = session.cluster.traffic[0]
        session.run(fetches, feeds)
        sent.append(session.cluster.traffic[0] - before)
    return min(sent)


def test_int8_takes_a_quarter_of_the_bytes_and_its_errors_do_not_add_up(target, tmp_path):
    with Graph().as_default(), gs.Session(target, config=gs.ConfigProto(wire=WireOptions("int8"))) as session:
        w = gs.Variable(np.zeros(SIZE, np.float32), name="w")
        table = gs.Variable(np.zeros((300, 16), np.float32), name="table")
        step, by = gs.train.get_or_create_global_step(), gs.placeholder(gs.float32, [SIZE])
        loss = gs.reduce_sum(w * by) + gs.reduce_sum(gs.gather(table, [5, 7]) * [[0.001], [100.0]])
        train = gs.train.GradientDescentOptimizer(-1.0).minimize(loss, global_step=step)
        session.run(gs.global_variables_initializer())
        direction = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
        # A byte each and one for 32 of the one, 2 bytes each of the rows, their ids.
        sent = least_sent(session, train, {by: direction}, 32)
        assert SIZE * 33 / 32 + 2 * 32 < sent < 0.27 * 4 * SIZE
        path = gs.train.Saver().save(session, str(tmp_path / "model"))
        np.testing.assert_allclose(gs.train.load_variable(path, "w"), 32 * direction, atol=0.04)
        rows = gs.train.load_variable(path, "table")
        np.testing.assert_allclose(rows[[5, 7], 3], [0.032, 3200], rtol=0.01)


def test_gradients_beside_an_assignment_are_packed_and_what_is_assigned_is_exact(target, tmp_path):
    with Graph().as_default(), gs.Session(target, config=gs.ConfigProto(wire=WireOptions("int8"))) as session:
        w, mean = gs.Variable(np.zeros(SIZE, np.float32), name="w"), gs.Variable(np.zeros(77, np.float32), name="mean")
        given = gs.placeholder(gs.float32, [77])
        train = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(w), var_list=[w])
        exact = np.random.default_rng(2).normal(size=77).astype(np.float32)
        session.run(gs.global_variables_initializer())
        both = gs.group(train, gs.assign(mean, given))
        assert least_sent(session, both, {given: exact}, 3) < 0.3 * 4 * SIZE + 4 * 80
        path = gs.train.Saver().save(session, str(tmp_path / "model"))
        np.testing.assert_array_equal(gs.train.load_variable(path, "mean"), exact)
        np.testing.assert_array_equal(session.run(w), np.full(SIZE, -3.0))


def test_without_options_nothing_is_packed(target):
    with Graph().as_default(), gs.Session(target) as session:
        w = build()[0]
        session.run(gs.global_variables_initializer())
        assert session.run(w)[0, 0] == np.float32(1.0 + 2**-12)

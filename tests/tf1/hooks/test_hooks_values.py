import traceback

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.errors import OutOfRangeError
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.values import (
    FeedFnHook,
    FinalOpsHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
)
from globalstep.tf1.ops.constant_ops import constant
from globalstep.worker.client.client import ClusterClient


class Session:
    """Gives the same for every run, and notes what it was asked."""

    def __init__(self, value):
        self.value = value
        self.runs = []

    def run(self, fetches, feed_dict=None):
        self.runs.append((fetches, feed_dict))
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def one_run(hook, results, session=None):
    """Give (the hook's request, whether it asked for a stop)."""
    context = SessionRunContext(SessionRunArgs(None), session)
    request = hook.before_run(context)
    hook.after_run(context, SessionRunValues(results if request is not None else None))
    return request, context.stop_requested


@pytest.fixture
def logged(caplog):
    with caplog.at_level("INFO", "globalstep"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_base_hook_does_nothing():
    hook = SessionRunHook()
    hook.begin()
    hook.after_create_session(None, None)
    assert one_run(hook, None) == (None, False)
    hook.end(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either at_end and/or exactly one of every_n_iter and every_n_secs must be provided."),
        (
            {"every_n_iter": 1, "every_n_secs": 1},
            "either at_end and/or exactly one of every_n_iter and every_n_secs must be provided.",
        ),
        ({"every_n_iter": 0}, "invalid every_n_iter=0."),
        ({"every_n_iter": -10}, "invalid every_n_iter=-10."),
    ],
)
def test_logging_needs_one_interval(arguments, message):
    with pytest.raises(ValueError) as error:
        LoggingTensorHook(["t"], **arguments)
    assert str(error.value) == message


def test_logging_every_n_local_runs_from_the_first(logged):
    clock = ManualClock()
    node = constant(1.0, name="t")
    hook = LoggingTensorHook({"loss": node}, every_n_iter=3, clock=clock)
    hook.begin()
    requests = []
    for value in range(7):
        requests.append(one_run(hook, {"loss": np.float32(value + 0.1)})[0] is not None)
        clock.advance(0.5)
    assert requests == [True, False, False, True, False, False, True]
    assert logged() == ["loss = 0.1", "loss = 3.1 (1.500 sec)", "loss = 6.1 (1.500 sec)"]


def test_logging_every_n_secs(logged):
    clock = ManualClock()
    constant(1.0, name="t")
    hook = LoggingTensorHook(["t:0"], every_n_secs=1.0, clock=clock)
    hook.begin()
    for _ in range(5):
        one_run(hook, {"t:0": 2.0})
        clock.advance(0.4)
    assert logged() == ["t:0 = 2.0", "t:0 = 2.0 (1.200 sec)"]


def test_logging_at_the_end_only(logged):
    node = constant(1.0)
    hook = LoggingTensorHook({"a": node}, at_end=True)
    hook.begin()
    assert one_run(hook, None) == (None, False)
    session = Session({"a": 5.0})
    hook.end(session)
    assert session.runs[0][0] == {"a": node}
    assert logged() == ["a = 5.0"]


def test_logging_sorts_tags_and_takes_a_formatter(logged):
    a, b = constant(1.0), constant(2.0)
    hook = LoggingTensorHook({"b": b, "a": a}, every_n_iter=1)
    hook.begin()
    one_run(hook, {"a": 1.0, "b": 2.0})
    hook = LoggingTensorHook({"a": a}, every_n_iter=1, formatter=lambda values: f"{values['a']:.2f} at step 1")
    hook.begin()
    one_run(hook, {"a": 1.39697})
    assert logged() == ["a = 1.0, b = 2.0", "1.40 at step 1"]


def test_logging_survives_a_refused_run(logged):
    hook = LoggingTensorHook({"a": constant(1.0)}, every_n_iter=1)
    hook.begin()
    one_run(hook, None)
    assert logged() == []


@pytest.fixture
def diverging():
    """A model whose loss is NaN in its second run, since the first made its Variable NaN, and a session of it."""
    w, _ = gs.Variable([1.0, 2.0], name="w"), gs.Variable(3.0, name="b")
    step = gs.train.get_or_create_global_step()
    factor = gs.placeholder(gs.float32, [])
    loss = gs.reduce_sum(w * factor, name="loss")
    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    cluster = ClusterClient(LocalPS(1).transports(), task="/job:worker/task:1")
    with gs.Session(cluster=cluster) as session:
        session.run(gs.global_variables_initializer())
        yield session, loss, lambda by: session.run([loss, train_op], {factor: by})[0]
    cluster.close()


KNOWN = "'loss:0' was NaN in a run of /job:worker/task:1, at global_step {}. "


def test_nan_stops_training_by_an_error(diverging):
    session, loss, run = diverging
    hook = NanTensorHook(loss)
    assert one_run(hook, np.float32(np.inf), session) == (SessionRunArgs(loss), False)
    assert one_run(hook, run(2.0), session)[1] is False
    run(np.nan)
    with pytest.raises(NanLossDuringTrainingError) as raised:
        one_run(hook, run(1.0), session)
    assert str(raised.value) == f"NaN loss during training. {KNOWN.format(3)}NaN is in Variable 'w'."
    assert traceback.format_exception_only(raised.value)[0].startswith(
        "globalstep.train.NanLossDuringTrainingError: NaN"
    )
    assert gs.train.NanLossDuringTrainingError is NanLossDuringTrainingError
    assert str(NanLossDuringTrainingError()) == "NaN loss during training."


def test_nan_can_ask_for_a_stop_instead(diverging, logged):
    session, _, run = diverging
    hook = NanTensorHook("loss:0", fail_on_nan_loss=False)
    assert one_run(hook, run(1.0), session)[1] is False
    assert one_run(hook, np.float32(np.nan), session)[1] is True
    whence = "No trainable Variable held NaN right after it: look at what the run was fed."
    assert logged() == [f"Model diverged with loss = NaN. {KNOWN.format(1)}{whence}"]


def test_final_ops_are_evaluated_at_the_end():
    hook = FinalOpsHook(["a", "b"], {"x": 1})
    assert hook.final_ops_values is None
    session = Session([1, 2])
    hook.end(session)
    assert hook.final_ops_values == [1, 2]
    assert session.runs == [(["a", "b"], {"x": 1})]
    nothing = Session(0)
    FinalOpsHook(None).end(nothing)
    assert nothing.runs == []


def test_final_ops_that_depend_on_the_input_say_so(logged):
    with pytest.raises(OutOfRangeError):
        FinalOpsHook("a").end(Session(OutOfRangeError("end of input")))
    assert "dependency back to some input source" in logged()[0]


def test_feeds_come_from_the_function():
    values = iter([{"x": 1}, {"x": 2}])
    hook = FeedFnHook(lambda: next(values))
    assert one_run(hook, None)[0] == SessionRunArgs(None, {"x": 1})
    assert one_run(hook, None)[0] == SessionRunArgs(None, {"x": 2})

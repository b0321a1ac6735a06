"""What a run's policy may be, where it comes from, and that every PS task is told it."""

from __future__ import annotations

import pytest

import globalstep as gs
from globalstep.cluster.run_policy import RunPolicy, policy_of
from globalstep.errors import InvalidArgumentError
from globalstep.wire import codec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("durability=disk", "durability is 'disk'"),
        ("staleness=drop,max_staleness=-1", "cannot be negative"),
        ("max_staleness=many", "must be a number"),
        ("keep_log=perhaps", "must be true or false"),
        ("speed=11", "has no 'speed'; it has durability"),
        ("keep_log", "with durability"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(text, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        RunPolicy.from_text(text)


def test_a_configuration_beats_the_environment():
    waits = {"GLOBALSTEP_RUN_POLICY": "staleness=wait,max_staleness=4"}
    assert policy_of(None, waits) == RunPolicy(staleness="wait", max_staleness=4, on_nan="apply")
    environ = {"GLOBALSTEP_RUN_POLICY": "staleness=scale, durability=log"}
    assert policy_of(None, environ) == RunPolicy(staleness="scale", on_nan="apply", durability="log")
    assert policy_of(gs.ConfigProto(), environ) == RunPolicy(staleness="scale", on_nan="apply", durability="log")
    assert policy_of(gs.ConfigProto(run_policy=RunPolicy(on_nan="drop")), environ) == RunPolicy(on_nan="drop")
    assert policy_of(None, {}) == RunPolicy(on_nan="apply")


def test_what_nobody_says_of_gradients_that_are_not_finite_the_caller_decides():
    environ = {"GLOBALSTEP_RUN_POLICY": "staleness=scale"}
    assert policy_of(None, environ, on_nan="drop") == RunPolicy(staleness="scale", on_nan="drop")
    assert policy_of(None, {"GLOBALSTEP_RUN_POLICY": "on_nan=stop"}, on_nan="drop").on_nan == "stop"
    assert policy_of(gs.ConfigProto(run_policy=RunPolicy(on_nan="apply")), {}, on_nan="drop").on_nan == "apply"


def test_a_configuration_with_something_else_in_its_place_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"must be a gs\.RunPolicy"):
        policy_of(gs.ConfigProto(run_policy="log"))


def test_the_policy_crosses_the_wire_as_it_is():
    policy = RunPolicy("log", "drop", 7, "stop", keep_log=True, spread_above=0, split_above=1 << 40)
    assert codec.decode_policy(codec.encode_policy(policy)) == policy
    assert codec.decode_policy(codec.encode_policy(RunPolicy())) == RunPolicy()


def test_ps_tasks_keep_the_policy_of_who_began_the_run():
    config = gs.ConfigProto(run_policy=RunPolicy(staleness="drop", max_staleness=3, on_nan="apply"))
    with gs.Graph().as_default(), gs.Session(config=config) as sess:
        gs.Variable(1.0)
        sess.run(gs.global_variables_initializer())
        (status,) = sess.cluster.refresh()
        assert codec.decode_policy(status.policy) == config.run_policy

"""Faults of messages at random, as the soak has them."""

import os

import pytest
from planned_faults import FAULTS_VARIABLE, TRACE_VARIABLE, faults_of_this_process
from random_faults import START_VARIABLE, RandomFaults, RandomPlan, parse_random

from globalstep.errors import UnavailableError
from globalstep.runtime.faults import AFTER, APPLY, BEFORE, CUT, REPLY, SEND, ConnectionCutError, TransportFault


def what_happens(faults, point, method):
    try:
        return faults.at(point, method)
    except (UnavailableError, ConnectionCutError) as error:
        return type(error)


def test_each_point_has_its_faults_and_each_is_traced(tmp_path):
    faults = RandomFaults(RandomPlan(1, 1.0), "worker:0", str(tmp_path / "trace"))
    seen = {point: {what_happens(faults, point, "stage") for _ in range(100)} for point in (SEND, REPLY, BEFORE, AFTER)}
    assert seen[SEND] == {TransportFault.TWICE, TransportFault.LATE, TransportFault.CUT, UnavailableError}
    assert seen[REPLY] == {TransportFault.CUT, UnavailableError}
    assert seen[BEFORE] == seen[AFTER] == {ConnectionCutError}
    lines = (tmp_path / "trace").read_text().splitlines()
    assert len(lines) == 400
    assert lines[-1] == f"worker:0 cut at stage.after pid={os.getpid()}"


def test_within_a_critical_section_there_are_none(tmp_path):
    faults = RandomFaults(RandomPlan(1, 1.0), "ps:0", str(tmp_path / "trace"))
    assert [faults.at(BEFORE, method) for method in (APPLY, CUT)] == [None, None]
    assert not (tmp_path / "trace").exists()


def test_the_seed_the_task_and_the_start_decide(tmp_path):
    def sequence(seed, task, start):
        faults = RandomFaults(RandomPlan(seed, 0.3), task, str(tmp_path / "trace"), start)
        return [what_happens(faults, SEND, "stage") for _ in range(60)]

    assert sequence(1, "ps:0", 0) == sequence(1, "ps:0", 0)
    assert None in sequence(1, "ps:0", 0)
    others = [sequence(2, "ps:0", 0), sequence(1, "ps:1", 0), sequence(1, "ps:0", 1)]
    assert sequence(1, "ps:0", 0) not in others


def test_the_environment_asks_for_them(tmp_path):
    environ = {
        "TF_CONFIG": '{"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 0}}',
        FAULTS_VARIABLE: "random seed=3 rate=1",
        TRACE_VARIABLE: str(tmp_path / "trace"),
        START_VARIABLE: "2",
    }
    with pytest.raises(ConnectionCutError, match="injected: ps:0 cut at stage.before"):
        faults_of_this_process(environ).at(BEFORE, "stage")


@pytest.mark.parametrize("plan", ["random", "random seed=x rate=0.1", "random seed=1 rate=2", "random seed=1"])
def test_a_rate_that_is_none_is_refused(plan):
    with pytest.raises(ValueError, match="is not 'random seed=S rate=P'"):
        parse_random(plan)

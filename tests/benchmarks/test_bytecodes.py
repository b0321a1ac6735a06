"""What a step of a session, of rows, and one made of several workers' contributions takes, stays within its budget."""

import sys
from dataclasses import replace

import pytest

from benchmarks.bytecodes import ROW_BUDGETS, SESSION_BUDGETS, SYNCHRONOUS_BUDGETS, count
from benchmarks.harness.counted import case_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the budgets are bytecodes of CPython 3.11"),
    pytest.mark.skipif(sys.gettrace() is not None, reason="counts with sys.settrace, as what measures coverage does"),
]


@pytest.mark.parametrize("spec", SYNCHRONOUS_BUDGETS)
def test_a_synchronous_step_is_within_its_budget(spec):
    (of_ps, _), (of_workers, _) = count(replace(case_of(spec), workers=2)).values()
    most_of_ps, most_of_workers = SYNCHRONOUS_BUDGETS[spec]
    # It counts at all: at least what two plain pushes over one PS task take.
    assert of_ps > 7000
    assert of_workers > 4500
    assert of_ps <= most_of_ps
    assert of_workers <= most_of_workers


@pytest.mark.parametrize("spec", SESSION_BUDGETS)
def test_a_step_of_a_session_is_within_its_budget(spec):
    of_client, of_session = (count(case_of(spec), form)["worker"][0] for form in ("auto", "session"))
    # It counts at all.
    assert of_client > 2000
    assert of_client < of_session <= of_client + SESSION_BUDGETS[spec]


@pytest.mark.parametrize("spec", ROW_BUDGETS)
def test_a_step_of_rows_is_within_its_budget(spec):
    (of_ps, _), (of_worker, _) = count(case_of(spec)).values()
    most_of_ps, most_of_worker = ROW_BUDGETS[spec]
    # It counts at all: at least what a dense push of few numbers takes.
    assert of_ps > 3500
    assert of_worker > 2500
    assert of_ps <= most_of_ps
    assert of_worker <= most_of_worker

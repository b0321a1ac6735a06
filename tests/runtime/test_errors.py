"""Errors as programs make them."""

import pickle

import pytest

from globalstep import errors


@pytest.mark.parametrize("kind", [errors.OutOfRangeError, errors.ResourceExhaustedError, errors.AbortedError])
def test_a_program_makes_errors_as_tensorflow_s_or_by_the_message(kind):
    for made in (kind("no more"), kind(None, None, "no more"), kind(None, None, message="no more")):
        assert (str(made), made.message, made.op, made.node_def) == ("no more", "no more", None, None)
        assert made.error_code == kind.code
        again = pickle.loads(pickle.dumps(made))
        assert (type(again), str(again)) == (kind, "no more")
    op = object()
    again = kind(None, op, "no more")
    assert again.op is op
    assert type(again)(again.node_def, again.op, again.message).op is op


def test_an_op_error_has_the_code_that_it_is_given():
    assert errors.OpError(None, None, "lost", errors.AbortedError.code).error_code == errors.AbortedError.code
    assert errors.OpError("lost").error_code == errors.UnknownError.code

"""Lines that others cause: few in a while of each kind, however many kinds there are."""

import logging

import pytest

from globalstep.errors import PermissionDeniedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import Authorization, Caller, Role
from globalstep.ps.access.log_limit import LogLimit
from globalstep.runtime.clock import ManualClock


def test_a_kind_has_a_line_now_and_then_and_it_says_how_many_were_left_out():
    clock = ManualClock()
    limit = LogLimit(clock)
    assert [limit.due("a"), limit.due("a"), limit.due("b"), limit.due("a")] == ["", None, "", None]
    clock.advance(10.0)
    assert limit.due("a") == " (2 more since the last such line)"


def test_many_kinds_do_not_clear_what_was_written():
    clock = ManualClock()
    limit = LogLimit(clock)
    written = [limit.due(number) for number in range(5000)]
    assert sum(line is not None for line in written) == 1001
    assert limit.due(0) is None
    clock.advance(10.0)
    assert limit.due(0) is not None


def test_refusals_with_other_words_each_time_are_of_one_kind(caplog):
    authorization = Authorization(ManualClock(), workers_assign=False)
    caller = Caller(Role.WORKER, "ipv4:10.0.0.9:1")
    with caplog.at_level(logging.WARNING):
        for number in range(300):
            request = pb.Request()
            request.push.ops.add(kind=pb.OP_ASSIGN, variable=f"w{number}")
            with pytest.raises(PermissionDeniedError):
                authorization.check_request(caller, request)
    assert caplog.text.count("Refused") == 1

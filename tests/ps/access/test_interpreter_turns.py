"""Threads take short turns in the interpreter while callers are refused."""

import sys

import pytest

from globalstep.ps.access.interpreter_turns import InterpreterTurns
from globalstep.runtime.clock import ManualClock


def test_turns_are_short_from_a_refusal_until_there_was_none_for_a_while():
    refused, lengths, clock = [0], [], ManualClock()
    turns = InterpreterTurns(lambda: refused[0], clock, lengths.append)
    turns.look()
    assert lengths == []
    refused[0] = 3
    turns.look()
    clock.advance(9.0)
    turns.look()
    assert lengths == [0.0005]
    refused[0] = 4
    turns.look()
    clock.advance(9.9)
    turns.look()
    assert lengths == [0.0005]
    clock.advance(0.2)
    turns.look()
    turns.look()
    assert lengths == [0.0005, pytest.approx(sys.getswitchinterval())]
    refused[0] = 5
    turns.look()
    assert lengths[2:] == [0.0005]


def test_what_was_refused_before_it_began_does_not_count():
    lengths = []
    InterpreterTurns(lambda: 7, ManualClock(), lengths.append).look()
    assert lengths == []

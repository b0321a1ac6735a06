import pytest

from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.runtime.clock import ManualClock


def test_exactly_one_interval_is_needed():
    with pytest.raises(ValueError, match=r"^Either every_secs or every_steps should be provided\.$"):
        SecondOrStepTimer()
    with pytest.raises(ValueError, match=r"^Can not provide both every_secs and every_steps\.$"):
        SecondOrStepTimer(every_secs=2.0, every_steps=10)


def test_steps():
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(1)
    timer.update_last_triggered_step(1)
    assert [timer.should_trigger_for_step(step) for step in (1, 2, 3, 4)] == [False, False, False, True]
    assert timer.last_triggered_step() == 1


def test_seconds_from_the_clock():
    clock = ManualClock()
    timer = SecondOrStepTimer(every_secs=1.0, clock=clock)
    assert timer.update_last_triggered_step(1) == (None, None)
    clock.advance(0.5)
    assert not timer.should_trigger_for_step(2)
    clock.advance(0.5)
    assert not timer.should_trigger_for_step(1)
    assert timer.should_trigger_for_step(2)
    assert timer.update_last_triggered_step(4) == (1.0, 3)


def test_reset():
    timer = SecondOrStepTimer(every_steps=3)
    timer.update_last_triggered_step(1)
    timer.reset()
    assert timer.should_trigger_for_step(1)

import gc
import sys
import threading
import weakref

import pytest

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.sessions.looper_thread import LooperThread


@pytest.fixture
def blocked():
    """A thread that runs until the test ends."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="stuck")
    thread.start()
    yield thread
    release.set()
    thread.join()


def test_a_stop_is_seen_by_all():
    coord = Coordinator()
    assert not coord.should_stop()
    coord.request_stop()
    assert coord.should_stop()
    assert coord.wait_for_stop()
    assert coord.wait_for_stop(0.0)


def test_wait_for_stop_gives_up_after_its_timeout():
    clock = ManualClock()
    assert not Coordinator(clock=clock).wait_for_stop(7.0)
    assert clock.monotonic() == 7.0


def test_threads_that_have_ended_are_forgotten():
    coord = Coordinator()
    kept = []
    for _ in range(3):
        thread = threading.Thread(target=str, name="short")
        coord.register_thread(thread)
        thread.start()
        thread.join()
        kept.append(weakref.ref(thread))
    del thread
    gc.collect()
    # The last one is forgotten when the next one comes.
    assert [ref() is None for ref in kept] == [True, True, False]
    coord.request_stop()
    coord.join()


def test_join_waits_for_given_and_registered_threads():
    coord = Coordinator()
    ended = []
    registered = threading.Thread(target=lambda: (coord.wait_for_stop(), ended.append("registered")))
    given = threading.Thread(target=lambda: (coord.wait_for_stop(), ended.append("given")))
    coord.register_thread(registered)
    registered.start()
    given.start()
    coord.request_stop()
    coord.join([given])
    assert sorted(ended) == ["given", "registered"]
    assert coord.joined


def test_join_returns_when_threads_end_without_a_stop():
    coord = Coordinator()
    thread = threading.Thread(target=int)
    thread.start()
    coord.join([thread])
    assert not coord.should_stop()


def test_the_first_error_wins_and_join_raises_it():
    coord = Coordinator()
    coord.request_stop(ValueError("first"))
    coord.request_stop(KeyError("second"))
    with pytest.raises(ValueError, match="first"):
        coord.raise_requested_exception()
    with pytest.raises(ValueError, match="first"):
        coord.join()


def test_an_error_after_a_plain_stop_is_not_recorded():
    coord = Coordinator()
    coord.request_stop()
    coord.request_stop(ValueError("late"))
    coord.join()


def test_exc_info_is_taken_as_the_exception():
    coord = Coordinator()
    try:
        raise InvalidArgumentError("x")
    except InvalidArgumentError:
        coord.request_stop(sys.exc_info())
    with pytest.raises(InvalidArgumentError):
        coord.join()


def test_something_that_is_no_exception_is_reported_as_such():
    coord = Coordinator()
    coord.request_stop("boom")
    with pytest.raises(ValueError, match=r"ex must be .* not 'boom'"):
        coord.join()


def test_clean_exceptions_stop_without_an_error():
    coord = Coordinator()
    coord.request_stop(OutOfRangeError("end"))
    assert coord.should_stop()
    coord.join()


def test_clean_exceptions_can_be_chosen():
    coord = Coordinator(clean_stop_exception_types=(KeyError,))
    coord.request_stop(KeyError("end"))
    coord.join()
    with pytest.raises(OutOfRangeError):
        coord.request_stop(OutOfRangeError("now an error, after join: raised at once"))


def test_after_join_an_error_is_raised_to_who_reports_it():
    coord = Coordinator()
    coord.request_stop()
    coord.join()
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))


def test_clear_stop_starts_anew():
    coord = Coordinator()
    coord.request_stop(ValueError("old"))
    with pytest.raises(ValueError):
        coord.join()
    coord.clear_stop()
    assert not coord.should_stop()
    assert not coord.joined
    coord.request_stop()
    coord.join()


def test_stop_on_exception_records_and_swallows():
    coord = Coordinator()
    with coord.stop_on_exception():
        raise ValueError("in the block")
    with pytest.raises(ValueError, match="in the block"):
        coord.join()


def test_a_thread_that_outlives_the_grace_period_is_named(blocked):
    clock = ManualClock()
    coord = Coordinator(clock=clock)
    coord.request_stop()
    with pytest.raises(RuntimeError, match=r"^Coordinator stopped with threads still running: stuck$"):
        coord.join([blocked], stop_grace_period_secs=10)
    assert 10.0 <= clock.monotonic() < 10.1


def test_live_threads_can_be_ignored(blocked, caplog):
    coord = Coordinator(clock=ManualClock())
    coord.request_stop()
    with caplog.at_level("INFO", "globalstep"):
        coord.join([blocked], stop_grace_period_secs=1, ignore_live_threads=True)
    assert "Coordinator stopped with threads still running: stuck" in caplog.text


def test_the_reported_error_comes_before_the_stragglers(blocked):
    coord = Coordinator(clock=ManualClock())
    coord.request_stop(KeyError("cause"))
    with pytest.raises(KeyError, match="cause"):
        coord.join([blocked], stop_grace_period_secs=1)


def test_looper_calls_its_target_until_the_stop():
    coord = Coordinator()
    calls = []

    def target(a, b):
        calls.append((a, b))
        if len(calls) == 3:
            coord.request_stop()

    LooperThread.loop(coord, None, target, args=(1,), kwargs={"b": 2})
    coord.join()
    assert calls == [(1, 2)] * 3


def test_looper_keeps_its_interval():
    clock = ManualClock()
    coord = Coordinator(clock=clock)
    times = []

    def target():
        times.append(clock.monotonic())
        if len(times) == 3:
            coord.request_stop()

    looper = LooperThread(coord, 5.0, target=target, clock=clock)
    assert looper.daemon
    looper.run()
    assert times == [0.0, 5.0, 10.0]


def test_looper_stops_its_group_on_an_error():
    coord = Coordinator()
    LooperThread.loop(coord, None, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        coord.join()


def test_looper_can_be_subclassed():
    calls = []
    coord = Coordinator()

    class Looper(LooperThread):
        def start_loop(self):
            calls.append("start")

        def run_loop(self):
            calls.append("round")
            coord.request_stop()

        def stop_loop(self):
            calls.append("stop")

    Looper(coord, None).start()
    coord.join()
    assert calls == ["start", "round", "stop"]


def test_looper_needs_a_coordinator():
    with pytest.raises(ValueError, match="'coord' argument must be a Coordinator: None"):
        LooperThread(None, 1.0)

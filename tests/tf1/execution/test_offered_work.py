"""Helpers do what is offered, leave it to who offered it when they have no time, and end by themselves."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from globalstep.tf1.execution import offered_work
from globalstep.tf1.execution.offered_work import Offered, offer


@pytest.fixture(autouse=True)
def own_helpers(monkeypatch):
    """Helpers that no other test has kept waiting or busy."""
    monkeypatch.setattr(offered_work, "_helpers", offered_work._Helpers())


def test_a_helper_does_it_while_the_other_goes_on():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go_on.wait(100)
        return threading.current_thread().name

    offered = offer(work, 1)
    assert begun.wait(100)
    go_on.set()
    assert offered.result() == "globalstep-helper"


@pytest.mark.parametrize("helps", [False, True])
def test_an_error_comes_out_where_the_result_is_asked_for(helps):
    def fail():
        raise KeyError(7)

    offered = Offered(fail)
    if helps:
        offered.help()
    with pytest.raises(KeyError, match="7"):
        offered.result()


@pytest.mark.parametrize("helps", [False, True])
def test_whoever_does_it_takes_overflows_as_the_one_who_offered_it(helps):
    large = np.full(4, 3e38, np.float32)
    with np.errstate(over="ignore"):
        offered = Offered(lambda: large * 2)
    with np.errstate(over="raise"):
        if helps:
            offered.help()
        assert np.isinf(offered.result()).all()


def test_without_a_thread_left_the_work_is_done_all_the_same(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert offer(lambda: 5, 1).result() == 5
    monkeypatch.undo()
    assert offer(lambda: 6, 1).result() == 6


def test_a_forked_process_has_helpers_of_its_own():
    """In a process of its own: what else this one has imported may not like to be forked."""
    program = """
import os, threading
from globalstep.tf1.execution import offered_work
with offered_work._helpers._lock:  # held by a thread that the new process does not have
    child = os.fork()
    if not child:
        taken = threading.Event()
        offered_work.offer(taken.set, 1)
        os._exit(0 if taken.wait(100) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=200).returncode == 0

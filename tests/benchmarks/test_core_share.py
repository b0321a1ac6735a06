"""The benchmark of a PS task that is too slow: its brake, and when its numbers are doubted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.harness.core_share import CoreShare
from benchmarks.harness.machine import beside_other_work

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processors of a process are set by Linux's calls")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_secs(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_process_has_no_more_than_its_share_and_runs_on_afterwards():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            began, had = time.monotonic(), cpu_secs(process.pid)
            with CoreShare(process.pid, 0.2):
                threading.Event().wait(1.0)
                took = cpu_secs(process.pid) - had
                assert took < 0.5 * (time.monotonic() - began)
                assert len(os.sched_getaffinity(process.pid)) == 1
            assert state_of(process.pid) != "T"
        finally:
            process.kill()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ValueError, match="share of a core"):
        CoreShare(os.getpid(), share)


def test_numbers_of_a_busy_machine_say_so():
    where = {"cores": 2, "load_before": 0.5, "load_after": 1.0}
    assert beside_other_work(where) == ""
    assert "other work" in beside_other_work({**where, "load_before": 2.5})

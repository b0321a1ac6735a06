"""Every test starts with an empty default graph and may leave nothing behind."""

import gc
import math
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from globalstep.cluster.run_policy import RUN_POLICY_VARIABLE, RunPolicy
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.graph.graph import reset_default_graph
from globalstep.wire.transports import Transport
from globalstep.worker.client.client import ClusterClient

ROOT = Path(__file__).resolve().parents[1]
#: Tests of several PS tasks have small models: their Variables are spread all the same, in processes that tests start
#: too. Tests of the default say so.
SPREAD = "spread_above=0"
os.environ[RUN_POLICY_VARIABLE] = SPREAD
# Python keeps what it compiles, and pytest the assertions that it writes anew, here and in processes that tests start:
# else a run begins with ten seconds of compiling.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_JOIN_SECS = 5.0
#: Threads that end by themselves do so in less; the others may be held by what is unreachable.
_SOON_SECS = 0.2
#: Caches that tools keep in the repository.
_CACHES = {".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}
#: Helpers of multiprocessing that live as long as the process does.
_LONG_LIVED = ("resource_tracker", "forkserver")

#: Seeds of the simulation in the quick tier.
_QUICK_SEEDS = "100"
#: No test of the quick tier takes 2 s. One that takes longer than the first, of the processor, is to be marked `long`,
#: or made faster; one that takes longer than the second by the clock waits for something. It is named at the end and
#: does not fail: the machine may be busy, where a second of the processor is longer too.
_CPU_SECS, _WALL_SECS = 3.0, 10.0
#: Time decides nothing: what is drawn may be slow on a loaded machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
_COSTS = ("cpu_secs", "wall_secs")
#: Where this is set, tests come in the order that a generator with this seed gives.
_ORDER_VARIABLE = "GLOBALSTEP_TEST_ORDER"
_BEGAN = pytest.StashKey[tuple[float, float]]()


def pytest_addoption(parser):
    """Let the quick tier be asked for."""
    parser.addoption("--quick", action="store_true", help="only what `make test` runs: a test of every room in minutes")
    parser.addoption(
        "--rest", action="store_true", help="what --quick leaves out, and the simulation with all its seeds"
    )


def pytest_configure(config):
    """Ask for fewer seeds in the quick tier, and for the others in the rest; before the tests are imported, in every
    process of pytest.
    """
    if config.getoption("--quick"):
        os.environ.setdefault("GLOBALSTEP_SIMULATION_SEEDS", _QUICK_SEEDS)
    elif config.getoption("--rest"):
        os.environ.setdefault("GLOBALSTEP_SIMULATION_FROM", _QUICK_SEEDS)


def pytest_collection_modifyitems(config, items):
    """Leave out what the tier does not have, and begin with what takes minutes.

    The quick tier has no real processes but those that `ends` names, and nothing that is long. The processes of pytest
    get stretches of the list, so that what comes first and shares something costly stays together; of what comes last
    no test is so long that one of them waits for the other.
    """
    if _ORDER_VARIABLE in os.environ:
        random.Random(os.environ[_ORDER_VARIABLE]).shuffle(items)
    elif hasattr(config, "workerinput"):
        items.sort(key=_begins)
    if config.getoption("--quick"):
        kept = [item for item in items if _is_quick(item)]
    elif config.getoption("--rest"):
        kept = [item for item in items if not _is_quick(item) or item.get_closest_marker("seeds")]
    else:
        return
    left = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept


def pytest_collection():
    """Have the collector of garbage wait: almost all that is made stays."""
    gc.disable()


def pytest_collection_finish():
    """Have the collector of garbage pass over the millions of objects that collection has made.

    Tests that ask whether something is let go of have it collect all, and it does so by itself as well.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _begins(item):
    """Give where a test comes: those marked `first`, then those that start processes, then all others."""
    if item.get_closest_marker("first"):
        return 0
    return 1 if item.get_closest_marker("processes") else 2


def _is_quick(item):
    if item.get_closest_marker("long"):
        return False
    return bool(item.get_closest_marker("ends")) or not item.get_closest_marker("processes")


def _clocks():
    """Give what has been used of the processor, by processes that have ended too, and the time."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system, SYSTEM_CLOCK.monotonic()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Take note of when a test begins."""
    item.stash[_BEGAN] = _clocks()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Write into a test's last report what it took."""
    if call.when == "teardown" and _BEGAN in item.stash and item.config.getoption("--quick"):
        took = (now - began for now, began in zip(_clocks(), item.stash[_BEGAN], strict=True))
        item.user_properties += zip(_COSTS, took, strict=True)
    return (yield)


def pytest_terminal_summary(terminalreporter):
    """Name those tests of the quick tier that do not belong there."""
    # On a machine that does too much at once everything waits.
    wall_secs = _WALL_SECS if os.getloadavg()[1] < 2 * (os.cpu_count() or 1) else math.inf
    slow = []
    for report in terminalreporter.getreports(""):
        found = dict(report.user_properties)
        cpu, wall = (found.get(name, 0.0) for name in _COSTS)
        if (cpu > _CPU_SECS or wall > wall_secs) and "ends" not in report.keywords:
            slow.append(f"{cpu:6.1f} s of the processor, {wall:6.1f} s in all: {report.nodeid}")
    if slow:
        terminalreporter.section("tests for `long`, or to be made faster")
        terminalreporter.write("".join(f"{line}\n" for line in sorted(slow, reverse=True)))


@pytest.fixture(autouse=True)
def empty_default_graph():
    """Make names and collections start anew."""
    reset_default_graph()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request):
    """Fail a test that leaves a thread, a file in the repository, or, where processes are started, a child process."""
    processes = request.node.get_closest_marker("processes") is not None
    threads, children, files = set(threading.enumerate()), _children() if processes else set(), _files()
    yield
    left = _threads_left(threads, _SOON_SECS)
    if left:
        # What is unreachable may still hold a thread until it is collected.
        gc.collect()
        left = _threads_left(threads, _JOIN_SECS)
    problems = [f"thread {thread.name!r}" for thread in left]
    problems += [f"process {pid}: {command}" for pid, command in (_children() - children if processes else ())]
    problems += [f"file {name}" for name in sorted(_files() - files)]
    if problems:
        pytest.fail(f"the test left behind: {', '.join(problems)}", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def leaves_no_process_behind():
    """Fail the last test of a file whose tests, which are too many to look after each, leave a child process."""
    children = _children()
    yield
    left = _children() - children
    if left:
        pytest.fail(f"the tests of this file left behind: {sorted(left)}", pytrace=False)


def _threads_left(before, join_secs):
    """Give the new threads that do not end by themselves; grpc's own daemons, which have no name, may stay."""
    left = []
    for thread in set(threading.enumerate()) - before:
        if thread.daemon and thread.name.startswith(("Thread-", "Dummy-")):
            continue
        thread.join(join_secs)
        if thread.is_alive():
            left.append(thread)
    return left


def _children():
    """Give the live child processes as {(pid, command line)}."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in _read(children).split():
            command = _read(Path("/proc", pid, "cmdline")).replace("\0", " ").strip()
            if command and not any(name in command for name in _LONG_LIVED):
                found.add((int(pid), command))
    return found


def _read(path):
    try:
        return path.read_text()
    except OSError:  # it has just ended
        return ""


def _files():
    """Give the names at the top of the repository and in the current folder."""
    return {name for folder in {ROOT, Path.cwd()} for name in os.listdir(folder)} - _CACHES


@pytest.fixture
def connected():
    """Make clients of PS tasks in this process, or over transports, and close them at the end."""
    clients = []

    def make(ps: LocalPS | Sequence[Transport], **more) -> ClusterClient:
        more.setdefault("policy", RunPolicy.from_text(SPREAD))
        transports = ps.transports() if isinstance(ps, LocalPS) else ps
        clients.append(ClusterClient(transports, rng=random.Random(1), **more))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def soon(monkeypatch):
    """Make seconds of real time short that a task waits: for an answer's next try, and for another's sign of life."""
    from globalstep.chief.sessions import run_joining
    from globalstep.worker.client import candidate, heartbeat
    from globalstep.worker.client.calls import POLICIES, RetryPolicy

    monkeypatch.setitem(POLICIES, "Status", RetryPolicy(POLICIES["Status"].deadline_secs, 0.02))
    monkeypatch.setattr(heartbeat, "_PERIOD_SECS", 0.05)
    for module in (run_joining, candidate):
        monkeypatch.setattr(module, "_POLL_SECS", 0.02)

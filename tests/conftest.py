"""Every test starts with an empty default graph and may leave nothing behind."""

import gc
import os
import threading
from pathlib import Path

import pytest

from globalstep.graph import reset_default_graph

ROOT = Path(__file__).resolve().parents[1]
_JOIN_SECS = 5.0
#: Caches that tools keep in the repository.
_CACHES = {".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}
#: Helpers of multiprocessing that live as long as the process does.
_LONG_LIVED = ("resource_tracker", "forkserver")


#: Seeds of the simulation in the quick tier.
_QUICK_SEEDS = "500"


def pytest_addoption(parser):
    """Let the quick tier be asked for."""
    parser.addoption("--quick", action="store_true", help="only what `make test` runs: a test of every room in minutes")
    parser.addoption(
        "--rest", action="store_true", help="what --quick leaves out, and the simulation with all its seeds"
    )


def pytest_configure(config):
    """Ask for fewer seeds in the quick tier; before the tests are imported, in every process of pytest."""
    if config.getoption("--quick"):
        os.environ.setdefault("GLOBALSTEP_SIMULATION_SEEDS", _QUICK_SEEDS)


def pytest_collection_modifyitems(config, items):
    """Leave out what the quick tier has not: real processes but those that `ends` names, and what is long."""
    if config.getoption("--quick"):
        kept = [item for item in items if _is_quick(item)]
    elif config.getoption("--rest"):
        kept = [item for item in items if not _is_quick(item) or item.get_closest_marker("seeds")]
    else:
        return
    left = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept


def _is_quick(item):
    if item.get_closest_marker("long"):
        return False
    return bool(item.get_closest_marker("ends")) or not item.get_closest_marker("processes")


@pytest.fixture(autouse=True)
def empty_default_graph():
    """Make names and collections start anew."""
    reset_default_graph()


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """Fail a test that leaves a thread, a child process, or a file in the repository."""
    threads, children, files = set(threading.enumerate()), _children(), _files()
    yield
    left = _threads_left(threads)
    if left:
        # What is unreachable may still hold a thread until it is collected.
        gc.collect()
        left = _threads_left(threads)
    problems = [f"thread {thread.name!r}" for thread in left]
    problems += [f"process {pid}: {command}" for pid, command in (_children() - children)]
    problems += [f"file {name}" for name in sorted(_files() - files)]
    if problems:
        pytest.fail(f"the test left behind: {', '.join(problems)}", pytrace=False)


def _threads_left(before):
    """Give the new threads that do not end by themselves; grpc's own daemons, which have no name, may stay."""
    left = []
    for thread in set(threading.enumerate()) - before:
        if thread.daemon and thread.name.startswith(("Thread-", "Dummy-")):
            continue
        thread.join(_JOIN_SECS)
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

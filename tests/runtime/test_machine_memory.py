"""How much memory a process could still take, as the kernel tells it."""

from __future__ import annotations

import pytest

from globalstep.runtime.machine_memory import available_bytes, memory_bytes
from globalstep.wire import shared_memory

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """A machine with 1000 MiB, 600 of them free, and a container that may have 400; gives where the kernel says so."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {1000 << 10} kB\nMemFree: 1 kB\nMemAvailable: {600 << 10} kB\n")
    (proc / "self" / "cgroup").write_text("0::/job\n")
    job = cgroups / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text(f"{400 * MIB}\n")
    (job / "memory.current").write_text(f"{390 * MIB}\n")
    (job / "memory.stat").write_text(f"anon {90 * MIB}\nfile {300 * MIB}\ninactive_file {250 * MIB}\n")
    return proc, cgroups


def test_files_that_a_container_has_read_are_no_memory_in_use(machine):
    assert available_bytes(*machine) == 260 * MIB


def test_the_least_of_machine_and_container_counts(machine):
    _, cgroups = machine
    assert memory_bytes(*machine) == 400 * MIB
    (cgroups / "job" / "memory.max").write_text("max\n")
    assert (available_bytes(*machine), memory_bytes(*machine)) == (600 * MIB, 1000 * MIB)


@pytest.mark.parametrize("stat", [None, "anon 5\n"])
def test_where_no_files_are_told_of_all_that_is_used_counts(machine, stat):
    told = machine[1] / "job" / "memory.stat"
    told.unlink() if stat is None else told.write_text(stat)
    assert available_bytes(*machine) == 10 * MIB


def test_shared_memory_asks_for_no_more_than_half_of_what_a_container_has_left(monkeypatch, machine):
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: available_bytes(*machine))
    with pytest.raises(OSError, match="more than half"):
        shared_memory.create(131 * MIB)

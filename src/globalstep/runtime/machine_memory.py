"""Free memory of this machine, or of its container where that is less.

Layer: shared. Imports nothing of globalstep. Threads: functions only.
"""

from __future__ import annotations

import os
from pathlib import Path

#: What is taken where a system does not say.
_UNKNOWN_BYTES = 1 << 40


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Give how many bytes this process could still take, by the kernel's own estimate.

    Returns:
        The least of what is free on the machine and what the limits of this process's cgroup leave.

    >>> available_bytes() > 0
    True
    """
    available = [_machine(proc), *(limit - used for limit, used in _limits(proc, cgroups))]
    return max(min(available), 0)


def memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Give how many bytes this process could have if it were alone: the machine's, or its container's where less.

    >>> memory_bytes() >= available_bytes()
    True
    """
    return min([_machine(proc, "MemTotal"), *(limit for limit, _ in _limits(proc, cgroups))])


def _limits(proc: Path, cgroups: Path) -> list[tuple[int, int]]:
    """Give the limits of this process's cgroups, each with what is used of it."""
    limits: list[tuple[int, int]] = []
    try:
        own = (proc / "self" / "cgroup").read_text()
        path = next(line[3:] for line in own.splitlines() if line.startswith("0::"))
        folder = cgroups / path.lstrip("/")
        # A container sees its own cgroup as the root.
        for at in (folder, *folder.parents):
            if (at / "memory.max").exists():
                limit = (at / "memory.max").read_text().strip()
                if limit.isdigit():
                    used = int((at / "memory.current").read_text()) - _reclaimable(at / "memory.stat")
                    limits.append((int(limit), max(used, 0)))
            if at == cgroups:
                break
    except (OSError, ValueError, StopIteration):
        return limits
    return limits


def _reclaimable(stat: Path) -> int:
    """Give how much of what a cgroup uses are contents of files not read lately, which the kernel can drop."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _machine(proc: Path, what: str = "MemAvailable") -> int:
    try:
        with (proc / "meminfo").open(encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name == what:
                    return int(value.split()[0]) << 10
        return _UNKNOWN_BYTES
    except (OSError, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else _UNKNOWN_BYTES

"""Pages of a loaded library: given back to the system by a process that is done with the library for now.

A compiler is large, and once a program's loops are compiled nothing of it is used. Linux keeps each page of a library
that was ever touched in the process's memory until the machine is short of it; here a process says that it needs them
no more. What is used again all the same is read again, from the system's cache or the file.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator

__all__ = ["give_back_library", "unchanged_mappings"]

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)")
_MADV_DONTNEED = 4  # of Linux, madvise(2)


def unchanged_mappings(lines: Iterable[str], name: str) -> Iterator[tuple[int, int]]:
    """Find the mappings of a file that hold nothing but what is in the file.

    Args:
        lines: Of /proc/PID/smaps.
        name: How the file's name begins.

    Yields:
        Address and length, in bytes, of each that can be neither written nor has been changed, by relocations say.

    >>> text = '''1000-3000 r-xp 00000000 08:01 7  /lib/libllvmlite.so
    ... Private_Dirty:         0 kB
    ... 3000-4000 r--p 00002000 08:01 7  /lib/libllvmlite.so
    ... Private_Dirty:         4 kB
    ... '''
    >>> [(hex(address), length) for address, length in unchanged_mappings(text.splitlines(), "libllvmlite")]
    [('0x1000', 8192)]
    """
    found: tuple[int, int] | None = None
    for line in lines:
        if line.startswith("Private_Dirty:"):
            if found is not None and line.split()[1] == "0":
                yield found
            found = None
        elif match := _MAPPING.match(line):
            first, end, rights, path = match.groups()
            mine = path.startswith("/") and os.path.basename(path).startswith(name) and "w" not in rights
            found = (int(first, 16), int(end, 16) - int(first, 16)) if mine else None


def give_back_library(name: str) -> None:
    """Take the pages of a library out of this process's memory, until they are used again.

    Only those that are as in the file. Does nothing where the system is not Linux. Thread-safe: another thread that
    runs the library's code meanwhile reads its pages again.

    Args:
        name: How the name of the library's file begins, "libllvmlite" say.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/smaps") as lines:
        mappings = list(unchanged_mappings(lines, name))
    for address, length in mappings:
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED)

"""Shared memory of a PS task and a client on the same machine, where tensors are written once.

A block is a file of the kernel's memory that has no name (`memfd_create`): only processes that were handed its
descriptor reach it. Nothing of it is left once both processes have let go of it or are gone, however
they ended, and the size of /dev/shm does not limit it. Its size is sealed, so neither side can take the ground
away under the other. docs/design/transports.md has the whole story.

Layer: shared. Linux only.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.machine_memory import available_bytes

if sys.platform == "linux":
    import fcntl


Array = npt.NDArray[np.uint8]

#: Tensors of a message that are fewer bytes than this go through the socket. Measured: at 120 kB both ways cost about
#: the same, at 400 kB shared memory takes a tenth less of both processors, at 4 MB half.
SHARED_FROM_BYTES = 1 << 17
#: Blocks that one connection may have.
MOST_BLOCKS = 8
#: Left free before and after a request's data, so that a reply of the same values finds space for a few more.
SLACK_BYTES = mmap.PAGESIZE
#: A mapping needs no descriptor of its own; before 3.13 Python keeps one for each.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def is_offered() -> bool:
    """Whether this machine lets a process make blocks; a container may forbid it."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return False
    try:
        descriptor, _ = create(SLACK_BYTES)
    except OSError:
        return False
    os.close(descriptor)
    return True


def block_bytes(nbytes: int) -> int:
    """Give the size of a block that holds so many bytes, and a little before and after them."""
    return -(-nbytes // SLACK_BYTES) * SLACK_BYTES + 2 * SLACK_BYTES


def create(nbytes: int) -> tuple[int, Array]:
    """Make a block.

    Args:
        nbytes: Its size, a multiple of the page's.

    Returns:
        A descriptor, to be handed on and closed, and the block's bytes, uint8 [nbytes], zeros. The memory lasts
        as long as an array of it on either side.

    Raises:
        OSError: If there is no such memory to be had: too little of it, or it is forbidden.
    """
    available = available_bytes()
    if nbytes > available // 2:
        # The kernel would try, and end processes to find the memory.
        raise OSError(errno.ENOMEM, f"{nbytes} bytes to share are more than half of the {available} that are free")
    descriptor = os.memfd_create("globalstep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Taken now, and not page by page as it is used: memory that is short shows here, not as a SIGBUS.
        os.posix_fallocate(descriptor, 0, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return descriptor, _map(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


def attach(descriptor: int, nbytes: int) -> Array:
    """Give the bytes of a block that another process has made.

    Args:
        descriptor: Of the block; stays the caller's, who closes it.
        nbytes: Its size.

    Raises:
        OSError: If it is none, or not of that size, or not sealed: then its bytes could be taken away.
    """
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError("shared memory is not sealed against shrinking")
    if nbytes <= 0 or os.fstat(descriptor).st_size != nbytes:
        raise OSError(f"shared memory has {os.fstat(descriptor).st_size} bytes, not {nbytes}")
    return _map(descriptor, nbytes)


def _map(descriptor: int, nbytes: int) -> Array:
    # All pages at once: one by one they would make the first use slow.
    mapped = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, **_MAP_OPTIONS)
    return np.frombuffer(mapped, np.uint8)

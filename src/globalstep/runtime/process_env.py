"""Environment variables that make a globalstep process fast; they work only when set before it starts.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import logging
import mmap
import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import platformdirs

_log = logging.getLogger("globalstep")


#: What PYTHONPATH has to name for `import tensorflow` to mean globalstep: see globalstep.as_tensorflow.
ALIAS_FOLDER = str(Path(__file__).resolve().parents[1] / "as_tensorflow" / "importable")

#: gRPC's newer event loop costs a third of the throughput of many small messages. Names come and go with
#: gRPC's releases, and one that it does not know makes it complain on stderr.
_GRPC_EXPERIMENTS = (
    "event_engine_client",
    "event_engine_listener",
    "event_engine_callback_cq",
    "event_engine_for_all_other_endpoints",
)

#: Without its newer event loop, and with no call in flight, gRPC looks at a connection that it is making only
#: as often as this; its own 5 s would make a client find a PS task that came back 10 s too late.
#: A forked process, a DataLoader's say, calls nobody: gRPC need not care for it, nor log at each fork that it does not.
_GRPC = {"GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS": "100", "GRPC_ENABLE_FORK_SUPPORT": "false"}

#: glibc gives every large message fresh pages and takes them back afterwards unless a setting keeps them.
_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


@functools.cache
def _known_experiments() -> list[str]:
    """Find which of the experiments the installed gRPC has: their names are C strings in its library."""
    spec = importlib.util.find_spec("grpc")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for library in Path(folder).glob("_cython/cygrpc*.so"):
            with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
                return [name for name in _GRPC_EXPERIMENTS if code.find(b"\0%b\0" % name.encode()) >= 0]
    return []


def tuned(environ: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """Add the settings for speed to an environment; variables that are set already stay.

    Args:
        environ: The environment to start from.
        threads: How many threads the linear algebra libraries of the process may use. Default: theirs.

    >>> tuned({"MALLOC_ARENA_MAX": "4"})["MALLOC_ARENA_MAX"]
    '4'
    """
    settings = dict(_MALLOC)
    if experiments := _known_experiments():
        settings["GRPC_EXPERIMENTS"] = ",".join(f"-{name}" for name in experiments)
        settings |= _GRPC
    if threads is not None:
        settings |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return {**settings, **environ}


# mallopt's parameter numbers, from glibc's malloc.h.
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_ARENA_MAX": -8}


def raise_malloc_thresholds() -> bool:
    """Do for this process what the MALLOC_* settings do for a new one; call it before threads start.

    Returns:
        Whether the C library took them; on another one than glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # mallopt takes a C int: thresholds beyond it stay at its largest value.
    return all(mallopt(_MALLOPT[name], min(int(value), 2**31 - 1)) == 1 for name, value in _MALLOC.items())


def kernel_cache_directory(wanted: str | None = None) -> str:
    """Give where compiled kernels are kept: this user's own folder, since what lies there is run.

    Args:
        wanted: The folder that the user has named; one that others may write to is not used, which is logged.
    """
    if wanted is not None:
        if is_own_folder(wanted):
            return wanted
        _log.warning("NUMBA_CACHE_DIR=%s is not used: others may write there, and its code would be run.", wanted)
    try:
        directory = os.path.join(platformdirs.user_cache_dir("globalstep"), "kernels")
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.access(directory, os.W_OK) and is_own_folder(directory):
            return directory
    except (OSError, RuntimeError):
        # A home that is read-only, or a uid that is no user's and has none, as in some containers.
        pass
    # Another user could have put something under a known name, so the name is random, and kernels are compiled anew
    # in every process.
    directory = tempfile.mkdtemp(prefix="globalstep-kernels-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def is_own_folder(path: str) -> bool:
    """Return whether nobody but this user, and root, can put a file into a folder, or another folder in its place.

    Each folder from the root on must be this user's or root's, and no other may write there; in one with the sticky
    bit, as /tmp is, nobody replaces what is another's.

    Args:
        path: Of the folder, which may be still to be made; links on the way are followed.
    """
    at = os.path.realpath(path)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    is_last = True
    while True:
        status = os.lstat(at)
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in (0, os.geteuid()) or (others_write and (is_last or not status.st_mode & stat.S_ISVTX)):
            return False
        if at == os.path.dirname(at):
            return True
        at, is_last = os.path.dirname(at), False


def raise_file_limit() -> None:
    """Let this process have as many files and connections as the system allows it; the usual limit is far lower."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not give
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def environ_with_alias(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of a Python process in which `import tensorflow` means globalstep.

    Args:
        environ: The environment to start from; what PYTHONPATH names already stays, after the alias.

    >>> environ_with_alias({"PYTHONPATH": "mine"})["PYTHONPATH"] == f"{ALIAS_FOLDER}{os.pathsep}mine"
    True
    """
    others = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part not in ("", ALIAS_FOLDER)]
    return {**environ, "PYTHONPATH": os.pathsep.join([ALIAS_FOLDER, *others])}

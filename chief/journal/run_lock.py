"""Run lock: one job at a time trains in a directory.

Two jobs have PS tasks that know nothing of each other: both would begin at the same checkpoint, and write over each
other's. The chief of a job has the lock. Processes that share PS tasks are one job: those tell who is of the run, and
the lock is no matter to them. A job of several processes heeds that of its own machine alone: elsewhere nobody sees
whether its holder still trains, and the terms of checkpoints keep what the newer chief saves.

    RUN_DIR/globalstep-run.lock      {"host": "...", "pid": 4711, ..., "since": 1700000000.0, "ps": ["host:port"]}

The file is its owner's alone (0600): who may open it may take the lock. The lock is flock's, which the kernel gives
free when its process ends, however it ends. What the file says is for people, and for file systems without locks (some
mounts of NFS): there a process of this machine that is named in the file is looked for, and one of another machine is
only warned of. Object stores have no locks and none is taken.

Layer: chief. Thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeGuard

from globalstep.cluster.process_place import NO_PROCESS, Process, is_gone, this_process
from globalstep.errors import FailedPreconditionError
from globalstep.files.storage import TEMPORARY, LocalStorage, is_full, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("globalstep")

FILE_NAME = "globalstep-run.lock"
#: What flock fails with on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

#: How often, and how far apart, a file is read whose lock is taken and that names nobody yet.
_LOOKS, _LOOK_SECS = 20, 0.05

#: Files below a run's directory that its chief writes, or an evaluator's task.
_WRITTEN = ("globalstep-run.json", "graph.pbtxt", "training.json", "journal/*.gsj", "evaluations.json", "best/*")
#: A file that is being written grows at least so often.
_STILL_SECS = 60.0

# Guards _HELD; files are opened and locked under it, which waits for a second at most, where a file names nobody yet.
_LOCK = threading.Lock()
#: Path -> (descriptor, this process's sessions that have it: the thread of each that has it `alone`, None for others).
_HELD: dict[str, tuple[int, list[threading.Thread | None]]] = {}


def hold(
    directory: str,
    clock: Clock = SYSTEM_CLOCK,
    ps: Sequence[str] = (),
    take_over: bool = False,
    alone: bool = False,
) -> Callable[[], None]:
    """Take the lock of a run's directory for this process; its further sessions share it.

    Args:
        directory: Path or URL; made where it is missing.
        clock: The time that the file tells.
        ps: Addresses of the PS tasks; empty for a PS of this process.
        take_over: Go on without the lock where another process has it.
        alone: Share it with no other thread of this process that has it `alone`, as long as that runs.

    Returns:
        What gives the lock free again, once.

    Raises:
        FailedPreconditionError: If another process, or another thread `alone`, has it; the text says which, and what
            to do.
    """
    if "://" in directory or not isinstance(storage_for(directory), LocalStorage):
        return lambda: None
    path = os.path.join(os.path.realpath(directory), FILE_NAME)
    with _LOCK:
        if path in _HELD:
            file, sessions = _HELD[path]
            other = next(filter(_is_other, sessions), None) if alone else None
            if other is not None:
                raise FailedPreconditionError(
                    f"Thread {other.name} of this process trains in {directory} already. Each gs.fit and Trainer has "
                    "parameter servers of its own, so both would write over each other's checkpoints. Give this one "
                    "another run_dir, or wait until that one has ended, or close that Trainer."
                )
        else:
            try:
                os.makedirs(directory, exist_ok=True)
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                # What needs to write there will say so.
                _log.debug("There is no lock in %s: %s", directory, error)
                return lambda: None
            try:
                is_ours = _lock(file, directory, clock, ps, take_over)
            except BaseException:
                os.close(file)
                raise
            if not is_ours:
                os.close(file)
                return lambda: None
            # Before a further session of this process may write.
            _clear_leftovers(os.path.dirname(path), clock)
            sessions = []
            _HELD[path] = file, sessions
        sessions.append(threading.current_thread() if alone else None)
    return _once(path, sessions[-1])


def _is_other(thread: threading.Thread | None) -> TypeGuard[threading.Thread]:
    """Say whether it is another thread, and runs: one that Python did not start never says itself that it ended."""
    if thread is None or thread is threading.current_thread():
        return False
    return thread.is_alive() and thread.ident in sys._current_frames()


def _clear_leftovers(directory: str, clock: Clock) -> None:
    """Remove unfinished files of killed processes from a run's directory; those that are being written stay.

    An evaluator's task may be at it, and a chief that has replaced this one, which may not have the lock.
    """
    for pattern in _WRITTEN:
        for file in Path(directory).glob(f"{pattern}{TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime <= clock.time() - _STILL_SECS:
                    file.unlink()
                    _log.info("Removed %s, which a killed process had begun to write.", file)


def living_holder(directory: str) -> Process:
    """Give the process of this machine that trains in a directory with a PS of its own; a false one for none."""
    try:
        file = os.open(os.path.join(directory, FILE_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NO_PROCESS
    try:
        holder, _, ps = _named(file)
    finally:
        os.close(file)
    return holder if not ps and _is_here(holder) and not is_gone(holder) else NO_PROCESS


def _is_here(process: Process) -> bool:
    return bool(process) and process.place == this_process().place


def _lock(file: int, directory: str, clock: Clock, ps: Sequence[str], take_over: bool) -> bool:
    """Take the lock of an open file; False where it is another's, which is in nobody's way."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder, since, others = _named(file)
        for _ in range(_LOOKS):
            if holder:
                break
            # Its holder has taken it just now, and writes next who it is.
            clock.sleep(_LOOK_SECS)
            holder, since, others = _named(file)
        if take_over or (ps and (not set(ps).isdisjoint(others) or not _is_here(holder))):
            _log.debug("%s has the lock of %s since %s.", holder, directory, _at(since))
            return False
        raise _refusal(directory, holder, since, others, clock) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        holder, since, others = _named(file)
        one_job = not set(ps).isdisjoint(others)
        if holder and holder != this_process() and not is_gone(holder) and not take_over and not one_job:
            if _is_here(holder):
                raise _refusal(directory, holder, since, others, clock) from None
            _log.warning(
                "%s has no file locks (%s), and %s trains there since %s, if it still does: this machine cannot see "
                "that.", directory, error.strerror, holder, _at(since),
            )  # fmt: skip
    fields = {**asdict(this_process()), "since": clock.time()} | ({"ps": list(ps)} if ps else {})
    record = json.dumps(fields).encode()
    try:
        # Over what was there, which takes no new room on a full disk.
        os.pwrite(file, record, 0)
        os.ftruncate(file, len(record))
    except OSError as error:
        if not is_full(error):
            raise
        _log.warning("Could not write into %s which process trains there: %s.", directory, error.strerror)
    return True


def _named(file: int) -> tuple[Process, float, list[str]]:
    """Read which process has taken the lock last, when, and its PS tasks; a false Process where that is not known."""
    try:
        fields = json.loads(os.pread(file, os.fstat(file).st_size, 0))
        holder = Process(str(fields["host"]), int(fields["pid"]), str(fields["place"]), str(fields["started"]))
        return holder, fields["since"], [str(address) for address in fields.get("ps", [])]
    except (OSError, ValueError, KeyError, TypeError):
        return Process(), 0.0, []


def _refusal(directory: str, holder: Process, since: float, ps: Sequence[str], clock: Clock) -> FailedPreconditionError:
    here = _is_here(holder)
    who, ending = "another process", "end that process"
    if holder:
        who = f"{holder}{_command(holder.pid) if here else ''}, since {_at(since)} ({_ago(clock.time() - since)})"
        ending = f"end it (`kill {holder.pid}`{'' if here else f' on {holder.host}'}: it saves first)"
    if ps:
        who, ending = f"{who}, chief of a job", "end that job (`globalstep runs` says by which pid: it saves first)"
    return FailedPreconditionError(
        f"Another program trains in {directory}: {who}. Each has parameter servers of its own, so both would write "
        f"over each other's checkpoints; nothing of the run was changed. Wait until it has ended, or {ending}, and "
        "start this one again: it continues from the newest checkpoint. Or give this one another checkpoint_dir. "
        "Several processes train one model together under `globalstep launch`."
    )


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f" ({words[:100]})" if words else ""
    return ""


def _at(since: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))


def _ago(secs: float) -> str:
    return (
        f"{secs:.0f} s ago" if secs < 120 else f"{secs / 60:.0f} min ago" if secs < 7200 else f"{secs / 3600:.0f} h ago"
    )


def _once(path: str, thread: threading.Thread | None) -> Callable[[], None]:
    done: list[bool] = []

    def release() -> None:
        with _LOCK:
            if done or path not in _HELD:
                return
            done.append(True)
            file, sessions = _HELD[path]
            sessions.remove(thread)
            if sessions:
                return
            del _HELD[path]
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
            os.close(file)

    return release


def _forget_in_child() -> None:
    """Let go, in a process that was forked: the lock is its parent's, and is to end with it."""
    global _LOCK
    _LOCK = threading.Lock()
    for file, _ in _HELD.values():
        os.close(file)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget_in_child)

"""Runs that this user has started and that are alive, for the commands that look at them from another terminal.

A folder of the user's own has a file for each run, which no other user can read: the PS tasks' addresses, and what to
show to them. A launcher keeps the file while its run lasts; one that was killed leaves it, and then it is not used.

Layer: deploy. Threads: functions; any number at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from globalstep.cluster.process_place import Process, is_gone, this_process
from globalstep.cluster.run_identity import run_name
from globalstep.deploy.launch.options import CREDENTIALS, environ_of_task
from globalstep.errors import FailedPreconditionError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.credentials import Credentials


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run whose launcher is alive.

    Attributes:
        name: GLOBALSTEP_RUN of its tasks.
        program: The script and its arguments, as they were given.
        folder: Where the launcher was started.
        ps: Addresses of the PS tasks, in order.
        since: When it was started, seconds since the epoch.
        process: The launcher's.
        shown: What the tasks' environment says of tokens and certificates.
    """

    name: str
    program: str
    folder: str
    ps: Sequence[str]
    since: float
    process: Process
    shown: Mapping[str, str] = field(default_factory=dict, repr=False)


@contextlib.contextmanager
def kept(
    addresses: Sequence[str], environ: Mapping[str, str], program: Sequence[str] = (), clock: Clock = SYSTEM_CLOCK
) -> Iterator[None]:
    """Have other commands of this user find a run meanwhile; nothing happens where there is no folder for it."""
    shown = {name: environ[name] for name in CREDENTIALS if environ.get(name)}
    run = LiveRun(
        run_name(environ), " ".join(program), os.getcwd(), list(addresses), clock.time(), this_process(), shown
    )
    written = ""
    try:
        with contextlib.suppress(OSError, RuntimeError):  # a user without a home, or with a full one
            folder = _folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made with mode 0600; readers look at .json alone, so none reads half a file.
            descriptor, written = tempfile.mkstemp(".new", f"{os.getpid()}-", folder)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(run), file)
            whole = f"{written.removesuffix('.new')}.json"
            os.rename(written, whole)
            written = whole
        yield
    finally:
        if written:
            Path(written).unlink(missing_ok=True)


def live_runs() -> list[LiveRun]:
    """Give the runs of this user whose launchers are alive, or are on a machine that cannot be seen from here."""
    try:
        paths = sorted(_folder().glob("*.json"))
    except (OSError, RuntimeError):
        return []
    return [run for path in paths if (run := _read(path)) is not None and not is_gone(run.process)]


def find_credentials(address: str) -> Credentials | None:
    """Give what to show to a PS task of a live run of this user; None where it is of none."""
    for run in live_runs():
        if address in run.ps:
            with contextlib.suppress(FailedPreconditionError):
                return Credentials.from_environ(environ_of_task(run.shown, "chief"))
    return None


def _read(path: Path) -> LiveRun | None:
    try:
        status = path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            return None
        fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return LiveRun(**fields | {"process": Process(**fields["process"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _folder() -> Path:
    return platformdirs.user_state_path("globalstep") / "runs"

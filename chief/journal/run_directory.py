"""Identity file of a run's directory: which run it is, and how many incarnations it has had.

    RUN_DIR/globalstep-run.json      {"id": "...", "name": "...", "incarnation": 1700000000001, "ps": ["host:port"]}

"ps" are the addresses of the PS tasks that held the newest incarnation, for `globalstep status RUN_DIR`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import DataLossError, NotFoundError
from globalstep.files.storage import atomic_write, path_error, storage_for

_log = logging.getLogger("globalstep")

FILE_NAME = "globalstep-run.json"


def kept_identity(directory: str) -> RunIdentity:
    """Read which run a directory is of.

    Returns:
        The run; without an id where the directory, or the file, is not there.

    Raises:
        DataLossError: If the file cannot be understood.
    """
    return _kept(directory)[0]


def kept_addresses(directory: str) -> list[str]:
    """Read where the PS tasks of a run's newest incarnation serve, or served.

    Returns:
        "host:port" of each, in order; empty where the directory does not say.

    Raises:
        DataLossError: If the file cannot be understood.
    """
    return _kept(directory)[2]


def _kept(directory: str) -> tuple[RunIdentity, int, list[str]]:
    storage = storage_for(directory)
    path = storage.join(directory, FILE_NAME)
    try:
        with storage.open_read(path) as file:
            fields = json.loads(file.read())
        run = RunIdentity(str(fields["id"]), str(fields.get("name", "")), directory)
        return run, int(fields.get("incarnation", 0)), [str(address) for address in fields.get("ps", [])]
    except (NotFoundError, FileNotFoundError, NotADirectoryError):
        return RunIdentity(directory=directory), 0, []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"{path} does not say which run the directory is of: {error}. If no job runs in it, delete the file: the "
            "next one gets a new id."
        ) from None


def keep_identity(run: RunIdentity) -> int:
    """Write which run a directory is of, if it does not say so already.

    Returns:
        The newest incarnation of this run that was opened, as the directory says; 0 for none.

    Raises:
        OpError: If the directory cannot be written to.
    """
    storage = storage_for(run.directory)
    identity, newest, _ = _kept(run.directory)
    if identity.id == run.id:
        try:
            # Its writer may not have come so far.
            storage.sync_directory(run.directory)
        except OSError as error:
            raise path_error(error, run.directory, "sync") from error
        return newest
    storage.make_directories(run.directory)
    _write(run, 0)
    _log.info("%s has its id in %s.", run, FILE_NAME)
    return 0


def keep_incarnation(run: RunIdentity, incarnation: int, addresses: Sequence[str] = ()) -> None:
    """Write down which incarnation of a run is about to be opened, where the directory is of this run.

    Where all PS tasks are lost and come back with clocks of an earlier day, the next chief knows from this that the
    number has been: messages and members of an incarnation are never taken for those of another.

    Raises:
        OpError: If the directory cannot be written to.
    """
    identity, newest, _ = _kept(run.directory)
    if identity.id == run.id and newest < incarnation:
        _write(identity, incarnation, addresses)


def _write(run: RunIdentity, incarnation: int, addresses: Sequence[str] = ()) -> None:
    storage = storage_for(run.directory)
    with atomic_write(storage, storage.join(run.directory, FILE_NAME)) as file:
        fields: dict[str, Any] = {"id": run.id, "name": run.name, "incarnation": incarnation}
        file.write(json.dumps(fields | ({"ps": list(addresses)} if addresses else {})).encode())

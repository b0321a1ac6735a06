"""The file in a run's directory that says which run it is.

    RUN_DIR/globalstep-run.json      {"id": "...", "name": "..."}

Layer: chief.
"""

from __future__ import annotations

import json
import logging

from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import DataLossError, NotFoundError
from globalstep.files.storage import atomic_write, path_error, storage_for

__all__ = ["FILE_NAME", "keep_identity", "kept_identity"]

_log = logging.getLogger("globalstep")

FILE_NAME = "globalstep-run.json"


def kept_identity(directory: str) -> RunIdentity:
    """Read which run a directory is of.

    Args:
        directory: Path or URL.

    Returns:
        The run; without an id where the directory, or the file, is not there.

    Raises:
        DataLossError: If the file cannot be understood.
    """
    storage = storage_for(directory)
    path = storage.join(directory, FILE_NAME)
    try:
        with storage.open_read(path) as file:
            told = json.loads(file.read())
        return RunIdentity(str(told["id"]), str(told.get("name", "")), directory)
    except (NotFoundError, FileNotFoundError, NotADirectoryError):
        return RunIdentity(directory=directory)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"{path} does not say which run the directory is of: {error}. If no job runs in it, delete the file: the "
            "next one gets a new id."
        ) from None


def keep_identity(run: RunIdentity) -> None:
    """Write which run a directory is of, if it does not say so already.

    Args:
        run: The run, with its id and its directory.

    Raises:
        OpError: If the directory cannot be written to.
    """
    storage = storage_for(run.directory)
    if kept_identity(run.directory).id == run.id:
        try:
            # Whoever wrote it may not have come so far.
            storage.sync_directory(run.directory)
        except OSError as error:
            raise path_error(error, run.directory, "sync") from error
        return
    storage.make_directories(run.directory)
    with atomic_write(storage, storage.join(run.directory, FILE_NAME)) as file:
        file.write(json.dumps({"id": run.id, "name": run.name}).encode())
    _log.info("%s has its id in %s.", run, FILE_NAME)

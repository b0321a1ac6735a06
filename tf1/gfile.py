"""`gs.tf1.gfile`: files and folders under TensorFlow's names, local paths only.

Layer: tf1. Thread-safe as far as the file system is.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from globalstep.errors import AlreadyExistsError, NotFoundError

__all__ = [
    "Copy",
    "DeleteRecursively",
    "Exists",
    "FastGFile",
    "GFile",
    "Glob",
    "IsDirectory",
    "ListDirectory",
    "MakeDirs",
    "MkDir",
    "Open",
    "Remove",
    "Rename",
    "Stat",
    "Walk",
]


@contextlib.contextmanager
def _found(path: str) -> Iterator[None]:
    """Raise NotFoundError where a `with` block does not find a path."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}; No such file or directory") from error


def GFile(name: str, mode: str = "r") -> IO[Any]:  # noqa: N802
    """Open a file; text is UTF-8.

    Raises:
        NotFoundError: If it, or the folder to write it to, does not exist.
    """
    with _found(name):
        return open(name, mode, encoding=None if "b" in mode else "utf-8")


Open = FastGFile = GFile


def Exists(path: str) -> bool:  # noqa: N802
    """Say whether there is a file or a folder of this path."""
    return os.path.exists(path)


def IsDirectory(dirname: str) -> bool:  # noqa: N802
    """Say whether there is a folder of this path."""
    return os.path.isdir(dirname)


def MkDir(dirname: str) -> None:  # noqa: N802
    """Make a folder whose parent exists; where there is something of that name, nothing is done.

    Raises:
        NotFoundError: If its parent does not exist.
    """
    with _found(dirname), contextlib.suppress(FileExistsError):
        os.mkdir(dirname)


def MakeDirs(dirname: str) -> None:  # noqa: N802
    """Make a folder and those above it; nothing happens when it exists."""
    os.makedirs(dirname, exist_ok=True)


def ListDirectory(dirname: str) -> list[str]:  # noqa: N802
    """List the names in a folder, sorted.

    Raises:
        NotFoundError: If there is no such folder.
    """
    if not os.path.isdir(dirname):
        raise NotFoundError(f"Could not find directory {dirname}")
    return sorted(os.listdir(dirname))


def Glob(filename: str | Iterable[str]) -> list[str]:  # noqa: N802
    """List the paths that match a pattern, sorted; of several patterns, one pattern's after the other's."""
    patterns = [filename] if isinstance(filename, str) else filename
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def Remove(filename: str) -> None:  # noqa: N802
    """Delete a file.

    Raises:
        NotFoundError: If it does not exist.
    """
    with _found(filename):
        os.remove(filename)


def DeleteRecursively(dirname: str) -> None:  # noqa: N802
    """Delete a folder and all in it.

    Raises:
        NotFoundError: If it does not exist.
    """
    with _found(dirname):
        shutil.rmtree(dirname)


def Rename(oldname: str, newname: str, overwrite: bool = False) -> None:  # noqa: N802
    """Give a file another path.

    Raises:
        NotFoundError: If it does not exist.
        AlreadyExistsError: If `newname` exists and `overwrite` is False.
    """
    _may_write(newname, overwrite)
    with _found(oldname):
        os.replace(oldname, newname)


def Copy(oldpath: str, newpath: str, overwrite: bool = False) -> None:  # noqa: N802
    """Copy a file.

    Raises:
        NotFoundError: If it does not exist.
        AlreadyExistsError: If `newpath` exists and `overwrite` is False.
    """
    _may_write(newpath, overwrite)
    with _found(oldpath):
        shutil.copyfile(oldpath, newpath)


def Stat(filename: str) -> os.stat_result:  # noqa: N802
    """Give size and times of a file (as Python's `os.stat`; TensorFlow's `length` is `st_size`).

    Raises:
        NotFoundError: If it does not exist.
    """
    with _found(filename):
        return Path(filename).stat()


def Walk(top: str, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:  # noqa: N802
    """Go through a folder and all below it; parents first if `in_order`."""
    return os.walk(top, topdown=in_order)


def _may_write(path: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise AlreadyExistsError(f"{path}; File exists")

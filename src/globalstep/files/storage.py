"""Storage of files: one small interface over the local file system and fsspec URLs.

All that globalstep stores goes through a `Storage`: checkpoints, their state file, summaries. A path without a scheme
is local; "s3://bucket/dir", "gs://...", "memory://..." go to fsspec, an extra (`pip install globalstep[fsspec]`).

A file is committed in four moves, each of which a crash may follow: write under a temporary name, fsync, rename, fsync
of the directory. `atomic_write` does all four.

Layer: shared. Imports nothing of globalstep but errors. Threads: a Storage may be shared by threads.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from globalstep.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

#: Between a file's name and the random end of its temporary name; how a probe's name begins.
TEMPORARY = ".tmp-"
PROBE = ".globalstep-probe-"
_FLOW_BYTES = 16 << 20  # of a file, given to the disk at a time
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _FlowingFile(io.FileIO):
    """A new file whose bytes begin to move to the disk while the next are being written.

    Left alone, Linux keeps them in memory until the fsync: the program writes, then the disk does. Together
    they take little more than the slower of the two (benchmarks/figures.md).
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "wb")
        self._advised = 0

    def write(self, data: Any) -> int:
        """Write, perhaps only a first part: the buffer above comes back with the rest."""
        count = super().write(memoryview(data)[:_FLOW_BYTES])
        end = self.tell()
        if end - self._advised >= _FLOW_BYTES and hasattr(os, "posix_fadvise"):
            # "Not needed" makes Linux begin to write them; what is not written yet stays in memory.
            os.posix_fadvise(self.fileno(), self._advised, end - self._advised, os.POSIX_FADV_DONTNEED)
            self._advised = end
        return count


class LocalStorage:
    """The file system of this host. Paths are whole paths or URLs; errors are OSErrors."""

    #: Whether two hosts that name the same path may mean different files.
    is_local = True

    def open_write(self, path: str) -> BinaryIO:
        """Open a new file, replacing what is there."""
        return io.BufferedWriter(_FlowingFile(path))

    def open_read(self, path: str) -> BinaryIO:
        """Open a file for seeking and reading."""
        return open(path, "rb")

    def sync_file(self, file: BinaryIO) -> None:
        """Wait until what was written to an open file is durable, where the storage can tell."""
        file.flush()
        os.fsync(file.fileno())

    def sync_directory(self, directory: str) -> None:
        """Wait until renames and deletions in `directory` are durable, where the storage can tell."""
        descriptor = os.open(directory or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing a file of that name."""
        os.replace(source, target)

    def exists(self, path: str) -> bool:
        """Say whether a file or directory is there."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Say whether a directory is there (always so where directories are only prefixes of names)."""
        return os.path.isdir(path or ".")

    def make_directories(self, path: str) -> None:
        """Make a directory and its parents, durable when this returns; those that are there stay."""
        path = path or "."
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            parent = directory_of(path.rstrip("/")) or "."
            if parent == path:
                break
            path = parent
        for folder in reversed(missing):
            try:
                self._make_directory(folder)
            except FileExistsError:
                if not os.path.isdir(folder):  # else another process made it meanwhile
                    raise
            try:
                self.sync_directory(directory_of(folder.rstrip("/")) or ".")
            except OSError:
                # The next try is not to take it for one that is on the disk.
                with contextlib.suppress(OSError):
                    self._remove_directory(folder)
                raise

    def _make_directory(self, path: str) -> None:
        os.mkdir(path)

    def _remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list(self, directory: str) -> list[str]:
        """Give the names of the files in `directory`, sorted; [] when it is not there."""
        try:
            with os.scandir(directory or ".") as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        """Give a file's size in bytes."""
        return os.path.getsize(path)

    def mtime(self, path: str) -> float:
        """Give when a file was last written, seconds since the epoch."""
        return os.path.getmtime(path)

    def delete(self, path: str) -> None:
        """Delete a file; if it is not there, nothing happens."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def join(self, directory: str, name: str) -> str:
        """Put a file's name to a directory."""
        return os.path.join(directory, name)


class FsspecStorage:
    """A file system that fsspec knows, by URL. An object becomes durable when its file is closed.

    Args:
        url: Any URL on it; only its scheme and host matter.

    Raises:
        UnknownError: If fsspec, or its driver for the scheme, is not installed.
    """

    is_local = False

    def __init__(self, url: str) -> None:
        scheme = url.split("://", 1)[0]
        try:
            import fsspec  # type: ignore[import-untyped, unused-ignore]

            self._system: Any = fsspec.core.url_to_fs(url)[0]
        except (ImportError, ValueError) as error:
            raise UnknownError(
                f"The path {url!r} needs fsspec and a driver for {scheme}://, which are not at hand: "
                f"{error}. Run `pip install 'globalstep[fsspec]'` and the driver's package."
            ) from error

    def open_write(self, path: str) -> BinaryIO:
        """See LocalStorage."""
        return cast(BinaryIO, self._system.open(path, "wb"))

    def open_read(self, path: str) -> BinaryIO:
        """See LocalStorage."""
        return cast(BinaryIO, self._system.open(path, "rb"))

    def sync_file(self, file: BinaryIO) -> None:
        """See LocalStorage; an object is durable only once it is closed, so there is nothing to wait for."""

    def sync_directory(self, directory: str) -> None:
        """See LocalStorage; an object's name is as durable as the object."""

    def rename(self, source: str, target: str) -> None:
        """See LocalStorage; a copy and a deletion where the service has no rename."""
        self._system.mv(source, target)

    def exists(self, path: str) -> bool:
        """See LocalStorage."""
        return bool(self._system.exists(path))

    def is_directory(self, path: str) -> bool:
        """See LocalStorage."""
        return True

    def make_directories(self, path: str) -> None:
        """See LocalStorage."""
        self._system.makedirs(path, exist_ok=True)

    def list(self, directory: str) -> list[str]:
        """See LocalStorage."""
        self._system.invalidate_cache()
        try:
            entries = self._system.ls(directory, detail=True)
        except FileNotFoundError:
            return []
        return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")

    def size(self, path: str) -> int:
        """See LocalStorage."""
        return int(self._system.size(path))

    def mtime(self, path: str) -> float:
        """See LocalStorage."""
        return float(self._system.modified(path).timestamp())

    def delete(self, path: str) -> None:
        """See LocalStorage."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(path)

    def join(self, directory: str, name: str) -> str:
        """See LocalStorage."""
        return f"{directory.rstrip('/')}/{name}"


#: What globalstep needs of a file system.
Storage = LocalStorage | FsspecStorage

_LOCAL = LocalStorage()


def storage_for(path: str) -> Storage:
    """Give the storage that a path or URL lies on.

    Args:
        path: A local path, or a URL with a scheme that fsspec knows.

    Raises:
        UnknownError: If the scheme needs packages that are not installed.
        InvalidArgumentError: If the path is no text in UTF-8: messages and files could not name it.

    >>> storage_for("/data/run").is_local
    True
    """
    require_utf8(path)
    return FsspecStorage(path) if "://" in path else _LOCAL


def require_utf8(path: str) -> None:
    """Refuse a path that messages and files cannot name, since it is no text in UTF-8.

    Raises:
        InvalidArgumentError: If it is none.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise InvalidArgumentError(
            f"The path {shown} is not in UTF-8: what a run writes could not name it. Rename the folder, or give "
            "another run_dir (checkpoint_dir)."
        ) from None


def directory_of(path: str) -> str:
    """Give the directory that a path or URL lies in; "" for a bare name.

    >>> directory_of("s3://bucket/run/model.ckpt-7"), directory_of("model")
    ('s3://bucket/run', '')
    """
    return path.rsplit("/", 1)[0] if "://" in path else os.path.dirname(path)


@contextlib.contextmanager
def atomic_write(storage: Storage, path: str, owner: int = 0) -> Iterator[BinaryIO]:
    """Write a file that is seen whole or not at all, and is durable when the block has ended.

    A block that raises leaves no file under `path` but what was there before.

    Args:
        storage: Where to write.
        path: The file's final path.
        owner: A number for the temporary name, by which others know whose it is; 0 for none.

    Yields:
        The open file, under a temporary name.

    Raises:
        OpError: If the storage refuses; the text names `path` and the move that failed.
    """
    temporary = f"{path}{TEMPORARY}{f'{owner}-' if owner else ''}{secrets.token_hex(4)}"
    try:
        try:
            file = storage.open_write(temporary)
            with file:
                yield file
                storage.sync_file(file)
            storage.rename(temporary, path)
            storage.sync_directory(directory_of(path))
        except BaseException:
            # The error at hand says more than one about the clean-up would.
            with contextlib.suppress(Exception):
                storage.delete(temporary)
            raise
    except OSError as error:
        raise path_error(error, path, "write") from error


def is_full(error: BaseException) -> bool:
    """Say whether a file could not be written because there is no room for it: somebody may make some.

    >>> is_full(OSError(28, "No space left on device")), is_full(OSError(5, "Input/output error"))
    (True, False)
    """
    return isinstance(error, ResourceExhaustedError) or (isinstance(error, OSError) and error.errno in _NO_ROOM)


def path_error(error: OSError, path: str, verb: str) -> OpError:
    """Give the error of the project's own tree for an OSError about a file.

    Args:
        error: What the storage raised.
        path: The file.
        verb: What was tried: "read", "write", ...

    >>> path_error(OSError(28, "No space left on device"), "/d/m", "write").message
    'Could not write /d/m: No space left on device. Free some space, or choose another directory.'
    """
    reason = f"Could not {verb} {path}: {error.strerror or error}."
    if error.errno in _NO_ROOM:
        return ResourceExhaustedError(f"{reason} Free some space, or choose another directory.")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{reason} Check that its directory exists on {socket.gethostname()}.")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return PermissionDeniedError(f"{reason} Check the owner and mode of its directory.")
    if isinstance(error, NotADirectoryError | IsADirectoryError):
        return FailedPreconditionError(f"{reason} Something else has that name: choose another directory.")
    return UnknownError(reason)


@dataclass(frozen=True, slots=True)
class Probe:
    """A small file with a random text: a process that can read it sees the same directory."""

    file: str
    text: str


@contextlib.contextmanager
def leave_probe(storage: Storage, directory: str, owner: int = 0) -> Iterator[Probe]:
    """Keep a probe file in `directory` within the block; `owner` as for `atomic_write`."""
    probe = Probe(f"{PROBE}{f'{owner}-' if owner else ''}{secrets.token_hex(8)}", secrets.token_hex(16))
    path = storage.join(directory, probe.file)
    try:
        try:
            with storage.open_write(path) as file:
                file.write(probe.text.encode())
        except OSError as error:
            raise path_error(error, path, "write") from error
        yield probe
    finally:
        with contextlib.suppress(OSError):
            storage.delete(path)


def sees_probe(storage: Storage, directory: str, probe: Probe) -> bool:
    """Say whether `directory`, seen from here, is the one in which a probe was left."""
    try:
        with storage.open_read(storage.join(directory, probe.file)) as file:
            return file.read(len(probe.text) + 1) == probe.text.encode()
    except Exception:  # an object store's driver raises what it likes, e.g. where it has no credentials
        return False

"""A disk that knows what would be left of it, whenever the machine failed: the crash tester's, under the real files.

Every system call that changes files is a move. A `Disk` carries each out for real, so that the code under test reads
what it wrote, and keeps a record of it. From the record it can make what a crash after any of the moves may have left:

- the process was killed: all that it had written is there, of the last write perhaps a part;
- the machine lost power: what had been synced is there. Of everything else anything may be: data that was not synced is
  there, in part, as zeros, or not; each name that was made, changed or taken away since the last sync of its directory
  is so, or not.

And a move may fail, be the last one that its process makes, or have somebody else act right before it (the process
slept). After a failed sync nothing that was written before counts as synced ever again: Linux drops such pages.

`Moves` has the hooks alone, for tests that need no record.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from globalstep.files.storage import LocalStorage
from globalstep.ps.wal.log_file import LogFiles

__all__ = ["ERRORS", "CrashingFiles", "CrashingStorage", "Disk", "Killed", "Moves"]

#: What a call may fail with: a device, a full disk, too many files, a network file system that was mounted anew.
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE)
#: Names in the air at a time of which all combinations are tried; of more, each alone and all but each.
_MOST_COMBINED = 4


class Killed(BaseException):
    """The process is gone: nothing that it does after this moment touches the disk."""


@dataclass
class Moves:
    """What befalls one process at one of its moves.

    Attributes:
        count: Moves so far.
        at: The move at which something happens; 0 for none.
        kill: The process ends there, before the move; of a write the first half is done.
        error: Number of the error with which the move fails; of a write the first half is done.
        meanwhile: Called before the move.
        only: Kinds of moves that count; empty for all.
    """

    count: int = 0
    at: int = 0
    kill: bool = False
    error: int = 0
    meanwhile: Callable[[], None] | None = None
    only: tuple[str, ...] = ()
    dead: bool = False

    def move(self, kind: str) -> None:
        """Take note of a move that is about to be made.

        Raises:
            Killed, OSError: If it is not to be made.
        """
        if self.dead:
            raise Killed
        if self.only and kind not in self.only:
            return
        self.count += 1
        if self.count != self.at:
            return
        if self.meanwhile is not None:
            self.meanwhile()
        if self.kill:
            self.dead = True
            raise Killed
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def strikes(self) -> bool:
        """Whether the last move was struck, so that half of it is done."""
        return self.count == self.at


@dataclass(frozen=True)
class _Move:
    """A change, by the inode that it was made to: names may mean another later."""

    kind: str
    inode: int = 0
    path: str = ""
    old: str = ""
    offset: int = 0
    data: bytes = b""

    @property
    def is_data(self) -> bool:
        return self.kind in ("write", "truncate")


@dataclass
class _Files:
    """Names and contents."""

    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {""})
    contents: dict[int, bytearray] = field(default_factory=dict)

    def do(self, move: _Move) -> None:
        """Make a move, if what it needs is there."""
        kind, path = move.kind, move.path
        if move.is_data:
            content = self.contents.setdefault(move.inode, bytearray())
            if kind == "truncate":
                content[move.offset :] = bytes(max(move.offset - len(content), 0))
                return
            content.extend(bytes(max(move.offset - len(content), 0)))
            content[move.offset : move.offset + len(move.data)] = move.data
        elif kind == "mkdir":
            if _parent(path) in self.folders:
                self.folders.add(path)
        elif kind == "rmdir":
            if not any(_parent(name) == path for name in (*self.names, *self.folders) if name):
                self.folders.discard(path)
        elif kind == "move folder":
            self._move_folder(move.old, path)
        else:
            taken_away = path if kind == "unlink" else move.old
            if self.names.get(taken_away) == move.inode:
                del self.names[taken_away]
            if kind != "unlink" and _parent(path) in self.folders:
                self.names[path] = move.inode

    def _move_folder(self, old: str, new: str) -> None:
        if old in self.folders and _parent(new) in self.folders:
            under = f"{old}/"
            self.folders = {new + at[len(old) :] if f"{at}/".startswith(under) else at for at in self.folders}
            self.names = {new + at[len(old) :] if at.startswith(under) else at: n for at, n in self.names.items()}

    def state(self) -> tuple[tuple[str, ...], tuple[tuple[str, bytes], ...]]:
        """What can be compared, and written."""
        there = [(name, bytes(self.contents.get(inode, b""))) for name, inode in sorted(self.names.items())]
        return tuple(sorted(self.folders)), tuple(there)


class Disk:
    """A folder that remembers how it came to be what it is.

    Args:
        folder: Where the files are; empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._moves: list[_Move] = []
        # By move: the one with which it came to be on the disk for sure; none where it never did.
        self._safe_by: dict[int, int] = {}
        self._doomed: set[int] = set()
        self._now = _Files()
        self._inodes = itertools.count(1)
        self._told: list[tuple[int, Any]] = []

    # ---- While the code under test runs -----------------------------------------------------------

    def __len__(self) -> int:
        return len(self._moves)

    def told(self, fact: Any) -> None:
        """Take note that somebody was told of something: from here on it must survive."""
        self._told.append((len(self._moves), fact))

    def told_by(self, point: int) -> list[Any]:
        """What had been told when so many moves had been made."""
        return [fact for at, fact in self._told if at <= point]

    def name(self, path: str | Path) -> str:
        """Give a path as the record has it."""
        found = os.path.relpath(path, self.folder)
        assert not found.startswith(".."), f"{path} is not on the disk"
        return "" if found == "." else found

    def is_here(self, path: str | Path) -> bool:
        """Whether a path lies on it."""
        return not os.path.relpath(path, self.folder).startswith("..")

    def inode(self, path: str | Path) -> int:
        """Give the file of a name; 0 where there is none."""
        return self._now.names.get(self.name(path), 0)

    def made(self, path: str | Path) -> int:
        """Take note of a new, empty file; gives it."""
        inode = next(self._inodes)
        self._record(_Move("create", inode, self.name(path)))
        return inode

    def changed(self, kind: str, path: str | Path, old: str | Path | None = None) -> None:
        """Take note of a change of names."""
        here = self.name(path)
        source = here if old is None else self.name(old)
        if kind == "rename" and source in self._now.folders:
            kind = "move folder"
        # A link leaves the old name, and a new name takes none away.
        self._record(_Move(kind, self._now.names.get(source, 0), here, source if kind == "rename" else ""))
        if kind == "move folder":
            self._moves[-1] = _Move(kind, 0, here, source)
            self._now._move_folder(source, here)

    def wrote(self, inode: int, offset: int, data: bytes) -> None:
        """Take note of bytes that were written."""
        self._record(_Move("write", inode, offset=offset, data=data))

    def cut(self, inode: int, size: int) -> None:
        """Take note that a file has another size."""
        self._record(_Move("truncate", inode, offset=size))

    def synced(self, inode: int, failed: bool = False) -> None:
        """Take note that a file was brought to the disk; or that it `failed`, and its pages pass for clean."""
        for at, move in enumerate(self._moves):
            if move.is_data and move.inode == inode and at not in self._safe_by:
                if failed:
                    self._doomed.add(at)
                elif at not in self._doomed:
                    self._safe_by[at] = len(self._moves)
        self._record(_Move("sync", inode))

    def synced_folder(self, folder: str | Path) -> None:
        """Take note that the names in a folder were brought to the disk."""
        here = self.name(folder)
        for at, move in enumerate(self._moves):
            if at not in self._safe_by and move.path and here in (_parent(move.path), _parent(move.old or move.path)):
                self._safe_by[at] = len(self._moves)
        self._record(_Move("sync folder", path=""))

    def _record(self, move: _Move) -> None:
        self._moves.append(move)
        if move.kind not in ("sync", "sync folder", "move folder"):
            self._now.do(move)

    def check(self) -> None:
        """Make sure that the record tells of every change: it gives just what is there."""
        folders = {self.name(path) for path, _, _ in os.walk(self.folder)}
        files = {
            self.name(Path(path, name)): Path(path, name).read_bytes()
            for path, _, names in os.walk(self.folder)
            for name in names
            if not name.endswith("lock")
        }
        assert dict(self._now.state()[1]) == files
        assert self._now.folders == folders

    # ---- What may be left -------------------------------------------------------------------------

    def crashes(self, point: int) -> Iterator[tuple[str, Any]]:
        """Give what a crash right after so many moves may leave: how, and a state for `lay_out`."""
        done = range(point)
        yield "killed", self._state(done)
        if point and self._moves[point - 1].kind == "write":
            yield "killed within a write", self._state(done, {point - 1: _half(self._moves[point - 1])})
        airy = [at for at in done if self._is_airy(at, point)]
        if not airy:
            return
        data = [at for at in airy if self._moves[at].is_data]
        names = [at for at in airy if not self._moves[at].is_data]
        safe = [at for at in done if at not in set(airy)]
        written = [at for at in data if self._moves[at].kind == "write"]
        last = {self._moves[at].inode: at for at in written}
        first = {self._moves[at].inode: at for at in reversed(written)}
        torn = {at: _half(self._moves[at]) for at in last.values()}
        holes = {at: _zeros(self._moves[at]) for at in first.values()}
        for what, kept_data, instead in (
            ("no data", [], {}),
            ("all data", data, {}),
            ("torn data", data, torn),
            ("a hole in the data", data, holes),
        ):
            if not data and what != "all data":
                continue
            for kept in _subsets(names) if what in ("no data", "all data") else [tuple(names)]:
                how = f"power lost: {what}, {len(kept)} of {len(names)} names"
                yield how, self._state(sorted([*safe, *kept_data, *kept]), instead)

    def _is_airy(self, at: int, point: int) -> bool:
        return self._moves[at].kind not in ("sync", "sync folder") and self._safe_by.get(at, point) >= point

    def _state(self, moves: Sequence[int], instead: dict[int, _Move] | None = None) -> Any:
        files = _Files()
        for at in moves:
            move = (instead or {}).get(at, self._moves[at])
            if move.kind not in ("sync", "sync folder"):
                files.do(move)
        return files.state()

    @staticmethod
    def lay_out(state: Any, folder: Path) -> None:
        """Put what a crash left into a folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folders, files = state
        for name in folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in files:
            (folder / name).write_bytes(content)

    def describe(self, point: int) -> str:
        """Say which moves came right before a point."""
        told = [
            f"{move.kind} {move.path or self._path_of(move.inode)}" for move in self._moves[max(point - 4, 0) : point]
        ]
        return f"after move {point} ({'; '.join(told)})"

    def _path_of(self, inode: int) -> str:
        return next((move.path for move in reversed(self._moves) if move.inode == inode and move.path), "")


def _parent(path: str) -> str:
    return os.path.dirname(path)


def _half(move: _Move) -> _Move:
    return _Move("write", move.inode, offset=move.offset, data=move.data[: len(move.data) // 2])


def _zeros(move: _Move) -> _Move:
    return _Move("write", move.inode, offset=move.offset, data=bytes(len(move.data)))


def _subsets(names: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Which of the changes of names in the air have come to the disk: all combinations of few, some of many."""
    if len(names) <= _MOST_COMBINED:
        for count in range(len(names) + 1):
            yield from itertools.combinations(names, count)
        return
    yield tuple(names)
    yield ()
    for at in names:
        yield (at,)
        yield tuple(other for other in names if other != at)


class CrashingStorage(LocalStorage):
    """The local file system, with every change of it a move of one process.

    Args:
        moves: The process's.
        disk: Keeps the record; None where there is none to be kept.
    """

    def __init__(self, moves: Moves, disk: Disk | None = None) -> None:
        self.moves = moves
        self.disk = disk

    def open_write(self, path: str) -> Any:
        self.moves.move("create")
        file = super().open_write(path)
        disk = self._disk_of(path)
        inode = 0
        if disk is not None:
            inode = disk.inode(path)
            if inode:
                disk.cut(inode, 0)
            else:
                inode = disk.made(path)
        return _Writing(self.moves, disk, file, inode)

    def _disk_of(self, path: str) -> Disk | None:
        return self.disk if self.disk is not None and self.disk.is_here(path) else None

    def sync_file(self, file: Any) -> None:
        try:
            self.moves.move("sync")
        except OSError:
            if file.disk is not None:
                file.disk.synced(file.inode, failed=True)
            raise
        file.file.flush()  # the real disk is spared: nothing depends on it
        if file.disk is not None:
            file.disk.synced(file.inode)

    def sync_directory(self, directory: str) -> None:
        self.moves.move("sync folder")
        if (disk := self._disk_of(directory)) is not None:
            disk.synced_folder(directory)

    def rename(self, source: str, target: str) -> None:
        self.moves.move("rename")
        super().rename(source, target)
        if (disk := self._disk_of(target)) is not None:
            disk.changed("rename", target, source)

    def delete(self, path: str) -> None:
        self.moves.move("unlink")
        disk = self._disk_of(path)
        there = disk is not None and os.path.exists(path)
        super().delete(path)
        if disk is not None and there:
            disk.changed("unlink", path)

    def _make_directory(self, path: str) -> None:
        self.moves.move("mkdir")
        super()._make_directory(path)
        if (disk := self._disk_of(path)) is not None:
            disk.changed("mkdir", Path(path))

    def _remove_directory(self, path: str) -> None:
        self.moves.move("rmdir")
        super()._remove_directory(path)
        if (disk := self._disk_of(path)) is not None:
            disk.changed("rmdir", Path(path))


class _Writing:
    """An open file whose writes are moves; one that fails still writes the first half, as disks do."""

    def __init__(self, moves: Moves, disk: Disk | None, file: Any, inode: int) -> None:
        self.moves, self.disk, self.file, self.inode = moves, disk, file, inode
        self._offset = 0

    def write(self, data: Any) -> int:
        whole = bytes(data)
        try:
            self.moves.move("write")
        except BaseException:
            if self.moves.strikes():
                self._write(whole[: len(whole) // 2])
            raise
        self._write(whole)
        return len(whole)

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        if self.disk is not None:
            self.disk.wrote(self.inode, self._offset, data)
        self._offset += len(data)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class CrashingFiles(LogFiles):
    """The files of write-ahead logs, with every change a move of one process.

    Args:
        moves: The process's.
        disk: Keeps the record.
    """

    def __init__(self, moves: Moves, disk: Disk) -> None:
        super().__init__()
        self.storage = CrashingStorage(moves, disk)
        self.moves, self.disk = moves, disk
        self._open: dict[int, int] = {}
        self._locks: set[int] = set()

    def lock(self, path: Path) -> int:
        file = super().lock(path)
        self._locks.add(file)
        return file

    def end(self) -> None:
        """Give the locks free, as the system does when a process is killed; its files stay open in this one."""
        for file in self._locks:
            fcntl.flock(file, fcntl.LOCK_UN)
        self._locks.clear()

    def create(self, path: Path) -> int:
        self.moves.move("create")
        file = super().create(path)
        self._open[file] = self.disk.made(path)
        return file

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        offset = os.lseek(file, 0, os.SEEK_CUR)
        try:
            self.moves.move("write")
        except BaseException:
            if self.moves.strikes():
                half = data[: len(data) // 2]
                os.write(file, half)
                self.disk.wrote(self._open[file], offset, half)
            raise
        written = os.write(file, data)
        self.disk.wrote(self._open[file], offset, data[:written])
        return written

    def sync(self, file: int) -> None:
        self.sync_data(file)

    def sync_data(self, file: int) -> None:
        try:
            self.moves.move("sync")
        except OSError:
            self.disk.synced(self._open[file], failed=True)
            raise
        self.disk.synced(self._open[file])

    def allocate(self, file: int, offset: int, size: int) -> None:
        self.moves.move("allocate")
        super().allocate(file, offset, size)
        self.disk.cut(self._open[file], os.fstat(file).st_size)

    def truncate(self, file: int, size: int) -> None:
        self.moves.move("truncate")
        super().truncate(file, size)
        self.disk.cut(self._open[file], size)

    def close(self, file: int) -> None:
        self._open.pop(file, None)
        self._locks.discard(file)
        super().close(file)

    def link(self, source: Path, target: Path) -> None:
        self.moves.move("link")
        super().link(source, target)
        self.disk.changed("link", target, source)

    def rename(self, source: Path, target: Path) -> None:
        self.moves.move("rename")
        super().rename(source, target)
        self.disk.changed("rename", target, source)

    def unlink(self, path: Path) -> None:
        self.moves.move("unlink")
        there = os.path.lexists(path)
        super().unlink(path)
        if there:
            self.disk.changed("unlink", path)

    def make_directory(self, path: Path) -> None:
        self.moves.move("mkdir")
        super().make_directory(path)
        self.disk.changed("mkdir", path)

    def remove_directory(self, path: Path) -> None:
        self.moves.move("rmdir")
        super().remove_directory(path)
        self.disk.changed("rmdir", path)

    def sync_directory(self, directory: Path) -> None:
        self.moves.move("sync folder")
        self.disk.synced_folder(directory)


def plant_rename_before_sync(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Plant a bug: files that these modules write get their names before their bytes are on the disk."""

    @contextlib.contextmanager
    def hasty(storage: Any, path: str, owner: int = 0) -> Iterator[Any]:
        with storage.open_write(f"{path}.tmp") as file:
            yield file
            storage.rename(f"{path}.tmp", path)
            storage.sync_file(file)
        storage.sync_directory(os.path.dirname(path))

    for module in modules:
        monkeypatch.setattr(f"{module}.atomic_write", hasty)

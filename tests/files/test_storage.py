import errno
import os

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.sessions.run_files import RunFiles
from globalstep.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)
from globalstep.files.storage import (
    FsspecStorage,
    LocalStorage,
    Probe,
    atomic_write,
    directory_of,
    leave_probe,
    sees_probe,
    storage_for,
)


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """A storage and a directory on it."""
    directory = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    return storage_for(directory), directory


def write(storage, path, data):
    with atomic_write(storage, path) as file:
        file.write(data)


def read(storage, path):
    with storage.open_read(path) as file:
        return file.read()


def test_written_files_are_listed_read_measured_renamed_and_deleted(place):
    storage, directory = place
    path = storage.join(directory, "a")
    write(storage, path, b"12345")
    assert storage.list(directory) == ["a"]
    assert read(storage, path) == b"12345"
    assert storage.size(path) == 5
    assert storage.mtime(path) > 1_600_000_000
    storage.rename(path, storage.join(directory, "b"))
    assert storage.list(directory) == ["b"]
    assert storage.exists(storage.join(directory, "b"))
    assert not storage.exists(path)
    storage.delete(storage.join(directory, "b"))
    storage.delete(storage.join(directory, "b"))
    assert storage.list(directory) == []


def test_a_write_replaces_what_was_there(place):
    storage, directory = place
    path = storage.join(directory, "a")
    write(storage, path, b"old")
    write(storage, path, b"newer")
    assert read(storage, path) == b"newer"
    assert storage.list(directory) == ["a"]


def test_a_failing_block_leaves_the_old_file(place):
    storage, directory = place
    path = storage.join(directory, "a")
    write(storage, path, b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(storage, path) as file:
        file.write(b"half" * (1 // 0))
    assert read(storage, path) == b"old"
    assert storage.list(directory) == ["a"]


def test_a_directory_that_is_not_there_lists_nothing(place):
    storage, directory = place
    assert storage.list(storage.join(directory, "none")) == []


def test_make_directories(tmp_path):
    storage = LocalStorage()
    path = str(tmp_path / "a" / "b")
    assert not storage.is_directory(path)
    storage.make_directories(path)
    storage.make_directories(path)
    assert storage.is_directory(path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ResourceExhaustedError),
        (errno.EDQUOT, ResourceExhaustedError),
        (errno.ENOENT, NotFoundError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EROFS, PermissionDeniedError),
        (errno.ENOTDIR, FailedPreconditionError),
        (errno.EISDIR, FailedPreconditionError),
        (errno.EIO, UnknownError),
    ],
)
def test_an_os_error_becomes_the_projects_own_and_names_the_path(tmp_path, number, kind):
    class Broken(LocalStorage):
        def sync_file(self, file):
            raise OSError(number, os.strerror(number))

    path = str(tmp_path / "a")
    with pytest.raises(kind, match=path) as caught:
        write(Broken(), path, b"x")
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_synced_after_the_rename(tmp_path):
    calls = []

    class Recording(LocalStorage):
        def sync_file(self, file):
            calls.append("sync_file")
            super().sync_file(file)

        def rename(self, source, target):
            calls.append("rename")
            super().rename(source, target)

        def sync_directory(self, directory):
            calls.append(f"sync_directory {directory}")
            super().sync_directory(directory)

    write(Recording(), str(tmp_path / "a"), b"x")
    assert calls == ["sync_file", "rename", f"sync_directory {tmp_path}"]


def test_a_bare_name_lies_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(LocalStorage(), "a", b"x")
    assert LocalStorage().list("") == ["a"]
    assert directory_of("a") == ""


def test_an_unknown_scheme_says_what_to_install():
    with pytest.raises(UnknownError, match="nosuch"):
        storage_for("nosuchscheme://x")


def test_a_probe_is_seen_only_in_its_directory(place):
    storage, directory = place
    other = storage.join(directory, "other")
    storage.make_directories(other)
    with leave_probe(storage, directory) as probe:
        assert sees_probe(storage, directory, probe)
        assert not sees_probe(storage, other, probe)
        assert not sees_probe(storage, directory, Probe(probe.file, "0" * 32))
        assert not sees_probe(storage, directory, Probe(probe.file, probe.text[:-1]))
    assert not sees_probe(storage, directory, probe)
    assert storage.list(directory) == []


def test_fsspec_is_not_local():
    assert FsspecStorage("memory://x").is_local is False
    assert LocalStorage().is_local is True


def test_a_file_of_many_pieces_arrives_whole(tmp_path):
    data = os.urandom(5_000_003) * 9
    with atomic_write(LocalStorage(), str(tmp_path / "f")) as file:
        file.write(b"head")
        file.write(memoryview(data)[:40_000_001])
        file.write(memoryview(data)[40_000_001:])
    assert (tmp_path / "f").read_bytes() == b"head" + data


class Refusing:
    """A storage whose driver has errors of its own."""

    def join(self, directory, name):
        return f"{directory}/{name}"

    def open_read(self, path):
        raise RuntimeError("no credentials")


def test_a_driver_that_fails_sees_no_probe():
    assert not sees_probe(Refusing(), "s3://bucket/run", Probe("probe", "text"))


def test_directories_are_made_down_to_the_last_and_a_file_is_none(tmp_path):
    storage = LocalStorage()
    storage.make_directories(f"{tmp_path}/a/b/c/")
    storage.make_directories(f"{tmp_path}/a/b")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(FileExistsError, match="file'$"):
            storage.make_directories(f"{tmp_path}/{path}")


def test_a_path_that_is_not_in_utf8_is_refused_in_words(tmp_path, monkeypatch):
    """Messages and files could not name it; a run ended in a UnicodeEncodeError on its way."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9sum\xe9")
    for use in (
        lambda: storage_for(folder),
        lambda: gs.fit(np.zeros(1), lambda w, x: (w.sum(), x), [1], optimizer=gs.optim.SGD(1.0), run_dir=folder),
    ):
        with pytest.raises(InvalidArgumentError, match=r"r\\xe9sum\\xe9 is not in UTF-8.*Rename the folder"):
            use()
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidArgumentError, match="is not in UTF-8"):
        _ = RunFiles("run").absolute

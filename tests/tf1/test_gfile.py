import pytest

from globalstep.errors import AlreadyExistsError, NotFoundError
from globalstep.tf1 import gfile


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("née", encoding="utf-8")
    return str(path)


def test_open_reads_and_writes_text_and_bytes(tmp_path, file):
    with gfile.GFile(file) as stream:
        assert stream.read() == "née"
    with gfile.Open(file, "rb") as stream:
        assert stream.read() == "née".encode()
    with gfile.FastGFile(str(tmp_path / "b"), "w") as stream:
        stream.write("ß")
    assert (tmp_path / "b").read_bytes() == "ß".encode()


def test_folders(tmp_path):
    folder = str(tmp_path / "x" / "y")
    gfile.MakeDirs(folder)
    gfile.MakeDirs(folder)
    assert gfile.IsDirectory(folder)
    assert gfile.ListDirectory(str(tmp_path / "x")) == ["y"]
    assert [top for top, _, _ in gfile.Walk(str(tmp_path / "x"))] == [str(tmp_path / "x"), folder]
    gfile.DeleteRecursively(str(tmp_path / "x"))
    assert not gfile.Exists(folder)
    gfile.MkDir(folder.removesuffix("/y"))
    gfile.MkDir(folder.removesuffix("/y"))


def test_rename_and_copy_overwrite_only_when_asked(tmp_path, file):
    other = str(tmp_path / "b.txt")
    gfile.Copy(file, other)
    with pytest.raises(AlreadyExistsError, match="b.txt; File exists"):
        gfile.Copy(file, other)
    with pytest.raises(AlreadyExistsError):
        gfile.Rename(file, other)
    gfile.Copy(file, other, overwrite=True)
    gfile.Rename(file, other, overwrite=True)
    assert gfile.Glob(str(tmp_path / "*.txt")) == [other]
    assert gfile.Stat(other).st_size == len("née".encode())
    gfile.Remove(other)
    assert not gfile.Exists(other)


@pytest.mark.parametrize(
    "call",
    [
        gfile.GFile,
        gfile.Remove,
        gfile.DeleteRecursively,
        gfile.ListDirectory,
        gfile.Stat,
        lambda path: gfile.MkDir(path + "/deeper"),
        lambda path: gfile.Rename(path, path + "2"),
        lambda path: gfile.Copy(path, path + "2"),
    ],
)
def test_what_is_not_there(call, tmp_path):
    with pytest.raises(NotFoundError, match="missing"):
        call(str(tmp_path / "missing"))

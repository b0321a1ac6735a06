import pathlib

import numpy as np
import pytest

from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state
from globalstep.deploy.cli import main

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "tf_checkpoints"


@pytest.fixture
def directory(tmp_path, capsys):
    """Two imported checkpoints."""
    for name in ("plain-3", "sharded-0"):
        assert main(["checkpoint", "import", str(GOLDEN / name), str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_import_tells_what_it_made_and_left_out(tmp_path, capsys):
    assert main(["checkpoint", "import", str(GOLDEN / "plain-3"), str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"as {tmp_path}/plain-3." in out
    assert "Left out text: its dtype string" in out
    assert main(["checkpoint", "import", str(GOLDEN / "plain-3"), str(tmp_path)]) == 1
    assert "plain-3 already" in capsys.readouterr().err


def test_ls(directory, capsys):
    assert main(["checkpoint", "ls", str(directory)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["CHECKPOINT", "STEPS", "TENSORS", "SIZE", "WRITTEN"]
    assert first.split()[:3] == ["plain-3", "global_step=3", "20"]
    assert second.split()[0] == "sharded-0"
    assert second.split()[-1] == "latest"
    next(directory.glob("plain-3.shard*")).unlink()
    assert main(["checkpoint", "ls", str(directory)]) == 0
    assert "plain-3" in (line := capsys.readouterr().out.splitlines()[1])
    assert "incomplete" in line


def test_ls_says_what_is_not_there(directory, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for path, text in {
        "missing": "There is no directory {}.",
        "empty": "There is no checkpoint in {}.",
        "file": "{} is a file.",
        "plain-3": "{} is a checkpoint, not a directory: see `globalstep checkpoint show`.",
    }.items():
        assert main(["checkpoint", "ls", str(tmp_path / path)]) == 1
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"globalstep checkpoint ls: {text.format(tmp_path / path)}\n")


def test_show(directory, capsys):
    assert main(["checkpoint", "show", str(directory / "plain-3")]) == 0
    out = capsys.readouterr().out
    assert "step        global_step = 3" in out
    row = next(line for line in out.splitlines() if line.startswith("layer/weights/Adam_1"))
    assert row.split() == ["layer/weights/Adam_1", "slot", "float32", "[4,", "5]", "80", "B", "0"]
    assert main(["checkpoint", "show", str(directory)]) == 0
    assert f"checkpoint  {get_checkpoint_state(str(directory)).model_checkpoint_path}" in capsys.readouterr().out


def test_verify_names_what_is_damaged(directory, capsys):
    assert main(["checkpoint", "verify", str(directory)]) == 0
    assert capsys.readouterr().out.count("ok ") == 2
    file = next(directory.glob("plain-3.shard*"))
    data = np.frombuffer(file.read_bytes(), np.uint8).copy()
    data[-3] ^= 4
    file.write_bytes(data.tobytes())
    assert main(["checkpoint", "verify", str(directory)]) == 1
    out = capsys.readouterr().out
    assert f"FAILED  {directory}/plain-3: " in out
    assert file.name in out
    assert "ok      " in out
    assert main(["checkpoint", "verify", str(directory / "sharded-0")]) == 0


@pytest.mark.parametrize("action", ["ls", "show", "verify"])
def test_a_directory_without_checkpoints(action, tmp_path, capsys):
    assert main(["checkpoint", action, str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert str(tmp_path) in printed.out + printed.err

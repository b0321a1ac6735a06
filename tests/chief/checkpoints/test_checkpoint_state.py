import logging
import os

import numpy as np
import pytest

from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    shard_file_name,
    write_index,
)
from globalstep.chief.checkpoints.checkpoint_state import (
    checkpoint_exists,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    latest_checkpoint,
    update_checkpoint_state,
)
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import LocalStorage

STORAGE = LocalStorage()


def make(directory, base, mtime=None):
    """Write a small checkpoint; give its prefix."""
    name = shard_file_name(base, 0, 1)
    written = write_shard(STORAGE, str(directory), name, [("w", np.arange(4.0))])
    variables = {"w": SavedVariable("float64", (4,), (SavedPart.of(0, written.tensors[0]),))}
    prefix = str(directory / base)
    write_index(STORAGE, prefix, CheckpointIndex((ShardFile(name, written.file_bytes),), variables))
    if mtime is not None:
        os.utime(f"{prefix}.index.json", (mtime, mtime))
    return prefix


def damage(prefix, how):
    file = f"{prefix}.shard-00000-of-00001.safetensors"
    with open(file, "r+b") as opened:
        if how == "truncate":
            opened.truncate(20)
        else:
            opened.seek(-1, os.SEEK_END)
            opened.write(b"\x55")
    return os.path.basename(file)


def test_the_state_file_is_tensorflows_text(tmp_path):
    update_checkpoint_state(str(tmp_path), "/d/m-2", ["/d/m-1", "/d/m-2"], None, [1.5, 2.0], 0.5)
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "/d/m-2"\n'
        'all_model_checkpoint_paths: "/d/m-1"\n'
        'all_model_checkpoint_paths: "/d/m-2"\n'
        "all_model_checkpoint_timestamps: 1.5\n"
        "all_model_checkpoint_timestamps: 2.0\n"
        "last_preserved_timestamp: 0.5\n"
    )
    state = get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == "/d/m-2"
    assert list(state.all_model_checkpoint_paths) == ["/d/m-1", "/d/m-2"]
    assert list(state.all_model_checkpoint_timestamps) == [1.5, 2.0]
    assert state.last_preserved_timestamp == 0.5


def test_what_tensorflow_writes_is_read(tmp_path):
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "m-\\303\\244\\"2"\nall_model_checkpoint_paths: "m-1"\n'
        'all_model_checkpoint_paths: "/abs/m-\\303\\244\\"2"\n'
    )
    state = get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == str(tmp_path / 'm-ä"2')
    assert list(state.all_model_checkpoint_paths) == [str(tmp_path / "m-1"), '/abs/m-ä"2']


def test_no_state_or_an_unreadable_one_is_none(tmp_path, caplog):
    assert get_checkpoint_state(str(tmp_path)) is None
    assert get_checkpoint_state(str(tmp_path / "none")) is None
    assert caplog.records == []
    (tmp_path / "checkpoint").write_bytes(b"model_checkpoint_path: \xff{{")
    assert get_checkpoint_state(str(tmp_path)) is None
    assert str(tmp_path / "checkpoint") in caplog.text


def test_a_state_that_names_nothing_is_an_error(tmp_path):
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(ValueError, match="Invalid checkpoint state loaded from"):
        get_checkpoint_state(str(tmp_path))


def test_update_puts_the_latest_at_the_end_and_checks(tmp_path):
    update_checkpoint_state(str(tmp_path), "m-2", ["m-1"], "best")
    assert list(get_checkpoint_state(str(tmp_path), "best").all_model_checkpoint_paths) == [
        str(tmp_path / "m-1"),
        str(tmp_path / "m-2"),
    ]
    with pytest.raises(ValueError, match="must match checkpoint paths"):
        update_checkpoint_state(str(tmp_path), "m-2", ["m-1"], None, [1.0, 2.0])
    with pytest.raises(RuntimeError, match="conflicts with path used for checkpoint state"):
        update_checkpoint_state(str(tmp_path), str(tmp_path / "checkpoint"))


def test_relative_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("logs")
    update_checkpoint_state("logs", "logs/m-2", ["logs/m-1", "logs/m-2"])
    assert 'model_checkpoint_path: "m-2"' in (tmp_path / "logs" / "checkpoint").read_text()
    assert get_checkpoint_state("logs").model_checkpoint_path == "logs/m-2"


def test_exists_and_mtimes(tmp_path):
    prefix = make(tmp_path, "m-1", mtime=1000)
    assert checkpoint_exists(prefix)
    assert not checkpoint_exists(str(tmp_path / "m"))
    assert get_checkpoint_mtimes([str(tmp_path / "m"), prefix]) == [1000.0]


def test_latest_is_what_the_state_says(tmp_path, caplog):
    first, second = make(tmp_path, "m-1"), make(tmp_path, "m-2")
    assert latest_checkpoint(str(tmp_path)) is None
    update_checkpoint_state(str(tmp_path), first, [second, first])
    assert latest_checkpoint(str(tmp_path)) == first
    assert latest_checkpoint(str(tmp_path), "best") is None
    assert caplog.records == []


@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_latest_falls_back_to_the_newest_whole_one_and_names_the_file(tmp_path, how, caplog):
    paths = [make(tmp_path, f"m-{step}") for step in (1, 2, 3)]
    update_checkpoint_state(str(tmp_path), paths[2], paths)
    assert latest_checkpoint(str(tmp_path)) == paths[2]
    file = damage(paths[2], how)
    assert latest_checkpoint(str(tmp_path)) == paths[1]
    assert f"Falling back to the checkpoint {paths[1]}" in caplog.text
    assert "Training that goes on from there does again what came after it" in caplog.text
    assert file in caplog.text


def test_latest_of_a_missing_checkpoint_falls_back_as_the_state_lists_them(tmp_path, caplog):
    paths = [make(tmp_path, "m-1", mtime=9e8), make(tmp_path, "m-2", mtime=1e8)]
    update_checkpoint_state(str(tmp_path), str(tmp_path / "m-3"), paths)
    assert latest_checkpoint(str(tmp_path)) == paths[1]
    assert "Couldn't match files for checkpoint" in caplog.text


def test_latest_looks_for_checkpoints_that_the_state_does_not_list(tmp_path):
    make(tmp_path, "m-1", mtime=100)
    newest = make(tmp_path, "m-0", mtime=200)
    make(tmp_path, "best-7", mtime=300)
    update_checkpoint_state(str(tmp_path), str(tmp_path / "m-3"))
    assert latest_checkpoint(str(tmp_path)) == newest


@pytest.mark.parametrize("text", [b"", b"\xff\xfe{", b'model_checkpoint_path: "m-'])
def test_latest_with_a_damaged_state_file_takes_the_newest_whole_one(tmp_path, text):
    make(tmp_path, "m-1", mtime=100)
    newest = make(tmp_path, "m-2", mtime=200)
    (tmp_path / "checkpoint").write_bytes(text)
    assert latest_checkpoint(str(tmp_path)) == newest


def test_latest_without_any_whole_checkpoint_is_none_and_says_why(tmp_path, caplog):
    prefix = make(tmp_path, "m-1")
    update_checkpoint_state(str(tmp_path), prefix)
    damage(prefix, "truncate")
    with caplog.at_level(logging.ERROR):
        assert latest_checkpoint(str(tmp_path)) is None
    assert "No whole checkpoint" in caplog.text
    assert "begins anew at step 0, and its checkpoints replace these; to keep them" in caplog.text


def test_a_checkpoint_is_verified_once_unless_its_files_change(tmp_path, monkeypatch):
    import globalstep.chief.checkpoints.checkpoint_state as module

    verified = []
    real = module.verify
    monkeypatch.setattr(module, "verify", lambda *args: (verified.append(args[0]), real(*args))[1])
    prefix = make(tmp_path, "m-1")
    update_checkpoint_state(str(tmp_path), prefix)
    for _ in range(3):
        assert latest_checkpoint(str(tmp_path)) == prefix
    assert verified == [prefix]
    assert latest_checkpoint(str(tmp_path), thorough=False) == prefix
    os.utime(f"{prefix}.shard-00000-of-00001.safetensors", (5, 5))
    latest_checkpoint(str(tmp_path))
    assert verified == [prefix, prefix]


def test_of_many_checkpoints_the_last_are_known_to_be_whole(tmp_path):
    import globalstep.chief.checkpoints.checkpoint_state as module

    prefixes = [make(tmp_path, f"m-{number}") for number in range(70)]
    for prefix in prefixes:
        module._verify_once(LocalStorage(), prefix)
    assert list(module._verified) == prefixes[-64:]

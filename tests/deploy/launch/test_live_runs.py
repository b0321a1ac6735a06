"""Runs that other commands of the same user find."""

from __future__ import annotations

import json
import os
import stat

import pytest

from globalstep.cluster.process_place import this_process
from globalstep.deploy.launch import live_runs
from globalstep.deploy.launch.live_runs import find_credentials, kept
from globalstep.security.credentials import RUN_TOKEN

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs.platformdirs, "user_state_path", lambda name: tmp_path / name)
    return tmp_path / "globalstep" / "runs"


def test_a_run_is_found_while_its_launcher_has_it_and_no_longer(folder):
    with kept(["a:1", "a:2"], {"GLOBALSTEP_RUN": "digits", RUN_TOKEN: TOKEN, "OTHER": "x"}, ["x.py", "--steps", "5"]):
        (run,) = live_runs.live_runs()
        assert (run.name, run.program, run.ps) == ("digits", "x.py --steps 5", ["a:1", "a:2"])
        assert run.process == this_process()
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "OTHER" not in path.read_text()
        assert find_credentials("a:2").shown_token() == TOKEN
        assert find_credentials("a:3") is None
    assert not list(folder.iterdir())
    assert live_runs.live_runs() == []


def test_two_runs_of_one_process_are_two():
    with kept(["a:1"], {RUN_TOKEN: "1" * 16}), kept(["b:1"], {RUN_TOKEN: "2" * 16}):
        assert len(live_runs.live_runs()) == 2
        assert find_credentials("a:1").shown_token() == "1" * 16
        assert find_credentials("b:1").shown_token() == "2" * 16


def test_certificates_and_the_tokens_of_roles_are_found_where_the_launcher_has_them(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"chief {TOKEN}\nworker fedcba9876543210\n")
    tokens.chmod(0o600)
    files = {f"GLOBALSTEP_TLS_{name}": f"/pki/{name.lower()}.pem" for name in ("CERT", "KEY", "CA")}
    with kept(["a:1"], {"GLOBALSTEP_TOKENS_FILE": str(tokens), **files}):
        found = find_credentials("a:1")
    assert found.shown_token() == TOKEN
    assert found.tls is not None


@pytest.mark.parametrize(
    "change",
    [
        {"process": {"pid": 2**22 + 1}},  # no process has it
        {"process": {"started": "1"}},  # another process has the pid now
    ],
    ids=["ended", "pid of another"],
)
def test_what_a_killed_launcher_has_left_is_no_run(folder, change):
    with kept(["a:1"], {RUN_TOKEN: TOKEN}):
        (path,) = folder.iterdir()
        fields = json.loads(path.read_text())
        for name, values in change.items():
            fields[name] |= values
        path.write_text(json.dumps(fields))
        assert live_runs.live_runs() == []
        assert find_credentials("a:1") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}'])
def test_a_file_that_is_none_is_passed_over(folder, text):
    folder.mkdir(parents=True)
    path = folder / "1-x.json"
    path.write_text(text)
    path.chmod(0o600)
    assert live_runs.live_runs() == []


def test_a_file_that_others_can_read_is_not_believed(folder):
    with kept(["a:1"], {RUN_TOKEN: TOKEN}):
        (path,) = folder.iterdir()
        os.chmod(path, 0o644)
        assert find_credentials("a:1") is None

"""How `make test-pythons` finds interpreters, and what it says of those that are not there."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, on a machine that has no interpreter yet."""
    spec = importlib.util.spec_from_file_location("test_pythons", ROOT / "scripts" / "release" / "test_pythons.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return module


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_version_that_is_not_there_is_named_and_the_exit_code_says_so(script, capsys, tmp_path):
    assert script.main(["--folder", str(tmp_path / "made"), "3.98", "3.99"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" on this machine")[0] for line in said] == [
        "Python 3.98: SKIPPED: there is no such interpreter",
        "Python 3.99: SKIPPED: there is no such interpreter",
    ]
    assert not (tmp_path / "made").exists()


def test_a_shim_of_an_interpreter_that_is_not_in_use_leads_to_pyenvs_own(script, tmp_path):
    program(tmp_path / "bin" / "python3.99", "echo 'python3.99: command not found' >&2; exit 127")
    for micro in ("3.99.2", "3.99.10", "3.99-dev"):
        program(tmp_path / "pyenv" / "versions" / micro / "bin" / "python", "echo 3.99")
    assert script.find("3.99") == str(tmp_path / "pyenv" / "versions" / "3.99.10" / "bin" / "python")


def test_a_program_of_another_version_is_none(script, tmp_path):
    program(tmp_path / "bin" / "python3.99", "echo 3.11")
    assert script.find("3.99") is None


def test_the_tests_run_in_an_environment_of_the_version(script, capsys, monkeypatch, tmp_path):
    version = ".".join(map(str, sys.version_info[:2]))
    program(tmp_path / "bin" / f"python{version}", f'exec "{sys.executable}" "$@"')
    made = []
    monkeypatch.setattr(script, "environment", lambda python, folder: made.append((python, folder)) or sys.executable)
    command = ["--folder", str(tmp_path), version]
    assert script.main([*command, "--args=--version"]) == 0
    assert script.main([*command, "--args=--no-such-option"]) == 1
    assert made == [(str(tmp_path / "bin" / f"python{version}"), tmp_path / version)] * 2
    assert f"Python {version}: passed" in capsys.readouterr().out
    assert os.path.isabs(made[0][0])

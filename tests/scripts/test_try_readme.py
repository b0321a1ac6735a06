"""What `make try-readme` takes out of README.md; following it takes a machine of its own and some minutes."""

import doctest
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "README.md").read_text()


def try_readme():
    spec = importlib.util.spec_from_file_location("try_readme", ROOT / "scripts" / "try_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_own_examples():
    found = doctest.testmod(try_readme())
    assert found.attempted >= 2
    assert not found.failed


def test_the_first_screen_is_an_installation_and_three_commands():
    packages, commands = try_readme().blocks(PAGE, "sh")
    assert packages.startswith("apt-get update && apt-get install -y ")
    assert commands.splitlines() == ["git clone <this repository> globalstep", "cd globalstep", "make demo"]


def test_a_line_that_is_not_printed_is_missed_whatever_the_numbers():
    (shown,) = try_readme().blocks(PAGE, "text")
    assert not try_readme().missing_lines(shown, shown.replace("3000", "1500"))
    missing = try_readme().missing_lines(shown, shown.replace("test accuracy", "accuracy"))
    assert len(missing) == 1
    assert "test accuracy" in missing[0]


def test_pip_finds_its_packages_where_this_machine_does(monkeypatch, tmp_path):
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    environ = {"PIP_EXTRA_INDEX_URL": f"file://{tmp_path}/index/simple", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    _, folders = try_readme().pip_settings(environ)
    assert {tmp_path / "index", tmp_path / "wheels"} <= set(folders)

"""What a package index shows of the package, and what `make package` tries; building it takes a minute."""

import doctest
import importlib.util
import re
import tomllib
from pathlib import Path

import globalstep
from globalstep.proto import globalstep_pb2, globalstep_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def script(name, monkeypatch):
    (path,) = (ROOT / "scripts").rglob(f"{name}.py")
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_scripts_own_examples(monkeypatch):
    for name in ("check_package", "generate_proto"):
        found = doctest.testmod(script(name, monkeypatch))
        assert found.attempted
        assert not found.failed


def test_the_version_is_the_same_everywhere_and_the_changelog_dates_it():
    assert globalstep.__version__ == PROJECT["version"]
    newest = re.search(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest[1] != "Unreleased":
        assert newest[1] == PROJECT["version"]
        assert re.fullmatch(r" - \d{4}-\d{2}-\d{2}", newest[2])


def test_the_page_of_a_package_index_links_to_nothing_that_is_not_there():
    page = (ROOT / PROJECT["readme"]).read_text()
    links = re.findall(r"\]\(([^)]+)\)|<(https?://[^>]+)>", page)
    assert not links, "the repository's paths mean nothing on an index, and its home is not settled"
    assert "urls" not in PROJECT


def test_the_generated_code_asks_for_the_lower_bounds(monkeypatch):
    bounds = script("generate_proto", monkeypatch)
    assert f"Version: {bounds.lower_bound('protobuf')}\n" in Path(globalstep_pb2.__file__).read_text()
    assert bounds.lower_bound("grpcio") == globalstep_pb2_grpc.GRPC_GENERATED_VERSION


def test_a_version_that_is_not_on_this_machine_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert script("check_package", monkeypatch).main(["--folder", str(tmp_path / "dist"), "3.99"]) == 1
    assert "no Python 3.99 on this machine" in capsys.readouterr().out
    assert not (tmp_path / "dist").exists()


def test_what_make_package_needs_is_pinned():
    pinned = (ROOT / "requirements" / "tools.txt").read_text()
    assert {"build", "twine"} <= set(re.findall(r"^([\w-]+)==", pinned, re.MULTILINE))


def test_the_conda_recipe_has_the_same_version_and_dependencies():
    recipe = (ROOT / "deploy" / "conda" / "recipe.yaml").read_text()
    assert f'version: "{PROJECT["version"]}"\n' in recipe
    run = re.search(r"^  run:\n((?:    - .+\n)+)", recipe, re.MULTILINE)[1]
    named = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert named == {"__linux", f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]}
    entry = " = ".join(*PROJECT["scripts"].items())
    assert f"      - {entry}\n" in recipe

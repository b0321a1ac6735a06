"""The table of how large the house is: what counts, without any package, and what a ceiling refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "structure.py"


@pytest.fixture
def tree(tmp_path):
    """A checkout of a few modules, by their paths."""

    def write(texts):
        for name, text in texts.items():
            path = tmp_path / "checkout" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "checkout" / "proto").mkdir(exist_ok=True)
        (tmp_path / "checkout" / "proto" / "all.proto").write_text("message A {\n  message B {\n  }\n}\n")
        return tmp_path / "checkout"

    return write


def table(tree, *arguments, ceilings=None):
    """Run the script with a Python that finds no installed package."""
    path = tree.parent / "ceilings.json"
    path.write_text(json.dumps(ceilings or {}))
    command = [sys.executable, "-I", "-S", SCRIPT, "--text-only", "--ceilings", path, *arguments, tree]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def figure(printed, name):
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{name} ")]
    return int(line.removeprefix(name).split()[0])


def test_it_counts_without_a_package(tree):
    found = table(
        tree(
            {
                "src/globalstep/one.py": "a = 1\nb = 2\n",
                "ps/lock.py": "import threading\nlock = threading.Lock()\nmore = threading.Condition()\n",
                "tf1/two.py": "a = 1\n",
                "tests/test_one.py": "\n\n\n",
            }
        )
    )
    assert not found.returncode, found.stderr
    names = ("lines without tf1/", "lines of tf1/", "messages in proto", "locks in ps/ and worker/", "lines of tests")
    assert [figure(found.stdout, name) for name in names] == [5, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "from globalstep.ps import rules\n",
        "import globalstep.ps.rules\n",
        'import importlib\nfound = importlib.import_module("globalstep.ps.rules")\n',
        'table = {"rule": "globalstep.ps.rules"}\n',
        'def of(kind):\n    return __import__(f"globalstep.ps.{kind}")\n',
    ],
)
def test_a_module_that_is_named_in_a_string_is_imported(tree, text):
    texts = {
        "worker/one.py": text,
        "ps/__init__.py": "",
        "ps/rules.py": "",
        "chief/fit.py": "import globalstep.worker.one",
    }
    found = table(tree(texts), "--imports")
    assert figure(found.stdout, "imports of a higher layer") == 1, found.stdout
    assert "worker/one.py -> globalstep.ps" in found.stdout


def test_what_a_docstring_names_is_not_imported(tree):
    found = table(tree({"worker/one.py": '"""See globalstep.ps.rules."""\n', "ps/rules.py": ""}))
    assert figure(found.stdout, "imports of a higher layer") == 0


@pytest.mark.parametrize(("ceiling", "code"), [(4, 1), (5, 0), (6, 0)])
def test_a_ceiling_only_falls(tree, ceiling, code):
    checkout = tree({"src/globalstep/one.py": "\n" * 5})
    checked = table(checkout, "--check", ceilings={"lines without tf1/": ceiling})
    assert checked.returncode == code
    assert ("lines without tf1/: 5, and the ceiling is 4" in checked.stderr) == bool(code)
    assert not table(checkout, "--lower", ceilings={"lines without tf1/": ceiling}).returncode
    assert json.loads((checkout.parent / "ceilings.json").read_text())["lines without tf1/"] == min(ceiling, 5)

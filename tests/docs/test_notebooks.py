"""The notebooks of the documentation are executed, each in a fresh interpreter, cell by cell; training cells twice."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from doc_blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: Executes the sources of the cells on its standard input, in one namespace; a cell that trains is executed twice.
PROGRAM = """
import json, subprocess, sys

def shell(line):
    subprocess.run(line, shell=True, check=True)

namespace = {"__name__": "__main__", "shell": shell}
for number, source in enumerate(json.load(sys.stdin), 1):
    for attempt in range(2 if "gs.fit(" in source else 1):
        print(f"cell {number}", flush=True)
        exec(compile(source, f"cell {number}", "exec"), namespace)
"""


def cells(path, kind="code"):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def as_python(source):
    """Give a cell with the shell's commands of a notebook, `!command`, as calls."""
    return "\n".join(f"shell({line[1:]!r})" if line.startswith("!") else line for line in source.splitlines())


def test_there_are_three_and_each_is_a_whole_notebook():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        names = [cell["id"] for cell in notebook["cells"]]
        assert len(set(names)) == len(names)
        assert cells(path, "markdown")[0].startswith("# ")
        # What is shown was printed: all code has been executed, in order.
        counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert counts == list(range(1, len(counts) + 1))


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, tmp_path):
    sources = cells(path)
    for package in ("torch", "sklearn"):
        if any(package in source for source in sources) and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    scripts = os.path.dirname(sys.executable)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        input=json.dumps([as_python(source) for source in sources]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{path.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if path.stem == "looking-into-a-run":
        assert "PROVEN" in done.stdout
    if path.stem == "first-training":
        assert "nothing to do" in done.stdout + done.stderr, "a run's cell that is executed again says so"

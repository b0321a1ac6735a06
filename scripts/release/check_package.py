"""Builds the sdist and the wheel, looks at their description, and tries the wheel in clean environments.

Usage: check_package.py [--folder FOLDER] [--floor] VERSION... (for example 3.11 3.12 3.13), by a Python with the
packages of requirements/tools.txt: `make package`.

The wheel is built from the sdist, so both are whole. In a new virtual environment of each version of Python it is
installed with what it depends on, and trains, alone and as a cluster. --floor does so once more, under the first
version, with the oldest dependencies that pyproject.toml allows. It fails where an interpreter is not on this machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from test_pythons import ROOT, find

#: What the package is built from.
SOURCES = ("pyproject.toml", "LICENSE", "docs/package.md", "src", "proto", "ps", "worker", "chief", "deploy", "tf1")
#: What a user does first, with nothing but the package.
PROGRAM = """
import numpy as np
import globalstep as gs

x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([1, -2, 3], np.float32)

def loss_fn(params, x, y):
    error = x @ params["w"] - y
    return (error**2).mean(), {"w": 2 * x.T @ error / len(x)}

params = {"w": np.zeros(3, np.float32)}
result = gs.fit(params, loss_fn, [(x, y)], optimizer=gs.optim.Adam(0.05), steps=200, run_dir="runs/line")
print("step", result.step)
"""
COMMANDS = (
    "python line.py",
    "rm -r runs/line",
    "globalstep launch --ps 2 --workers 2 line.py",
    "globalstep audit runs/line",
    "globalstep checkpoint export runs/line line.safetensors",
)


def floors(dependencies: Iterable[str]) -> list[str]:
    """Give the oldest version that each of them allows.

    >>> floors(["numpy>=2.0"])
    ['numpy==2.0']
    """
    return [each.replace(">=", "==") for each in dependencies]


def build(into: Path) -> Path:
    """Build both from the sources alone, and check what a package index would show; gives the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        # What an earlier build has left in the repository is to be no part of it.
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (Path(scratch) / name).parent.mkdir(exist_ok=True)
            copy(ROOT / name, Path(scratch) / name)
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", into, scratch], check=True, stdout=subprocess.DEVNULL
        )
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *into.iterdir()], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def try_wheel(python: str, wheel: Path, folder: Path, pinned: Sequence[str] = ()) -> None:
    """Install the wheel into a new environment in a folder, and train."""
    subprocess.run(["sh", str(ROOT / "scripts" / "make_venv.sh"), python, str(folder / "venv")], check=True)
    scripts = folder / "venv" / "bin"
    install = [scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, wheel, *pinned], check=True)
    subprocess.run([scripts / "python", "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    (folder / "line.py").write_text(PROGRAM)
    environ = {"PATH": f"{scripts}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    for command in COMMANDS:
        done = subprocess.run(
            command.split(), cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"{python}: installed and trained{', with the oldest dependencies' if pinned else ''}.", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build and try; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where the packages go (default: dist)")
    parser.add_argument("--floor", action="store_true", help="try the oldest dependencies as well")
    args = parser.parse_args(argv)
    interpreters = {version: find(version) for version in args.versions}
    if absent := [version for version, python in interpreters.items() if python is None]:
        print(f"There is no Python {', '.join(absent)} on this machine; CONTRIBUTING.md says how to get it.")
        return 1
    shutil.rmtree(args.folder, ignore_errors=True)
    wheel = build(args.folder)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    tried = [(python, ()) for python in interpreters.values()]
    if args.floor:
        tried.append((tried[0][0], floors(dependencies)))
    for python, pinned in tried:
        assert python is not None
        with tempfile.TemporaryDirectory() as scratch:
            try_wheel(python, wheel, Path(scratch), pinned)
    return 0


if __name__ == "__main__":
    sys.exit(main())

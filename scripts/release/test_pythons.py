"""Runs the quick tests under several versions of Python, each in a virtual environment of its own.

Usage: test_pythons.py [--folder FOLDER] [--args "PYTEST ARGUMENTS"] VERSION... (for example 3.11 3.12 3.13)

An interpreter is looked for on the PATH, as python3.12, and then among those of pyenv. A version that is not on this
machine is skipped, and the exit code says so: 0 only if the tests passed under every version that was asked for.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The tests of `make test`.
QUICK = ("-q", "-p", "no:cacheprovider", "-n", "auto", "--dist", "worksteal", "--quick")


def candidates(version: str) -> Iterator[str]:
    """Give the programs that may be an interpreter of a version, "3.12", the likeliest first."""
    program = shutil.which(f"python{version}")
    if program:
        yield program
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    newest_first = sorted(pyenv.glob(f"versions/{version}.*/bin/python"), key=_micro, reverse=True)
    yield from map(str, newest_first)


def _micro(python: Path) -> int:
    micro = python.parts[-3].split(".")[2]
    return int(micro) if micro.isdecimal() else -1


def is_version(python: str, version: str) -> bool:
    """Say whether a program really is that Python: pyenv has a shim for each version that it knows, in use or not."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == version


def find(version: str) -> str | None:
    """Find an interpreter of a version; None where there is none."""
    return next((python for python in candidates(version) if is_version(python, version)), None)


def environment(python: str, folder: Path) -> Path:
    """Make a virtual environment with the package and its tests' needs; gives its python."""
    inside = folder / "bin" / "python"
    if not inside.exists():
        subprocess.run(["sh", str(ROOT / "scripts" / "make_venv.sh"), python, str(folder)], check=True)
    stamp, wanted = folder / ".installed", ROOT / "pyproject.toml"
    if not stamp.exists() or stamp.stat().st_mtime < wanted.stat().st_mtime:
        print(f"Installing globalstep and what its tests need into {folder}.", flush=True)
        # The same links to the source as those of .venv.
        install = "-m pip install --quiet --disable-pip-version-check --config-settings editable_mode=strict --editable"
        subprocess.run([str(inside), *install.split(), ".[test]"], cwd=ROOT, check=True)
        stamp.touch()
    return inside


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests under each version; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-pythons", help="where the environments are kept")
    parser.add_argument("--args", default="", help="arguments of pytest instead of the quick tier's")
    args = parser.parse_args(argv)
    chosen = shlex.split(args.args) if args.args else QUICK
    results: dict[str, str] = {}
    for version in args.versions:
        python = find(version)
        if python is None:
            results[version] = (
                "SKIPPED: there is no such interpreter on this machine; CONTRIBUTING.md says how to get it"
            )
            continue
        print(f"Python {version}: {python}", flush=True)
        try:
            inside = environment(python, args.folder / version)
            code = subprocess.run([str(inside), "-m", "pytest", *chosen], cwd=ROOT, check=False).returncode
        except subprocess.CalledProcessError as error:
            results[version] = f"FAILED: its environment could not be made (exit code {error.returncode})"
        else:
            results[version] = "passed" if code == 0 else f"FAILED (exit code {code})"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return 0 if set(results.values()) == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())

"""Writes the .pyi of each namespace, so that type checkers and editors know the names that are loaded lazily.

Usage: python scripts/generate_stubs.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from globalstep.lazy import Namespace, all_names

ROOT = Path(__file__).resolve().parents[1]
NAMESPACES = (
    "globalstep",
    *(
        f"globalstep.{name}"
        for name in (
            "data",
            "initializers",
            "image",
            "layers",
            "lookup",
            "losses",
            "debugging",
            "distribute",
            "distributions",
            "feature_column",
            "flags",
            "gfile",
            "io",
            "linalg",
            "math",
            "nest",
            "queue",
            "metrics",
            "nn",
            "optim",
            "python_io",
            "random",
            "sparse",
            "strings",
            "summary",
            "test",
            "train",
        )
    ),
)


def stub(module_name: str) -> tuple[Path, str]:
    """Give the path of a namespace's .pyi and its text."""
    module = importlib.import_module(module_name)
    assert isinstance(module, Namespace)
    file = module.__file__
    assert file is not None
    lines = ["# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.", ""]
    imports = []
    for name, (source, attribute) in all_names(module).items():
        if not attribute:
            parent, _, attribute = source.rpartition(".")
            source = parent
        imports.append(f"from {source} import {attribute} as {name}")
    lines += sorted(imports)
    if module_name == "globalstep":
        lines += ["", "VERSION: str", "__version__: str"]
    path = ROOT / "src" / Path(file).relative_to(Path(file).parents[1])
    return path.with_suffix(".pyi"), "\n".join(lines) + "\n"


def main() -> int:
    """Write the files, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    check = parser.parse_args().check
    stale = []
    for path, text in map(stub, NAMESPACES):
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if not check:
                path.write_text(text)
    for path in stale:
        print(f"{'not up to date' if check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prints the map of the modules: every folder and module with the first line of its docstring.

Usage: python3 scripts/module_map.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("src/globalstep", "ps", "worker", "chief", "deploy", "tf1")
_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
_HEAD = """# Map of the modules

`src/globalstep/NAME.py` is imported as `globalstep.NAME`, `ps/NAME.py` as `globalstep.ps.NAME`, and so on.
Which layer may import which: ARCHITECTURE.md.
"""


def sources() -> list[Path]:
    """Return the files of all modules that the map names."""
    paths = (path for top in _FOLDERS for path in sorted((ROOT / top).rglob("*.py")))
    return [path for path in paths if not _GENERATED.search(path.name)]


def _first_line(path: Path) -> str:
    """Give a docstring's first sentence or paragraph, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def page() -> str:
    """Return the whole map."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip()
    folders: dict[Path, list[Path]] = {}
    for path in sources():
        folders.setdefault(path.parent, []).append(path)
    for folder, modules in folders.items():
        yield ""
        yield f"## {folder.relative_to(ROOT)}/"
        yield ""
        init = folder / "__init__.py"
        yield _first_line(init)
        yield ""
        yield "| module | what it is |"
        yield "|---|---|"
        yield from (f"| `{path.stem}` | {_first_line(path)} |" for path in modules if path != init)


if __name__ == "__main__":
    print(page(), end="")

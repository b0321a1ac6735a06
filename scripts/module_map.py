"""Writes docs/design/modules.md: every folder and module with the first line of its docstring.

Usage: python scripts/module_map.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design" / "modules.md"
_FOLDERS = ("src/globalstep", "ps", "worker", "chief", "deploy", "tf1")
_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
_HEAD = """# Map of the modules

<!-- Made by scripts/module_map.py from the modules' first lines; do not edit. -->

`src/globalstep/NAME.py` is imported as `globalstep.NAME`, `ps/NAME.py` as `globalstep.ps.NAME`, and so on.
Which layer may import which: [ARCHITECTURE.md](../../ARCHITECTURE.md).
"""


def sources() -> list[Path]:
    """Give the files of all modules that the page names."""
    found = (path for top in _FOLDERS for path in sorted((ROOT / top).rglob("*.py")))
    return [path for path in found if not _GENERATED.search(path.name)]


def _first_line(path: Path) -> str:
    """Give a docstring's first sentence or paragraph, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def page() -> str:
    """Give the whole page."""
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


def main() -> int:
    """Write the page, or with --check say whether it is another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    check = parser.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if not check:
        PAGE.write_text(text)
    print(f"{'not up to date' if check else 'written'}: {PAGE.relative_to(ROOT)}")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())

"""Says what a site that was built lacks: pages, the inventory for other sites, and an anchor for each public name.

Usage: python scripts/check_site.py build/site
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import api_pages

DOCS = Path(__file__).resolve().parents[1] / "docs"
_LEAST_INVENTORY_BYTES = 1000


def lacks(site: Path) -> list[str]:
    """Give what a site lacks, a line each."""
    inventory, lines = site / "objects.inv", []
    if not inventory.is_file() or inventory.stat().st_size < _LEAST_INVENTORY_BYTES:
        lines.append(f"{inventory}: no inventory of names")
    for page in sorted(DOCS.rglob("*.md")):
        relative = page.relative_to(DOCS).with_suffix(".html")
        if "site" not in relative.parts and not (site / "docs" / relative).is_file():
            lines.append(f"{site / 'docs' / relative}: was not made of {page.name}")
    for name, members in api_pages.public_names().items():
        page = site / "docs" / "api" / f"{api_pages.page_name(name)}.html"
        text = page.read_text() if page.is_file() else ""
        for member in members:
            is_own = member.canonical == member.path
            if (f'id="{member.path}"' if is_own else member.short) not in text:
                lines.append(f"{page}: does not have {member.path}")
    return lines


def main() -> int:
    """Check a site; gives the exit code."""
    parser = argparse.ArgumentParser(description="Say what a site that was built lacks.")
    parser.add_argument("site", type=Path, help="its folder")
    lines = lacks(parser.parse_args().site)
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
